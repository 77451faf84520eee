/** Fields with their labels, as every tool bar has them. */

import { el } from "../lib/dom.mjs"

/** A box to tick. `change(on)` is called when it was. The box itself is `.firstChild`. */
export function check(label, on, change) {
  const box = el("input", { type: "checkbox", checked: on, on: { change: () => change(box.checked) } })
  return el("label", { class: "vgd-check" }, box, label)
}
