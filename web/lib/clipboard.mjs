/** Text into the clipboard. */

import { el } from "./dom.mjs"

/** Whether it was copied. On plain http of another host there is no clipboard, but the old command works. */
export async function copyText(content) {
  try {
    await navigator.clipboard.writeText(content)
    return true
  } catch {
    const before = document.activeElement
    const area = el("textarea", { class: "vg-offscreen", "aria-hidden": "true", value: content })
    document.body.append(area)
    area.select()
    const done = document.execCommand("copy")
    area.remove()
    before?.focus?.()
    return done
  }
}
