/** The menu in which runs are chosen to be laid over the one that is shown. */

import { arrange, el, text } from "../lib/dom.mjs"
import { check } from "./fields.mjs"

const LISTED = 40

/**
 * @param {object} options
 * @param {object} options.store
 * @param {Function} options.t
 * @param {string} options.own the run that is shown: not among those to choose from
 * @param {number} options.most no more can be chosen
 * @param {() => string[]} options.chosen ids that are compared with now
 * @param {(ids: string[]) => void} options.choose
 * @param {(id: string) => string} options.name what a run is called
 * @returns {{node: HTMLElement, update: () => void}} update: the list of runs, or what is chosen, is another
 */
export function comparePicker({ store, t, own, most, chosen, choose, name }) {
  const boxes = new Map() // id -> its label, kept so that the focus stays where it is
  const filter = el("input", {
    type: "search",
    class: "vg-input vgd-filter",
    placeholder: t("curves.compare.filter"),
    "aria-label": t("curves.compare.filter"),
    on: { input: update },
  })
  const items = el("div", { class: "vgd-picks", role: "group", "aria-label": t("curves.compare") })
  const note = el("p", { class: "vgd-note" })
  const label = el("summary", { class: "vg-button" })
  const node = el(
    "details",
    { class: "vgd-menu", on: { toggle: update, keydown: key } },
    label,
    el("div", { class: "vgd-popup" }, filter, items),
  )

  function key(event) {
    if (event.key !== "Escape") return
    event.stopPropagation() // it closes this, and nothing around it
    node.open = false
    label.focus()
  }

  function update() {
    const ids = chosen()
    text(label, ids.length ? t("curves.compare.some", { count: ids.length }) : t("curves.compare"))
    if (!node.open) return
    const wanted = filter.value.trim().toLowerCase()
    const fits = store.order.filter((id) => id !== own && name(id).toLowerCase().includes(wanted))
    const over = fits.length - LISTED
    text(note, over > 0 ? t("curves.compare.more", { count: over }) : fits.length ? "" : t("curves.compare.none"))
    arrange(items, [...fits.slice(0, LISTED).map((id) => box(id, ids)), ...(note.textContent ? [note] : [])])
  }

  function box(id, ids) {
    if (!boxes.has(id))
      boxes.set(
        id,
        check(name(id), false, (on) => toggle(id, on)),
      )
    const field = boxes.get(id).firstChild
    field.checked = ids.includes(id)
    field.disabled = ids.length >= most && !field.checked // no more runs than can be told apart
    return boxes.get(id)
  }

  function toggle(id, on) {
    choose(on ? [...chosen(), id] : chosen().filter((other) => other !== id))
    update()
  }

  update()
  return { node, update }
}
