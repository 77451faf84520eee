/**
 * Real dialogs: the browser keeps focus inside, closes them with Escape and gives focus back to where it was.
 */

import { el } from "./dom.mjs"
import { t } from "./text.mjs"

let count = 0

/**
 * Asks a question. Resolves to true only when the action itself was chosen; Escape and Cancel are a no.
 * @param {{title: string, text?: string, detail?: string, action: string, cancel?: string, danger?: boolean}} question
 *   detail: what it is about (a name, a path), set apart from the text
 */
export function confirm({ title, text = "", detail = "", action, cancel = t("dialog.cancel"), danger = false }) {
  const no = el("button", { type: "button", class: "vg-button" }, cancel)
  const yes = el("button", { type: "button", class: ["vg-button", danger ? "vg-danger" : "vg-primary"] }, action)
  const body = [text && el("p", {}, text), detail && el("p", { class: "vg-dialog-detail" }, detail)]
  // What cannot be undone is never one press of Enter away.
  return open(title, body, [no, yes], danger ? no : yes, (chosen) => chosen === yes)
}

/**
 * Shows text to be taken away by hand, where the clipboard or the file manager is out of reach.
 * @param {{title: string, text?: string, content: string}} what
 */
export function showText({ title, text = "", content }) {
  const area = el("textarea", { class: "vg-dialog-text", readonly: true, rows: 4, "aria-label": title, value: content })
  const close = el("button", { type: "button", class: ["vg-button", "vg-primary"] }, t("dialog.close"))
  const shown = open(title, [text && el("p", {}, text), area], [close], area, () => undefined)
  area.select()
  return shown
}

function open(title, body, buttons, focus, answer) {
  const id = `vg-dialog-${(count += 1)}`
  const dialog = el(
    "dialog",
    { class: ["vgrpo", "vg-dialog"], "aria-labelledby": id },
    el("h2", { id }, title),
    body,
    el("div", { class: "vg-dialog-buttons" }, buttons),
  )
  return new Promise((resolve) => {
    let chosen = null
    for (const button of buttons)
      button.addEventListener("click", () => {
        chosen = button
        dialog.close()
      })
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close() // beside it
    })
    // ComfyUI's shortcuts listen on the window: Delete or Enter in a dialog is not meant for the graph.
    dialog.addEventListener("keydown", (event) => event.stopPropagation())
    dialog.addEventListener("close", () => {
      dialog.remove()
      resolve(answer(chosen))
    })
    document.body.append(dialog)
    dialog.showModal()
    focus.focus()
  })
}
