/**
 * Curves as tables: x rises strictly, every column is as long as x, null where there is no value.
 *
 * @typedef {{x: number[], columns: Map<string, (number|null)[]>}} Table
 */

/** The kinds of events whose metrics make the tables. */
export const TABLES = { iteration: "train", evaluation: "evaluate" }

/** @returns {Table} */
export function emptyTable() {
  return { x: [], columns: new Map() }
}

/** A table from the series route's answer; a column of another length is padded or cut. */
export function tableFrom(answer) {
  const x = Array.isArray(answer?.x) ? answer.x : []
  const columns = new Map()
  for (const [name, values] of Object.entries(answer?.columns ?? {})) columns.set(name, fit(values, x.length))
  return { x, columns }
}

/**
 * Puts an iteration's metrics into a table, in place: at its end, or over what is there for that iteration.
 * @param {Table} table
 * @param {number} iteration
 * @param {Record<string, number|null>} metrics
 */
export function put(table, iteration, metrics) {
  const { x, columns } = table
  let at = x.length
  while (at > 0 && x[at - 1] >= iteration) at -= 1
  if (x[at] !== iteration) {
    x.splice(at, 0, iteration)
    for (const values of columns.values()) values.splice(at, 0, null)
  } else {
    for (const values of columns.values()) values[at] = null
  }
  for (const [name, value] of Object.entries(metrics ?? {})) {
    if (!columns.has(name)) columns.set(name, new Array(x.length).fill(null))
    columns.get(name)[at] = typeof value === "number" && Number.isFinite(value) ? value : null
  }
}

/** Takes back every point after `iteration`, in place: a resumed run does those again. Returns whether there were any. */
export function takeBack(table, iteration) {
  let length = table.x.length
  while (length > 0 && table.x[length - 1] > iteration) length -= 1
  if (length === table.x.length) return false
  table.x.length = length
  for (const values of table.columns.values()) values.length = length
  return true
}

/** Puts an event into {train, evaluate}, in place. Returns whether anything changed. */
export function apply(series, event) {
  if (!Number.isInteger(event.iteration)) return false
  if (event.type === "resumed") {
    const train = takeBack(series.train, event.iteration)
    return takeBack(series.evaluate, event.iteration) || train
  }
  const table = series[TABLES[event.type]]
  if (!table || !event.metrics) return false
  put(table, event.iteration, event.metrics)
  return true
}

/** Makes `table` hold what `other` holds, and stay the same object. */
export function become(table, other) {
  table.x = other.x
  table.columns = other.columns
}

/**
 * The whole run with a stretch of it in more detail: `fine` from `from` to `to`, `coarse` around it.
 * @returns {Table}
 */
export function merged(coarse, fine, from, to) {
  const before = coarse.x.findIndex((x) => x >= from)
  const head = before < 0 ? coarse.x.length : before
  const after = coarse.x.findIndex((x) => x > to)
  const tail = after < 0 ? coarse.x.length : after
  const middle = fine.x.map((x, k) => (x >= from && x <= to ? k : -1)).filter((k) => k >= 0)
  const columns = new Map()
  for (const name of new Set([...coarse.columns.keys(), ...fine.columns.keys()])) {
    const [rough, exact] = [coarse.columns.get(name), fine.columns.get(name)]
    const value = (values, k) => values?.[k] ?? null
    const whole = []
    for (let k = 0; k < head; k += 1) whole.push(value(rough, k))
    for (const k of middle) whole.push(value(exact, k))
    for (let k = tail; k < coarse.x.length; k += 1) whole.push(value(rough, k))
    columns.set(name, whole)
  }
  return { x: [...coarse.x.slice(0, head), ...middle.map((k) => fine.x[k]), ...coarse.x.slice(tail)], columns }
}

function fit(values, length) {
  const found = Array.isArray(values) ? values.slice(0, length) : []
  while (found.length < length) found.push(null)
  return found
}
