/** The panel's style sheets, by what they are for. */

import { el } from "./dom.mjs"

/** The first has the colours and pieces that the others build on. */
const SHEETS = ["base", "dialogs", "cards", "node", "detail", "charts", "tables", "samples", "lightbox"]

/**
 * Adds them to the page. Resolves once all are there, so that nothing is seen without them; one that does not come keeps
 * nothing away.
 * @param {string[]} [more] names of further ones, for a page of our own
 */
export function loadStyles(more = []) {
  return Promise.all(
    [...SHEETS, ...more].map(
      (name) =>
        new Promise((resolve) => {
          const href = new URL(`../styles/${name}.css`, import.meta.url).href
          document.head.append(el("link", { rel: "stylesheet", href, on: { load: resolve, error: resolve } }))
        }),
    ),
  )
}
