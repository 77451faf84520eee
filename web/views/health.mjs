/** Whether the method itself is well: one chart for each sign, what is healthy beside it, and where the time goes. */

import { el, set, text } from "../lib/dom.mjs"
import { duration, number } from "../lib/format.mjs"
import { Chart } from "./chart.mjs"
import { finite } from "./curve_math.mjs"
import { check } from "./fields.mjs"
import { loadPlotly } from "./plotly.mjs"
import { swatch } from "./swatch.mjs"

const TIMES = ["time/rollout", "time/reward", "time/update"]

/** log: the axis at first; small: numbers in scientific notation. */
const SIGNS = [
  { id: "surrogate/cv_group" },
  { id: "ratio/max_abs_dev", also: "ratio/noise", log: true, small: true, limit: "clip" },
  { id: "ratio/clip_frac" },
  { id: "kl", small: true },
  { id: "grad_norm", log: true, small: true },
  { id: "advantage/frac_zero_std", limit: "half" },
  { id: "time", times: true },
]

/** Kept while the panel is closed: sign -> whether its axis is logarithmic. */
const logChosen = new Map()

/** @returns {{update: (kinds: Set<string>) => void, restyle: () => void, destroy: () => void}} */
export function mount(element, { backend, data, t }) {
  const problem = el("p", { class: "vgd-problem", role: "alert", hidden: true })
  const empty = el("p", { class: "vgd-empty" }, t("health.empty"))
  const grid = el("div", { class: "vgd-grid" })
  element.append(problem, empty, grid)
  const figures = SIGNS.map(figure)
  loadPlotly(backend).catch(() => {}) // while the curves are on their way; a chart says what went wrong

  function figure(sign) {
    const value = el("span", { class: "vgd-value" })
    const place = el("div", { class: "vgd-chart", "aria-hidden": "true" })
    const isLog = () => logChosen.get(sign.id) ?? Boolean(sign.log)
    const chart = new Chart(place, {
      backend,
      log: isLog(),
      hoverTitle: t("curves.hover"),
      format: sign.small ? ".1e" : undefined,
      onZoom: (range) => figures.forEach((other) => other.chart.setRange(range)),
      onError: (error) => {
        text(problem, error.message)
        problem.hidden = false
      },
    })
    const log = check(t("health.log"), isLog(), (on) => {
      logChosen.set(sign.id, on)
      chart.setLog(on)
    })
    set(log.firstChild, { "aria-label": t("health.log.label", { name: t(`health.${sign.id}`) }) })
    const extra = sign.also
      ? el("p", { class: "vgd-legend" }, swatch("--vgd-2", "2 3", null, 1.6), t(`health.${sign.also}`))
      : null
    const node = el(
      "figure",
      { class: "vgd-figure", dataset: { curve: sign.id } },
      el("figcaption", null, el("span", { class: "vgd-title" }, t(`health.${sign.id}`)), value, sign.times ? null : log),
      place,
      el("p", { class: "vgd-note" }, t(`health.${sign.id}.note`)),
      sign.times ? timesLegend() : null,
      extra,
    )
    grid.append(node)
    return { sign, chart, value, node, extra }
  }

  function timesLegend() {
    return el(
      "ul",
      { class: "vgd-legend" },
      TIMES.map((metric, i) =>
        el("li", null, el("span", { class: ["vgd-area", `vgd-area-${i + 1}`], "aria-hidden": "true" }), t(`health.${metric}`)),
      ),
    )
  }

  function draw() {
    const { train } = data.series
    empty.hidden = train.x.length > 0
    grid.hidden = train.x.length === 0
    for (const { sign, chart, value, node, extra } of figures) {
      if (sign.times) {
        chart.setLines(
          TIMES.map((metric, i) => ({
            key: metric,
            name: t(`health.${metric}`),
            ...zeroed(train, metric),
            color: `--vgd-${i + 1}`,
            stacked: true,
            width: 1,
          })),
        )
        text(value, duration(TIMES.reduce((sum, metric) => sum + (last(train, metric) ?? 0), 0)))
        continue
      }
      const main = finite(train, sign.id)
      node.hidden = !main.y.length
      const lines = [{ key: sign.id, name: t(`health.${sign.id}`), ...main, color: "--vgd-1", width: 1.6 }]
      if (sign.also) {
        const second = finite(train, sign.also)
        extra.hidden = !second.y.some((amount) => amount > 0)
        if (!extra.hidden)
          lines.push({ key: sign.also, name: t(`health.${sign.also}`), ...second, color: "--vgd-2", dash: "dot", width: 1.6 })
      }
      chart.options.limits = limitsOf(sign)
      chart.setLines(lines)
      text(value, sign.small && main.y.length ? main.y[main.y.length - 1].toExponential(1) : number(main.y[main.y.length - 1]))
    }
  }

  function limitsOf(sign) {
    if (sign.limit === "half") return [{ value: 0.5, name: t("health.half") }]
    const clip = data.config?.clip_eps
    return sign.limit === "clip" && clip > 0 ? [{ value: clip, name: t("health.clip", { clip }) }] : []
  }

  draw()
  return {
    update(kinds) {
      if (kinds.has("series") || kinds.has("config")) draw()
    },
    restyle: () => figures.forEach(({ chart }) => chart.redraw()),
    destroy: () => figures.forEach(({ chart }) => chart.destroy()),
  }
}

/** A column for stacking: every row, 0 where it says nothing. */
function zeroed(table, metric) {
  const column = table.columns.get(metric) ?? []
  return { x: table.x, y: table.x.map((_, i) => column[i] ?? 0) }
}

function last(table, metric) {
  const column = table.columns.get(metric)
  return column ? column[column.length - 1] : null
}
