/**
 * The curves of a run: total, each reward, monitors and held-out scores, each in a chart of its own because their scales differ.
 * Other runs can be laid over; zooming one chart zooms all, and fetches that stretch in full.
 */

import { clear, el, text } from "../lib/dom.mjs"
import { number, signed } from "../lib/format.mjs"
import { Chart } from "./chart.mjs"
import { comparePicker } from "./compare_picker.mjs"
import { curvesOf } from "./curve_list.mjs"
import { finite, smooth } from "./curve_math.mjs"
import { curveTools } from "./curve_tools.mjs"
import { loadPlotly } from "./plotly.mjs"
import { swatch } from "./swatch.mjs"

/** How runs are told apart: never by colour alone. */
const STYLES = [
  { color: "--vgd-1", dash: "solid", marker: "circle", strokes: "" },
  { color: "--vgd-2", dash: "dash", marker: "square", strokes: "7 4" },
  { color: "--vgd-3", dash: "dot", marker: "diamond", strokes: "2 3" },
  { color: "--vgd-4", dash: "dashdot", marker: "triangle-up", strokes: "7 3 2 3" },
  { color: "--vgd-5", dash: "longdash", marker: "cross", strokes: "12 4" },
]
const MAX_RUNS = STYLES.length
const HOLD_MS = 150

/** What the user chose, kept while the panel is closed. */
const chosen = { smoothing: null, log: false, raw: true, compare: [], large: null }

