/** One place in the grid of sample pictures: a button with a picture, or with two on top of each other. */

import { el, fill } from "../lib/dom.mjs"
import { pictureAt } from "./sample_list.mjs"
import { wipePair } from "./wipe.mjs"

/**
 * @param {object} options
 * @param {{row: number, member: number}} options.item which prompt and seed
 * @param {() => object} options.evaluation whose picture is shown, now
 * @param {(() => object)|null} options.before whose picture lies under it; null for one picture alone
 * @param {(path: string) => string} options.address of a picture of the run
 * @param {string|null} options.caption below it
 * @param {() => void} options.open shows it in full
 * @param {Function} options.t
 * @returns {{node: HTMLElement, paint: () => void}} paint: another evaluation is shown now
 */
export function sampleCell({ item, evaluation, before, address, caption, open, t }) {
  const box = el("span", { class: "vgd-thumb" })
  const node = el(
    "button",
    { type: "button", class: "vgd-cell", title: caption, on: { click: open } },
    box,
    el("span", { class: "vgd-caption" }, caption),
  )
  // It is listed, and cannot be read: an empty box would look like a white picture. (Such events do not bubble.)
  box.addEventListener("error", () => gap(t("samples.unreadable")), true)

  function gap(words) {
    fill(box, el("span", { class: "vgd-gap" }, words))
    node.setAttribute("aria-label", words)
  }

  function paint() {
    const now = evaluation()
    const known = pictureAt(now, item.row, item.member)
    if (!known) return gap(t("samples.missing"))
    const { prompt, seed } = known
    node.setAttribute("aria-label", t("samples.picture", { prompt, iteration: now.iteration, seed }))
    const shown = box.querySelector(".vgd-wipe-after, .vgd-plain")
    if (shown)
      shown.src = address(known.path) // the old picture stays until the new one is there
    else fill(box, content(known))
  }

  function content(known) {
    const old = before && pictureAt(before(), item.row, item.member)
    const src = address(known.path)
    if (old) return wipePair(address(old.path), src)
    return el("img", { class: "vgd-plain", src, alt: "", decoding: "async", draggable: "false" })
  }

  paint()
  return { node, paint }
}
