/**
 * One small chart that follows live data. It draws only while it can be seen, only as many points as it has pixels, and adds new
 * points to what is drawn. Only plain SVG traces: Plotly's WebGL ones compile code, which a strict CSP forbids.
 *
 * @typedef {object} Line
 * @property {string} key tells lines apart from one drawing to the next
 * @property {string} name shown on hover
 * @property {number[]} x
 * @property {(number|null)[]} y
 * @property {string} color a CSS custom property, "--vgd-1"
 * @property {string} [dash] solid, dash, dot, dashdot, longdash
 * @property {string} [marker] a Plotly symbol; points are then marked
 * @property {number} [width]
 * @property {number} [opacity]
 * @property {boolean} [quiet] left out on hover
 * @property {boolean} [stacked] an area on top of the one before
 */

import { extended, thin, within } from "./curve_math.mjs"
import { palette } from "./paint.mjs"
import { loadPlotly } from "./plotly.mjs"

const MARKER_PX = 8 // markers stand no closer on average; hovering tells of all points all the same
const LIVE_MS = 400 // a chart takes new points at most this often
const PATTERNS = ["", "/", ".", "x"]

/** One chart a frame is drawn, so that a dozen of them never stall scrolling. */
const queue = new Set()
let frame = 0

function enqueue(chart) {
  queue.delete(chart) // so that charts that are to be drawn anew follow each other in their order again
  queue.add(chart)
  if (!frame) frame = requestAnimationFrame(drawNext)
}

function drawNext() {
  const [chart] = queue
  queue.delete(chart)
  frame = queue.size ? requestAnimationFrame(drawNext) : 0
  chart?.draw()
}

export class Chart {
  /**
   * @param {HTMLElement} element where it is drawn; its size is the chart's
   * @param {{backend: object, format?: string, hoverTitle?: string, log?: boolean, limits?: {value: number, name: string}[], onZoom?: (range: number[]|null) => void,
   *   onError?: (error: Error) => void}} options
   */
  constructor(element, options) {
    this.element = element
    this.options = options
    this._lines = []
    this._drawn = null // what Plotly has: {keys, data: [{x, y}], look}
    this._range = null
    this._visible = false
    this._timer = 0
    this._last = 0
    this._destroyed = false
    this._seen = new IntersectionObserver((entries) => {
      this._visible = entries[entries.length - 1].isIntersecting
      if (this._visible) this._soon()
    })
    this._seen.observe(element)
    this._size = new ResizeObserver(() => this._resized())
    this._size.observe(element)
  }

  /** @param {Line[]} lines */
  setLines(lines) {
    this._lines = lines
    this._soon()
  }

  setLog(log) {
    if (this.options.log === log) return
    this.options.log = log
    this._soon(true)
  }

  /** Iterations from..to, or null for all. */
  setRange(range) {
    if (same(range, this._range)) return
    this._range = range
    this._soon(true)
  }

  /** Draws at once: the colours of the page have changed, or what is here is what somebody waits for. */
  redraw() {
    this._soon(true)
  }

  destroy() {
    this._destroyed = true
    clearTimeout(this._timer)
    queue.delete(this)
    this._seen.disconnect()
    this._size.disconnect()
    if (this._drawn) window.Plotly.purge(this.element)
  }

  _soon(now = false) {
    if (!this._visible || this._destroyed) return
    if (now) return enqueue(this)
    if (this._timer || queue.has(this)) return
    const wait = Math.max(0, this._last + LIVE_MS - performance.now())
    this._timer = setTimeout(() => {
      this._timer = 0
      enqueue(this)
    }, wait)
  }

  _resized() {
    if (!this._drawn || !this._visible || !this.element.clientWidth) return
    clearTimeout(this._resizing)
    this._resizing = setTimeout(() => {
      if (this._destroyed) return
      window.Plotly.Plots.resize(this.element)
      this._soon()
    }, 120)
  }

  async draw() {
    if (this._destroyed || !this._visible || !this.element.clientWidth) return
    if (!window.Plotly) {
      try {
        await loadPlotly(this.options.backend)
      } catch (error) {
        if (!this._destroyed) this.options.onError?.(error)
        return
      }
      return this._soon(true)
    }
    clearTimeout(this._timer)
    this._timer = 0
    this._last = performance.now()
    const most = Math.max(200, Math.round(this.element.clientWidth * 1.5))
    const data = this._lines.map((line) => {
      const part = within(line.x, line.y, this._range)
      // A thinned area would not add up with those below it: rows are left out for all alike.
      return line.stacked ? everyNth(part, most) : thin(part.x, part.y, most)
    })
    const look = JSON.stringify([
      this._range,
      this.options.log,
      this.options.limits,
      theme(this.element),
      this._lines.map(styleOf),
    ])
    const before = this._drawn
    if (!before) this._first(data)
    else if (before.look !== look) window.Plotly.react(this.element, this._traces(data), this._layout(), CONFIG)
    else this._live(before.data, data)
    // Plotly keeps the arrays it is given and adds to them: ours are copies.
    this._drawn = { look, data: data.map(({ x, y }) => ({ x: x.slice(), y: y.slice() })) }
  }

  _first(data) {
    window.Plotly.newPlot(this.element, this._traces(data), this._layout(), CONFIG)
    this.element.on("plotly_relayout", (change) => this._zoomed(change))
    this.element.on("plotly_doubleclick", () => this.options.onZoom?.(null))
  }

