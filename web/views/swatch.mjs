/** Pieces of lines as they are in the charts, for legends. */

import { svg } from "../lib/dom.mjs"

const MARKS = {
  circle: "M14 4.5a3.5 3.5 0 1 0 .01 0Z",
  square: "M11 5h6v6h-6Z",
  diamond: "M14 3.5 18 8l-4 4.5L10 8Z",
  "triangle-up": "M14 4 18 11h-8Z",
  cross: "M12.7 4h2.6v2.7H18v2.6h-2.7V12h-2.6V9.3H10V6.7h2.7Z",
}

/** A piece of a line as it is in the chart. */
export function swatch(color, strokes, marker, width) {
  const paint = { stroke: `var(${color})` }
  return svg(
    "svg",
    { class: "vgd-swatch", viewBox: "0 0 28 16", width: "28", height: "16", "aria-hidden": "true" },
    svg("line", {
      x1: "1",
      y1: "8",
      x2: "27",
      y2: "8",
      "stroke-width": String(width),
      ...(strokes ? { "stroke-dasharray": strokes } : {}),
      style: paint,
    }),
    marker ? svg("path", { d: MARKS[marker], style: { fill: `var(${color})` } }) : null,
  )
}
