/** A button that goes through iterations, one after the other, and stops at the last. */

import { el, text } from "../lib/dom.mjs"

const STEP_MS = 800

/**
 * @param {object} options
 * @param {() => {place: number, last: number}} options.at
 * @param {(place: number) => void} options.go
 * @param {Function} options.t
 * @returns {{node: HTMLElement, playing: () => boolean, stop: () => void}}
 */
export function player({ at, go, t }) {
  let timer = 0
  const node = el("button", { type: "button", class: "vg-button vgd-play", on: { click: () => (timer ? stop() : start()) } })

  function start() {
    timer = setInterval(step, STEP_MS)
    say()
    const { place, last } = at()
    go(place < last ? place : 0)
  }

  function step() {
    const { place, last } = at()
    if (place < last) go(place + 1)
    else stop()
  }

  function stop() {
    clearInterval(timer)
    timer = 0
    say()
  }

  function say() {
    text(node, timer ? `❚❚ ${t("samples.stop")}` : `▶ ${t("samples.play")}`)
  }

  say()
  return { node, playing: () => timer !== 0, stop }
}
