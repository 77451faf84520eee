/** What stands above the curves: smoothing, raw values, logarithmic axis, the stretch that is shown. */

import { el, text } from "../lib/dom.mjs"
import { check } from "./fields.mjs"

/**
 * @param {object} options
 * @param {Function} options.t
 * @param {{smoothing: number, raw: boolean, log: boolean}} options.chosen how it stands at first
 * @param {(change: {smoothing?: number, raw?: boolean, log?: boolean}) => void} options.change
 * @param {(range: [number, number]|null) => void} options.zoom
 * @param {() => number} options.last the newest iteration
 * @param {...HTMLElement} more further tools
 * @returns {{node: HTMLElement, showRange: (range: [number, number]|null) => void, showLast: () => void}}
 */
export function curveTools({ t, chosen, change, zoom, last }, ...more) {
  let typing = false
  const shown = el("output", { class: "vgd-number" }, chosen.smoothing.toFixed(2))
  const slider = el("input", {
    type: "range",
    min: "0",
    max: "0.99",
    step: "0.01",
    value: String(chosen.smoothing),
    on: {
      input: () => {
        text(shown, Number(slider.value).toFixed(2))
        change({ smoothing: Number(slider.value) })
      },
    },
  })
  const place = (key, placeholder) =>
    el("input", {
      type: "number",
      min: "0",
      step: "1",
      class: "vg-input vgd-short",
      "aria-label": t(key),
      placeholder,
      on: { change: typed },
    })
  const from = place("curves.from", "0")
  const to = place("curves.to", "")
  const reset = el(
    "button",
    { type: "button", class: "vg-button", disabled: true, on: { click: () => zoom(null) } },
    t("curves.reset"),
  )

  function typed() {
    const low = from.value === "" ? 0 : Number(from.value)
    const high = to.value === "" ? last() : Number(to.value)
    if (!(Number.isFinite(low) && Number.isFinite(high) && high > low)) return
    typing = true
    zoom([Math.floor(low), Math.ceil(high)])
    typing = false
  }

  /** New iterations come while somebody types into the fields: these are left alone. */
  function showLast() {
    to.placeholder = String(last())
  }

  showLast()
  return {
    node: el(
      "div",
      { class: "vgd-tools" },
      el("label", { class: "vgd-field" }, t("curves.smoothing"), slider, shown),
      check(t("curves.raw"), chosen.raw, (raw) => change({ raw })),
      check(t("curves.log"), chosen.log, (log) => change({ log })),
      el("span", { class: "vgd-field" }, t("curves.iterations"), from, "–", to),
      reset,
      more,
    ),
    showLast,
    showRange(range) {
      reset.disabled = !range
      if (typing) return // whoever goes from one field to the other finds nothing new in it
      from.value = range ? String(range[0]) : ""
      to.value = range ? String(range[1]) : ""
    },
  }
}
