/** Small curves as SVG: no library, no state, one path. */

import { set, svg } from "../lib/dom.mjs"

const WIDTH = 100
const HEIGHT = 32
const PAD = 3

/**
 * A curve that fills its element. `update(values, label)` redraws; a value that is no number leaves a gap.
 * @param {string} [name] class beside vg-spark
 */
export function spark(name = "") {
  const area = svg("path", { class: "vg-spark-area" })
  const line = svg("path", { class: "vg-spark-line", "vector-effect": "non-scaling-stroke" })
  const root = svg(
    "svg",
    { class: ["vg-spark", name], role: "img", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" },
    area,
    line,
  )
  let drawn = null
  return {
    element: root,
    update(values, label) {
      const points = values ?? []
      const known = points.filter(Number.isFinite)
      root.classList.toggle("vg-empty", known.length === 0)
      if (root.getAttribute("aria-label") !== label) set(root, { "aria-label": label })
      const d = curve(points, known)
      if (d === drawn) return
      drawn = d
      set(line, { d })
      set(area, { d: filled(points, known) })
    },
  }
}

/** Path of the curve: M where a stretch begins, a dot (a line of no length, with round caps) for a lone point. */
export function curve(points, known = points.filter(Number.isFinite)) {
  const place = scale(points, known)
  let path = ""
  let gap = true
  points.forEach((value, at) => {
    if (!Number.isFinite(value)) {
      gap = true
      return
    }
    const [x, y] = place(at, value)
    path += gap ? `M${x} ${y}l0 0` : `L${x} ${y}`
    gap = false
  })
  return path
}

/** The area below it; only a curve without gaps has one. */
function filled(points, known) {
  if (known.length < 2 || known.length < points.length) return ""
  const place = scale(points, known)
  const path = points.map((value, at) => place(at, value).join(" ")).join("L")
  return `M${PAD} ${HEIGHT}L${path}L${WIDTH - PAD} ${HEIGHT}Z`
}

function scale(points, known) {
  const low = Math.min(...known)
  const span = Math.max(...known) - low
  const step = points.length > 1 ? (WIDTH - 2 * PAD) / (points.length - 1) : 0
  // A flat curve lies in the middle, not on the floor.
  return (at, value) => [
    round(PAD + at * step),
    round(span > 0 ? HEIGHT - PAD - ((value - low) / span) * (HEIGHT - 2 * PAD) : HEIGHT / 2),
  ]
}

function round(x) {
  return Math.round(x * 100) / 100
}
