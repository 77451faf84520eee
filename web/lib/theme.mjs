/**
 * Whether the page's palette is a dark one, as the class `vgrpo-dark` on its root, which our style sheets go by.
 * Old frontends of ComfyUI say it by a class on body, new ones by `color-scheme`, palettes of users by neither: the text's own
 * colour tells.
 */

import { listeners } from "./backend.mjs"
import { el } from "./dom.mjs"

const CLASS = "vgrpo-dark"
const SETTLE_MS = 50 // a palette is written property by property

const changed = listeners()

/** Calls fn when the page's colours may have changed. Returns what ends it. */
export const onTheme = changed.add

/** Follows ComfyUI's palette for as long as the page lives. */
export function followTheme() {
  let planned = 0
  let known = ""
  const look = () => {
    planned = 0
    const probe = el("span", {
      hidden: true,
      style: { color: "var(--fg-color, CanvasText)", backgroundColor: "var(--comfy-menu-bg)" },
    })
    document.body.append(probe)
    const { color, backgroundColor } = getComputedStyle(probe)
    probe.remove()
    const now = `${color} on ${backgroundColor}`
    if (now === known) return // ComfyUI writes other things into classes and styles too
    known = now
    setDark(isBright(color))
  }
  const watch = new MutationObserver(() => (planned ||= setTimeout(look, SETTLE_MS)))
  for (const node of [document.documentElement, document.body])
    watch.observe(node, { attributes: true, attributeFilter: ["class", "style"] })
  look()
}

/** Takes dark or light colours, for a page that knows which. */
export function setDark(dark) {
  document.documentElement.classList.toggle(CLASS, dark)
  changed.tell()
}

/** By relative luminance; `color` as browsers compute it: rgb(…), or color(srgb …) of a mixed one. */
export function isBright(color) {
  const parts = color.match(/-?\d*\.?\d+(?:e-?\d+)?/gi)?.map(Number) ?? [0, 0, 0]
  const [r, g, b] = color.startsWith("color(") ? parts : parts.map((x) => x / 255)
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.5
}