  /** New points only: added where they follow what is drawn, else the line's points are exchanged. */
  _live(before, data) {
    const grown = { at: [], x: [], y: [] }
    const changed = { at: [], x: [], y: [] }
    data.forEach((now, i) => {
      if (extended(before[i], now)) {
        const n = before[i].x.length
        if (now.x.length > n) push(grown, i, now.x.slice(n), now.y.slice(n))
      } else if (now.x.length || before[i].x.length) push(changed, i, now.x, now.y)
    })
    if (grown.at.length) window.Plotly.extendTraces(this.element, { x: grown.x, y: grown.y }, grown.at)
    if (changed.at.length) window.Plotly.restyle(this.element, { x: changed.x, y: changed.y }, changed.at)
  }

  /** Marks at 1, 2 and 5 of a decade where there are few, else at powers of ten far enough apart. */
  _logTicks() {
    let low = Infinity
    let high = 0
    for (const { y } of this._lines) {
      for (const value of y) {
        if (value > 0 && value < low) low = value
        if (value > high) high = value
      }
    }
    const decades = Math.log10(high / low)
    return decades < 2 ? "D2" : Math.max(1, Math.ceil(decades / 5))
  }

  _zoomed(change) {
    const from = change["xaxis.range[0]"] ?? change["xaxis.range"]?.[0]
    const to = change["xaxis.range[1]"] ?? change["xaxis.range"]?.[1]
    if (from !== undefined && to !== undefined) {
      const range = [Math.max(0, Math.floor(from)), Math.ceil(to)]
      if (!same(range, this._range)) this.options.onZoom?.(range[1] > range[0] ? range : [range[0], range[0] + 1])
    }
  }

  _traces(data) {
    const paint = palette(this.element)
    return this._lines.map((line, i) => {
      const color = paint(line.color)
      const few = data[i].x.length < 2
      return {
        type: "scatter",
        name: plain(line.name),
        x: data[i].x,
        y: data[i].y,
        mode: line.marker || few ? "lines+markers" : "lines",
        opacity: line.opacity ?? 1,
        line: { color, width: line.width ?? 1.5, dash: line.dash ?? "solid" },
        marker: {
          color,
          symbol: line.marker ?? "circle",
          size: 7,
          maxdisplayed: line.sparse ? 12 : this.element.clientWidth / MARKER_PX,
        },
        hoverinfo: line.quiet ? "skip" : "x+y+name",
        ...(line.stacked
          ? {
              stackgroup: "one",
              fillcolor: color,
              fillpattern: {
                shape: PATTERNS[i % PATTERNS.length],
                fgcolor: paint("--vg-bg"),
                bgcolor: color,
                fillmode: "replace",
                size: 6,
                solidity: 0.25,
              },
            }
          : {}),
      }
    })
  }

  _layout() {
    const paint = palette(this.element)
    const ink = paint("--vg-fg")
    const grid = paint("--vgd-grid")
    const paper = paint("--vg-bg")
    const axis = { gridcolor: grid, linecolor: grid, zerolinecolor: grid, tickfont: { size: 11 }, automargin: true }
    return {
      autosize: true,
      margin: { l: 8, r: 10, t: 6, b: 8 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(this.element).fontFamily, size: 12, color: ink },
      showlegend: false,
      dragmode: "zoom",
      hovermode: "x unified",
      hoverlabel: { bgcolor: paper, bordercolor: grid, font: { color: ink, size: 12 }, namelength: 40 },
      xaxis: {
        ...axis,
        hoverformat: "d",
        tickformat: "d",
        unifiedhovertitle: { text: this.options.hoverTitle ?? "" },
        ...(this._range
          ? { range: this._range.slice(), autorange: false }
          : { autorange: true, autorangeoptions: { include: 0 } }),
      },
      yaxis: {
        ...axis,
        fixedrange: true,
        autorange: true,
        type: this.options.log ? "log" : "linear",
        ...(this.options.log ? { dtick: this._logTicks() } : {}),
        ...(this.options.format ? { tickformat: this.options.format } : {}),
        hoverformat: this.options.format ?? ".4~g",
        nticks: 6,
      },
      ...limits(this.options.limits, ink, paper, this.options.log),
    }
  }
}

/** Nothing but what is under the chart itself: no buttons, no tips. */
const CONFIG = { displayModeBar: false, responsive: false, displaylogo: false, showTips: false, doubleClick: false }

/** Dashed lines across, with their names. */
function limits(list, ink, paper, log) {
  const across = (list ?? []).filter(({ value }) => Number.isFinite(value) && (!log || value > 0))
  return {
    shapes: across.map(({ value }) => ({
      type: "line",
      xref: "paper",
      x0: 0,
      x1: 1,
      y0: value,
      y1: value,
      line: { color: ink, width: 1, dash: "dot" },
    })),
    annotations: across.map(({ value, name }) => ({
      xref: "paper",
      x: 1,
      xanchor: "right",
      yanchor: "bottom",
      y: log ? Math.log10(value) : value,
      text: plain(name),
      showarrow: false,
      bgcolor: paper,
      font: { size: 11 },
    })),
  }
}

/** Plotly reads a little markup in texts; names from outside must show as they are. */
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;")
}

function styleOf({ key, name, color, dash, marker, width, opacity, quiet, stacked }) {
  return [key, name, color, dash, marker, width, opacity, quiet, stacked]
}

function everyNth({ x, y }, most) {
  const step = Math.max(1, Math.ceil(x.length / most))
  const keep = (_, i) => i % step === 0
  return { x: x.filter(keep), y: y.filter(keep) }
}

function push(list, at, x, y) {
  list.at.push(at)
  list.x.push(x)
  list.y.push(y)
}

function theme(element) {
  const paint = palette(element)
  return [paint("--vg-fg"), paint("--vg-bg"), paint("--vgd-1")]
}

function same(a, b) {
  return a === b || (a && b && a[0] === b[0] && a[1] === b[1])
}
