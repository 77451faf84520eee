/** Two pictures on top of each other with an edge between them that can be moved: by mouse or finger over the picture, or by a slider. */

import { el } from "../lib/dom.mjs"

/**
 * A pair of pictures in one box. The edge stands at the custom property --wipe (0% to 100%) of the box or of whatever it is in.
 * @param {string} before address of the left picture
 * @param {string} after address of the right one
 * @param {string} [name] what it shows, for screen readers; without one it is for the eye only
 */
export function wipePair(before, after, name = "") {
  const picture = (src, kind) => el("img", { class: `vgd-wipe-${kind}`, src, alt: "", decoding: "async", draggable: "false" })
  return el(
    "span",
    { class: "vgd-wipe", ...(name ? { role: "img", "aria-label": name } : { "aria-hidden": "true" }) },
    picture(after, "after"),
    picture(before, "before"),
    el("span", { class: "vgd-wipe-edge", "aria-hidden": "true" }),
  )
}

/**
 * Lets the pointer move the edge in every pair inside `element`, and makes the slider that does the same by keyboard.
 * @param {HTMLElement} element gets --wipe
 * @param {{label: string, value?: number, change?: (value: number) => void}} options
 * @returns {HTMLInputElement}
 */
export function wipeControl(element, { label, value = 50, change = () => {} }) {
  const slider = el("input", {
    type: "range",
    min: "0",
    max: "100",
    step: "1",
    value: String(value),
    "aria-label": label,
    class: "vgd-wipe-slider",
    on: { input: () => set(Number(slider.value)) },
  })
  function set(next) {
    slider.value = String(next)
    element.style.setProperty("--wipe", `${next}%`)
    change(next)
  }
  element.addEventListener("pointermove", (event) => {
    // A mouse wipes by moving over the picture; a finger that drags would otherwise scroll, so it has to press.
    if (event.pointerType !== "mouse" && !event.pressure) return
    const pair = event.target.closest?.(".vgd-wipe")
    if (!pair) return
    const box = pair.getBoundingClientRect()
    set(Math.round(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * 100))
  })
  set(value)
  return slider
}
