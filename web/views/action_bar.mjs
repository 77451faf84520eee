/** The buttons of what can be done with a run now, the less wanted ones behind "More". */

import { el, fill, set } from "../lib/dom.mjs"
import { available, perform } from "./run_actions.mjs"

/**
 * @param {object} context of the view; without `open` there is no button for it
 * @param {Set<string>} unfolded ids of the runs whose further actions are shown
 * @returns {{node: HTMLElement, update: (run: object) => void}}
 */
export function actionBar(context, unfolded) {
  const { t } = context
  const node = el("div", { class: "vg-actions", role: "group" })
  let run = null
  let made = null // what the buttons were made for

  function update(now) {
    run = now
    const { first, more } = available(run, context)
    const folded = !unfolded.has(run.id)
    const wanted = [run.id, run.name, folded, ...first, "|", ...more].join()
    if (wanted === made) return
    made = wanted
    const focused = node.contains(document.activeElement) ? document.activeElement.dataset.action : null
    set(node, { "aria-label": t("cards.actions", { name: run.name || run.id }) })
    fill(node, first.map(button), fold(folded), folded ? null : more.map(button))
    if (!focused) return
    // The button that was pressed may be gone (Pause became Resume): its neighbour takes the focus, not the page.
    const next = node.querySelector(`[data-action="${focused}"]`) ?? node.querySelector("button")
    next?.focus()
  }

  function fold(folded) {
    return el(
      "button",
      {
        type: "button",
        class: "vg-button",
        dataset: { action: "more" },
        "aria-expanded": String(!folded),
        on: { click: turn },
      },
      t(folded ? "cards.moreActions" : "cards.fewerActions"),
    )
  }

  function button(action) {
    const title = t(`cards.${action}Title`)
    return el(
      "button",
      {
        type: "button",
        class: ["vg-button", action === "open" && "vg-primary", action === "delete" && "vg-danger"],
        dataset: { action },
        title: title === `cards.${action}Title` ? null : title,
        on: { click: (event) => press(action, event.currentTarget) },
      },
      t(`cards.${action}`),
    )
  }

  async function press(action, pressed) {
    if (pressed.getAttribute("aria-disabled") === "true") return
    // Not `disabled`: that would throw the focus away while the server thinks.
    set(pressed, { "aria-disabled": "true" })
    await perform(action, run, context)
    set(pressed, { "aria-disabled": null })
  }

  function turn() {
    if (!unfolded.delete(run.id)) unfolded.add(run.id)
    update(run)
  }

  return { node, update }
}
