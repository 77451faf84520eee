/**
 * The curves of a run: total, each reward, monitors and held-out scores, each in a chart of its own because their scales differ.
 * Other runs can be laid over; zooming one chart zooms all, and fetches that stretch in full.
 */

import { clear, el, text } from "../lib/dom.mjs"
import { number, signed } from "../lib/format.mjs"
import { Chart } from "./chart.mjs"
import { curvesOf } from "./curve_list.mjs"
import { finite, smooth } from "./curve_math.mjs"
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
const LISTED = 40
const ZOOM_MS = 250

/** What the user chose, kept while the panel is closed. */
const chosen = { smoothing: null, log: false, raw: true, compare: [], large: null }

/** @returns {{update: (kinds: Set<string>) => void, destroy: () => void}} */
export function mount(element, context) {
  const { backend, data, settings, store, t } = context
  const others = new Map() // id -> {data, off}
  const figures = new Map() // curve id -> {node, chart, value, name}
  let range = null
  let zoomTimer = 0
  let shape = ""
  loadPlotly(backend).catch(showProblem) // while the curves are on their way

  const smoothing = () => chosen.smoothing ?? clamp(Number(settings?.get("VGRPO.Smoothing") ?? 0.6))
  const legend = el("ul", { class: "vgd-legend", "aria-label": t("curves.legend") })
  const problem = el("p", { class: "vgd-problem", role: "alert", hidden: true })
  const body = el("div", { class: "vgd-curves" })
  const picker = comparePicker()
  const tools = toolbar()
  element.append(tools.node, legend, problem, body)

  function toolbar() {
    const shown = el("output", { class: "vgd-number" }, smoothing().toFixed(2))
    const slider = el("input", {
      type: "range", min: "0", max: "0.99", step: "0.01", value: String(smoothing()),
      on: { input: () => { chosen.smoothing = clamp(Number(slider.value)); text(shown, chosen.smoothing.toFixed(2)); draw() } },
    })
    const raw = check(t("curves.raw"), chosen.raw, (on) => { chosen.raw = on; draw() })
    const log = check(t("curves.log"), chosen.log, (on) => { chosen.log = on; for (const { chart } of figures.values()) chart.setLog(on) })
    const from = el("input", { type: "number", min: "0", step: "1", class: "vgd-short", "aria-label": t("curves.from"), on: { change: typed } })
    const to = el("input", { type: "number", min: "0", step: "1", class: "vgd-short", "aria-label": t("curves.to"), on: { change: typed } })
    const reset = el("button", { type: "button", class: "vgd-button", disabled: true, on: { click: () => zoom(null) } }, t("curves.reset"))
    function typed() {
      const low = from.value === "" ? 0 : Number(from.value)
      const high = to.value === "" ? lastIteration() : Number(to.value)
      if (Number.isFinite(low) && Number.isFinite(high) && high > low) zoom([Math.floor(low), Math.ceil(high)])
    }
    const node = el("div", { class: "vgd-tools" },
      el("label", { class: "vgd-field" }, t("curves.smoothing"), slider, shown), raw, log,
      el("span", { class: "vgd-field" }, t("curves.iterations"), from, "–", to), reset, picker.node)
    return {
      node,
      showRange() {
        reset.disabled = !range
        from.value = range ? String(range[0]) : ""
        to.value = range ? String(range[1]) : ""
        to.placeholder = String(lastIteration())
        from.placeholder = "0"
      },
    }
  }

  function check(label, on, change) {
    const box = el("input", { type: "checkbox", checked: on, on: { change: () => change(box.checked) } })
    return el("label", { class: "vgd-check" }, box, label)
  }

  // Comparing

  function comparePicker() {
    const filter = el("input", { type: "search", class: "vgd-filter", placeholder: t("curves.compare.filter"), "aria-label": t("curves.compare.filter"), on: { input: list } })
    const items = el("div", { class: "vgd-picks", role: "group", "aria-label": t("curves.compare") })
    const label = el("summary", { class: "vgd-button" })
    const node = el("details", { class: "vgd-menu", on: { toggle: list, keydown: (event) => { if (event.key === "Escape") { node.open = false; label.focus() } } } },
      label, el("div", { class: "vgd-popup" }, filter, items))
    function list() {
      say()
      if (!node.open) return
      clear(items)
      const wanted = filter.value.trim().toLowerCase()
      const fits = store.order.filter((id) => id !== data.id && `${id} ${store.runs.get(id)?.name ?? ""}`.toLowerCase().includes(wanted))
      for (const id of fits.slice(0, LISTED)) {
        const on = chosen.compare.includes(id)
        const label = check(runName(id), on, (now) => toggle(id, now))
        label.firstChild.value = id
        items.append(label)
      }
      full()
      if (fits.length > LISTED) items.append(el("p", { class: "vgd-note" }, t("curves.compare.more", { count: fits.length - LISTED })))
      if (!fits.length) items.append(el("p", { class: "vgd-note" }, t("curves.compare.none")))
    }
    function toggle(id, on) {
      chosen.compare = on ? [...chosen.compare, id].slice(0, MAX_RUNS - 1) : chosen.compare.filter((other) => other !== id)
      follow()
      say()
      full()
      draw()
    }
    function say() {
      text(label, chosen.compare.length ? t("curves.compare.some", { count: chosen.compare.length }) : t("curves.compare"))
    }
    /** No more runs than can be told apart. */
    function full() {
      const over = chosen.compare.length >= MAX_RUNS - 1
      for (const box of items.querySelectorAll("input")) box.disabled = over && !box.checked
    }
    return { node, say }
  }

  /** Opens the runs that are compared, releases those that are no more. */
  function follow() {
    if (store.loaded) chosen.compare = chosen.compare.filter((id) => store.runs.has(id)) // others were deleted
    const wanted = chosen.compare.filter((id) => id !== data.id)
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
    const run = store.runs.get(id) ?? (id === data.id ? data.summary ?? data.detail : null)
    return run && run.name && !id.startsWith(`${run.name}-`) ? `${run.name} (${id})` : id
  }

  // Zooming

  function zoom(next) {
    range = next
    tools.showRange()
    for (const { chart } of figures.values()) chart.setRange(range)
    clearTimeout(zoomTimer)
    zoomTimer = setTimeout(() => {
      for (const run of [data, ...[...others.values()].map((other) => other.data)]) refine(run)
    }, ZOOM_MS)
  }

  /** Asks for a stretch only where rows are missing in it. */
  function refine(run) {
    if (!range) return void (run.window && run.zoom(null, null))
    const { x } = run.series.train
    const rows = x.filter((value) => value >= range[0] && value <= range[1]).length
    const possible = Math.min(range[1], x[x.length - 1] ?? 0) - Math.max(range[0], x[0] ?? 0) + 1
    if (rows < possible) run.zoom(range[0], range[1]).catch(showProblem)
  }

  function showProblem(error) {
    text(problem, error.message)
    problem.hidden = false
  }

  const lastIteration = () => data.series.train.x[data.series.train.x.length - 1] ?? 0

  // Drawing

  function draw() {
    const runs = [data, ...[...others.values()].map((other) => other.data)]
    const groups = curvesOf(runs.map((run) => run.series), data.config)
    const now = JSON.stringify(groups.map((group) => [group.id, group.curves.map((curve) => curve.id)]))
    if (now !== shape) {
      shape = now
      arrange(groups)
    }
    for (const group of groups) for (const curve of group.curves) show(curve, runs)
    showLegend(runs)
    tools.showRange()
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
      body.append(el("p", { class: "vgd-empty" }, t(data.loading ? "detail.loading" : "curves.empty")))
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
    const enlarge = el("button", { type: "button", class: "vgd-icon", "aria-label": t("curves.large", { name: title }), title: t("curves.large", { name: title }),
      "aria-pressed": String(chosen.large === curve.id),
      on: { click: () => { chosen.large = chosen.large === curve.id ? null : curve.id; resize() } } }, "⤢")
    const about = curve.weight === null ? null : el("span", { class: "vgd-note" }, t("curves.weight", { weight: number(curve.weight) }))
    const node = el("figure", { class: "vgd-figure", dataset: { curve: curve.id } },
      el("figcaption", null, el("span", { class: "vgd-title" }, title), about, value, enlarge), place)
    node.classList.toggle("vgd-large", chosen.large === curve.id)
    const chart = new Chart(place, { backend, log: chosen.log, hoverTitle: t("curves.hover"), onZoom: zoom, onError: showProblem })
    chart.setRange(range)
    return { node, chart, value, enlarge, id: curve.id }
  }

  function resize() {
    for (const { node, enlarge, id } of figures.values()) {
      node.classList.toggle("vgd-large", id === chosen.large)
      enlarge.setAttribute("aria-pressed", String(id === chosen.large))
    }
  }

  function show(curve, runs) {
    const { chart, value } = figures.get(curve.id)
    chart.setLines(runs.flatMap((run, i) => linesOf(curve, run, STYLES[i], runs.length > 1)))
    const main = curve.train ? finite(data.series.train, curve.train) : finite(data.series.evaluate, curve.evaluate)
    text(value, saidValue(main))
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
        lines.push({ ...base, key: `${run.id} raw`, name: named(t("curves.line.raw")), y, width: weight ? 1 : 1.8, opacity: weight ? 0.4 : 1, quiet: many && weight > 0, dash: weight ? "solid" : style.dash })
      if (weight > 0)
        lines.push({ ...base, key: `${run.id} smooth`, name: named(t("curves.line.smooth")), y: smooth(x, y, weight), width: 2.4, ...(many ? { marker: style.marker, sparse: true } : {}) })
    }
    if (curve.evaluate) {
      const { x, y } = finite(run.series.evaluate, curve.evaluate)
      const own = many ? { color: style.color, marker: `${style.marker}-open`, dash: style.dash } : { color: "--vgd-2", marker: "diamond", dash: "dot" }
      lines.push({ key: `${run.id} held-out`, name: named(t("curves.line.heldOut")), x, y, width: 1.4, ...own })
    }
    return lines
  }

  function showLegend(runs) {
    clear(legend)
    const many = runs.length > 1
    if (many) {
      runs.forEach((run, i) => legend.append(el("li", null, swatch(STYLES[i].color, STYLES[i].strokes, STYLES[i].marker, 2.4), runName(run.id))))
      if (chosen.raw) legend.append(el("li", { class: "vgd-note" }, t("curves.legend.faint")))
      legend.append(el("li", { class: "vgd-note" }, t("curves.legend.open")))
      return
    }
    const weight = smoothing()
    if (weight > 0) legend.append(el("li", null, swatch("--vgd-1", "", null, 2.4), t("curves.line.smooth")))
    if (chosen.raw || weight === 0) legend.append(el("li", null, swatch("--vgd-1", "", null, 1), t("curves.line.raw")))
    legend.append(el("li", null, swatch("--vgd-2", "2 3", "diamond", 1.4), t("curves.line.heldOut")))
  }

  follow()
  picker.say()
  draw()
  return {
    update(kinds) {
      if (kinds.has("series") || kinds.has("config")) draw()
    },
    restyle() {
      for (const { chart } of figures.values()) chart.restyle()
    },
    destroy() {
      clearTimeout(zoomTimer)
      for (const { chart } of figures.values()) chart.destroy()
      for (const [id, other] of others) {
        other.off()
        if (other.data.window) other.data.zoom(null, null)
        store.release(id)
      }
      if (data.window) data.zoom(null, null)
    },
  }
}

function clamp(value) {
  return Number.isFinite(value) ? Math.min(0.99, Math.max(0, value)) : 0.6
}
