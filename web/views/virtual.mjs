/** A grid of any size of which only the cells in sight are in the page; moved through by arrow keys. */

import { el } from "../lib/dom.mjs"

const AROUND = 1 // cells beyond each edge, so that slow scrolling shows no holes

/**
 * @param {HTMLElement} element gets the scrolling grid
 * @param {object} options
 * @param {string} options.label what the grid is, for screen readers
 * @param {(row: number, column: number) => HTMLElement} options.cell a focusable element
 * @param {((row: number) => HTMLElement)|null} [options.side] a heading left of each row
 * @param {((column: number) => HTMLElement)|null} [options.head] a heading above each column
 * @param {(row: number, column: number) => boolean} [options.exists] whether there is a cell; all, unless told
 * @returns {{node: HTMLElement, resize: (size: object) => void, refresh: () => void, reveal: (row: number, column: number, focus?: boolean) => void,
 *   each: (fn: (node: HTMLElement, row: number, column: number) => void) => void, eachHead: (fn: (node: HTMLElement, column: number) => void) => void,
 *   destroy: () => void}}
 */
export function virtualGrid(element, { label, cell, side = null, head = null, exists = () => true }) {
  const layers = {
    head: el("div", { class: "vgd-v-head" }),
    side: el("div", { class: "vgd-v-side" }),
    body: el("div", { class: "vgd-v-body" }),
  }
  const node = el(
    "div",
    { class: "vgd-v", role: "group", "aria-label": label },
    side && head ? el("div", { class: "vgd-v-corner", "aria-hidden": "true" }) : null,
    head ? layers.head : null,
    side ? layers.side : null,
    layers.body,
  )
  const shown = { head: new Map(), side: new Map(), body: new Map() }
  let size = { rows: 0, columns: 0, width: 1, height: 1, sideWidth: 0, headHeight: 0 }
  let active = { row: 0, column: 0 }
  let frame = 0

  const soon = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0
      render()
    })
  }
  node.addEventListener("scroll", soon, { passive: true })
  node.addEventListener("keydown", move)
  node.addEventListener("focusin", ({ target }) => {
    const at = target.closest("[data-cell]")?.dataset.cell
    if (at) [active.row, active.column] = at.split(",").map(Number)
  })
  const watch = new ResizeObserver(soon)
  watch.observe(node)
  element.append(node)

  /** Cells that are in the page stay as they are; call refresh where their places or contents change. */
  function resize(next) {
    size = { ...size, ...next }
    node.style.setProperty("--v-side", `${side ? size.sideWidth : 0}px`)
    node.style.setProperty("--v-head", `${head ? size.headHeight : 0}px`)
    node.style.setProperty("--v-width", `${size.columns * size.width}px`)
    node.style.setProperty("--v-height", `${size.rows * size.height}px`)
    active = { row: clamp(active.row, size.rows), column: clamp(active.column, size.columns) }
    soon()
  }

  /** All cells anew. */
  function refresh() {
    for (const [name, map] of Object.entries(shown)) {
      map.clear()
      layers[name].replaceChildren()
    }
    soon()
  }

  function window() {
    const wide = node.clientWidth - (side ? size.sideWidth : 0)
    const high = node.clientHeight - (head ? size.headHeight : 0)
    const span = (from, length, unit, count) => [
      Math.max(0, Math.floor(from / unit) - AROUND),
      Math.min(count, Math.ceil((from + Math.max(0, length)) / unit) + AROUND),
    ]
    const [top, bottom] = span(node.scrollTop, high, size.height, size.rows)
    const [left, right] = span(node.scrollLeft, wide, size.width, size.columns)
    return { top, bottom, left, right }
  }

  function render() {
    if (!node.clientHeight) return
    const { top, bottom, left, right } = window()
    const wanted = new Map()
    for (let row = top; row < bottom; row += 1)
      for (let column = left; column < right; column += 1)
        if (exists(row, column)) wanted.set(`${row},${column}`, [row, column])
    sync("body", wanted, ([row, column]) => place(cell(row, column), row, column))
    if (side) sync("side", range(top, bottom), (row) => at(side(row), { top: row * size.height, height: size.height }))
    if (head) sync("head", range(left, right), (column) => at(head(column), { left: column * size.width, width: size.width }))
    for (const [key, item] of shown.body) item.tabIndex = key === `${active.row},${active.column}` ? 0 : -1
    if (![...shown.body.values()].some((item) => item.tabIndex === 0))
      shown.body.values().next().value?.setAttribute("tabindex", "0")
  }

  function place(item, row, column) {
    item.dataset.cell = `${row},${column}`
    return at(item, { top: row * size.height, left: column * size.width, width: size.width, height: size.height })
  }

  function sync(name, wanted, make) {
    const map = shown[name]
    for (const [key, item] of map) {
      if (wanted.has(key) || item.contains(document.activeElement)) continue
      item.remove()
      map.delete(key)
    }
    for (const [key, value] of wanted) {
      if (map.has(key)) continue
      const item = make(value)
      map.set(key, item)
      layers[name].append(item)
    }
  }

  function move(event) {
    const page = Math.max(1, Math.floor(node.clientHeight / size.height) - 1)
    const by = {
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      PageUp: [-page, 0],
      PageDown: [page, 0],
      Home: [0, -size.columns],
      End: [0, size.columns],
    }[event.key]
    if (!by || event.altKey || event.ctrlKey || event.metaKey || event.target.matches("input")) return
    event.preventDefault()
    event.stopPropagation() // the page around has keys of its own
    const row = clamp(active.row + by[0], size.rows)
    const column = clamp(active.column + by[1], size.columns)
    if (exists(row, column)) reveal(row, column, true)
  }

  /** Scrolls no further than needed. */
  function reveal(row, column, focus = false) {
    const wide = node.clientWidth - (side ? size.sideWidth : 0)
    const high = node.clientHeight - (head ? size.headHeight : 0)
    node.scrollLeft = nearest(node.scrollLeft, wide, column * size.width, size.width)
    node.scrollTop = nearest(node.scrollTop, high, row * size.height, size.height)
    active = { row, column }
    render()
    if (focus) shown.body.get(`${row},${column}`)?.focus({ preventScroll: true })
  }

  return {
    node,
    resize,
    refresh,
    reveal,
    each: (fn) => shown.body.forEach((item, key) => fn(item, ...key.split(",").map(Number))),
    eachHead: (fn) => shown.head.forEach((item, key) => fn(item, Number(key))),
    destroy() {
      cancelAnimationFrame(frame)
      watch.disconnect()
      node.remove()
    },
  }
}

function at(item, { top, left, width, height }) {
  if (top !== undefined) item.style.top = `${top}px`
  if (left !== undefined) item.style.left = `${left}px`
  if (width !== undefined) item.style.width = `${width}px`
  if (height !== undefined) item.style.height = `${height}px`
  return item
}

function range(from, to) {
  const found = new Map()
  for (let i = from; i < to; i += 1) found.set(String(i), i)
  return found
}

function nearest(scrolled, view, start, length) {
  if (start < scrolled) return start
  return start + length > scrolled + view ? Math.min(start, start + length - view) : scrolled
}

const clamp = (value, count) => Math.max(0, Math.min(count - 1, value))
