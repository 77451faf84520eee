/**
 * Whether ComfyUI's palette is a dark one, as the class `vgrpo-dark` on the page's root, which our style sheets go by.
 * Old frontends say it by a class on body, new ones by `color-scheme`, palettes of users by neither: the text's own colour tells.
 */

import { el } from "./dom.mjs"

const CLASS = "vgrpo-dark"

/** Follows the palette for as long as the page lives. */
export function followTheme() {
  let planned = false
  const look = () => {
    planned = false
    const probe = el("span", { hidden: true, style: { color: "var(--fg-color, CanvasText)" } })
    document.body.append(probe)
    const dark = isBright(getComputedStyle(probe).color)
    probe.remove()
    if (document.documentElement.classList.contains(CLASS) !== dark) document.documentElement.classList.toggle(CLASS, dark)
  }
  const soon = () => {
    if (planned) return
    planned = true
    setTimeout(look, 50)
  }
  const watch = new MutationObserver(soon)
  for (const node of [document.documentElement, document.body]) watch.observe(node, { attributes: true, attributeFilter: ["class", "style"] })
  look()
}

/** By relative luminance; `color` as browsers compute it: rgb(…), or color(srgb …) of a mixed one. */
export function isBright(color) {
  const parts = color.match(/-?\d*\.?\d+(?:e-?\d+)?/gi)?.map(Number) ?? [0, 0, 0]
  const [r, g, b] = color.startsWith("color(") ? parts : parts.map((x) => x / 255)
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.5
}
