/** A button that copies text, and says whether it did. */

import { copyText } from "../lib/clipboard.mjs"
import { el, text } from "../lib/dom.mjs"

const SAID_MS = 2000

/** @param {() => string} content asked when it is pressed */
export function copyButton(t, content) {
  const label = el("span", { "aria-live": "polite" }, t("detail.copy"))
  const press = async () => {
    text(label, t((await copyText(content())) ? "detail.copied" : "detail.notCopied"))
    setTimeout(() => text(label, t("detail.copy")), SAID_MS)
  }
  return el("button", { type: "button", class: "vg-button", on: { click: press } }, label)
}