/** @returns {{update: (kinds: Set<string>) => void, destroy: () => void}} */
export function mount(element, context) {
  const { backend, data, settings, store, t } = context
  const others = new Map() // id -> {data, off}
  const figures = new Map() // curve id -> {node, chart, value, name}
  let range = null
  let holding = 0
  let shape = ""
  loadPlotly(backend).catch(showProblem) // while the curves are on their way

  const smoothing = () => chosen.smoothing ?? clamp(Number(settings?.get("VGRPO.Smoothing") ?? 0.6))
  const compared = () => chosen.compare.filter((id) => id !== data.id)
  const legend = el("ul", { class: "vgd-legend", "aria-label": t("curves.legend") })
  const problem = el("p", { class: "vgd-problem", role: "alert", hidden: true })
  const body = el("div", { class: "vgd-curves" })
  const picker = comparePicker({ store, t, own: data.id, most: MAX_RUNS - 1, chosen: compared, choose: compare, name: runName })
  const tools = curveTools({ t, chosen: { ...chosen, smoothing: smoothing() }, change, zoom, last: lastIteration }, picker.node)
  element.append(tools.node, legend, problem, body)

  function change(now) {
    Object.assign(chosen, now)
    if ("log" in now) for (const { chart } of figures.values()) chart.setLog(now.log)
    else draw()
  }

  // Comparing

  function compare(ids) {
    chosen.compare = ids
    follow()
    draw()
  }

  /** Opens the runs that are compared, releases those that are no more. */
  function follow() {
    if (store.loaded) chosen.compare = chosen.compare.filter((id) => store.runs.has(id)) // others were deleted
    const wanted = compared()
    for (const [id, other] of others) {
      if (wanted.includes(id)) continue
      other.off()
      store.release(id)
      others.delete(id)
    }
    for (const id of wanted) {
      if (others.has(id)) continue
      const opened = store.open(id)
      others.set(id, { data: opened, off: opened.subscribe((kinds) => kinds.has("series") && draw()) })
    }
  }

  function runName(id) {
    const run = store.runs.get(id) ?? (id === data.id ? (data.summary ?? data.detail) : null)
    return run && run.name && !id.startsWith(`${run.name}-`) ? `${run.name} (${id})` : id
  }

  // Zooming

  /** Shows a stretch in full; if its points are long on their way, what is here of it meanwhile. */
  function zoom(next) {
    range = next
    tools.showRange(range)
    clearTimeout(holding)
    holding = setTimeout(showZoomed, HOLD_MS, next)
    const runs = [data, ...[...others.values()].map((other) => other.data)]
    Promise.all(runs.map(refine))
      .catch(showProblem)
      .then(() => showZoomed(next))
  }

  function showZoomed(wanted) {
    if (range !== wanted) return // another was chosen meanwhile
    clearTimeout(holding)
    draw()
    for (const { chart } of figures.values()) {
      chart.setRange(range)
      chart.redraw()
    }
  }

  /** Asks for a stretch only where rows are missing in it. */
  function refine(run) {
    if (!range) return run.zoom(null, null)
    const { x } = run.series.train
    const rows = x.filter((value) => value >= range[0] && value <= range[1]).length
    const possible = Math.min(range[1], x[x.length - 1] ?? 0) - Math.max(range[0], x[0] ?? 0) + 1
    return rows < possible ? run.zoom(range[0], range[1]) : null
  }

  function showProblem(error) {
    text(problem, error.message)
    problem.hidden = false
  }

  function lastIteration() {
    return data.series.train.x[data.series.train.x.length - 1] ?? 0
  }

  // Drawing

  function draw() {
    const runs = [data, ...[...others.values()].map((other) => other.data)]
    const groups = curvesOf(
      runs.map((run) => run.series),
      data.config,
    )
    const now = JSON.stringify([data.detail !== null, groups.map((group) => [group.id, group.curves.map((curve) => curve.id)])])
    if (now !== shape) {
      shape = now
      arrange(groups)
    }
    for (const group of groups) for (const curve of group.curves) show(curve, runs)
    showLegend(runs)
    tools.showLast()
  }

  function arrange(groups) {
    const needed = new Set(groups.flatMap((group) => group.curves.map((curve) => curve.id)))
    for (const [id, figure] of figures) {
      if (needed.has(id)) continue
      figure.chart.destroy()
      figures.delete(id)
    }
    clear(body)
    if (!groups.length) {
      body.append(el("p", { class: "vgd-empty" }, t(data.detail ? "curves.empty" : "detail.loading")))
      return
    }
    for (const group of groups) {
      const section = el("div", { class: "vgd-grid" })
      for (const curve of group.curves) {
        if (!figures.has(curve.id)) figures.set(curve.id, figure(curve))
        section.append(figures.get(curve.id).node)
      }
      body.append(el("section", null, el("h3", { class: "vgd-heading" }, t(`curves.group.${group.id}`)), section))
    }
  }

  function figure(curve) {
    const title = curve.id === "total" ? t("curves.total") : curve.title
    const value = el("span", { class: "vgd-value", title: t("curves.value.about") })
    const place = el("div", { class: "vgd-chart", "aria-hidden": "true" })
    const enlarge = el(
      "button",
      {
        type: "button",
        class: "vg-icon",
        "aria-label": t("curves.large", { name: title }),
        title: t("curves.large", { name: title }),
        "aria-pressed": String(chosen.large === curve.id),
        on: {
          click: () => {
            chosen.large = chosen.large === curve.id ? null : curve.id
            resize()
          },
        },
      },
      "⤢",
    )
    const about = el("span", { class: "vgd-note" })
    const node = el(
      "figure",
      { class: "vgd-figure", dataset: { curve: curve.id } },
      el("figcaption", null, el("span", { class: "vgd-title" }, title), about, value, enlarge),
      place,
    )
    node.classList.toggle("vgd-large", chosen.large === curve.id)
    const chart = new Chart(place, {
      backend,
      log: chosen.log,
      hoverTitle: t("curves.hover"),
      onZoom: zoom,
      onError: showProblem,
    })
    chart.setRange(range)
    return { node, chart, value, about, enlarge, id: curve.id }
  }

  function resize() {
    for (const { node, enlarge, id } of figures.values()) {
      node.classList.toggle("vgd-large", id === chosen.large)
      enlarge.setAttribute("aria-pressed", String(id === chosen.large))
    }
  }

  function show(curve, runs) {
    const { chart, value, about } = figures.get(curve.id)
    chart.setLines(runs.flatMap((run, i) => linesOf(curve, run, STYLES[i], runs.length > 1)))
    const main = curve.train ? finite(data.series.train, curve.train) : finite(data.series.evaluate, curve.evaluate)
    text(value, saidValue(main))
    text(about, curve.weight === null ? "" : t("curves.weight", { weight: number(curve.weight) }))
  }

  function saidValue({ x, y }) {
    if (!y.length) return ""
    const trend = smooth(x, y, Math.max(smoothing(), 0.5))
    const last = trend[trend.length - 1]
    return y.length > 1 ? t("curves.value", { last: number(last), change: signed(last - y[0]) }) : number(last)
  }

  function linesOf(curve, run, style, many) {
    const lines = []
    const name = many ? runName(run.id) : ""
    const named = (what) => (many ? `${name}, ${what}` : what)
    const weight = smoothing()
    if (curve.train) {
      const { x, y } = finite(run.series.train, curve.train)
      const base = { x, color: style.color, dash: style.dash }
      if (weight === 0 || chosen.raw)
        lines.push({
          ...base,
          key: `${run.id} raw`,
          name: named(t("curves.line.raw")),
          y,
          width: weight ? 1 : 1.8,
          opacity: weight ? 0.4 : 1,
          quiet: many && weight > 0,
          dash: weight ? "solid" : style.dash,
        })
      if (weight > 0)
        lines.push({
          ...base,
          key: `${run.id} smooth`,
          name: named(t("curves.line.smooth")),
          y: smooth(x, y, weight),
          width: 2.4,
          ...(many ? { marker: style.marker, sparse: true } : {}),
        })
    }
    if (curve.evaluate) {
      const { x, y } = finite(run.series.evaluate, curve.evaluate)
      const own = many
        ? { color: style.color, marker: `${style.marker}-open`, dash: style.dash }
        : { color: "--vgd-2", marker: "diamond", dash: "dot" }
      lines.push({ key: `${run.id} held-out`, name: named(t("curves.line.heldOut")), x, y, width: 1.4, ...own })
    }
    return lines
  }

  function showLegend(runs) {
    clear(legend)
    const many = runs.length > 1
    if (many) {
      runs.forEach((run, i) =>
        legend.append(el("li", null, swatch(STYLES[i].color, STYLES[i].strokes, STYLES[i].marker, 2.4), runName(run.id))),
      )
      if (chosen.raw) legend.append(el("li", { class: "vgd-note" }, t("curves.legend.faint")))
      legend.append(el("li", { class: "vgd-note" }, t("curves.legend.open")))
      return
    }
    const weight = smoothing()
    if (weight > 0) legend.append(el("li", null, swatch("--vgd-1", "", null, 2.4), t("curves.line.smooth")))
    if (chosen.raw || weight === 0) legend.append(el("li", null, swatch("--vgd-1", "", null, 1), t("curves.line.raw")))
    legend.append(el("li", null, swatch("--vgd-2", "2 3", "diamond", 1.4), t("curves.line.heldOut")))
  }

  const offStore = store.subscribe(({ ids }) => {
    if (ids !== null) return
    const before = others.size
    follow() // one that is compared may be deleted
    picker.update()
    if (others.size !== before) draw()
  })
  follow()
  draw()
  return {
    update(kinds) {
      if (kinds.has("series") || kinds.has("config")) draw()
    },
    restyle() {
      for (const { chart } of figures.values()) chart.redraw()
    },
    destroy() {
      offStore()
      clearTimeout(holding)
      for (const { chart } of figures.values()) chart.destroy()
      for (const [id, other] of others) {
        other.off()
        other.data.zoom(null, null)
        store.release(id)
      }
      data.zoom(null, null)
    },
  }
}

function clamp(value) {
  return Number.isFinite(value) ? Math.min(0.99, Math.max(0, value)) : 0.6
}
