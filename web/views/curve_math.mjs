/** What is done to a curve before it is drawn: pure functions of two arrays of the same length, y with null for gaps. */

/**
 * Exponential smoothing without a bias towards the start. `weight` (0 to 1) is that of the past after one iteration; where rows are
 * further apart (thinned series) it counts that often, so that zooming does not change the curve.
 */
export function smooth(x, y, weight) {
  if (!(weight > 0)) return y.slice()
  const keep = Math.min(weight, 0.999)
  const out = new Array(y.length)
  let sum = 0
  let mass = 0
  let before = null
  for (let i = 0; i < y.length; i += 1) {
    if (!Number.isFinite(y[i])) {
      out[i] = null
      continue
    }
    const past = before === null ? 0 : keep ** Math.max(1, x[i] - before)
    sum = sum * past + y[i] * (1 - past)
    mass = mass * past + (1 - past)
    before = x[i]
    out[i] = sum / mass
  }
  return out
}

/** The rows from..to, and one to each side so that lines run out of the picture; all rows without a range. */
export function within(x, y, range) {
  if (!range) return { x, y }
  let from = lowerBound(x, range[0])
  let to = lowerBound(x, range[1])
  from = Math.max(0, from - 1)
  to = Math.min(x.length, to + 2)
  return { x: x.slice(from, to), y: y.slice(from, to) }
}

/** At most about `most` rows that look the same at that width: the lowest and highest of each stretch, and both ends. Always copies. */
export function thin(x, y, most) {
  const length = x.length
  if (length <= most) return { x: x.slice(), y: y.slice() }
  const stretches = Math.max(1, Math.floor(most / 2) - 1)
  const outX = [x[0]]
  const outY = [y[0]]
  for (let s = 0; s < stretches; s += 1) {
    const from = 1 + Math.floor((s * (length - 2)) / stretches)
    const to = 1 + Math.floor(((s + 1) * (length - 2)) / stretches)
    let low = -1
    let high = -1
    for (let i = from; i < to; i += 1) {
      if (!Number.isFinite(y[i])) continue
      if (low < 0 || y[i] < y[low]) low = i
      if (high < 0 || y[i] > y[high]) high = i
    }
    if (low < 0) continue
    for (const i of low === high ? [low] : [Math.min(low, high), Math.max(low, high)]) {
      outX.push(x[i])
      outY.push(y[i])
    }
  }
  outX.push(x[length - 1])
  outY.push(y[length - 1])
  return { x: outX, y: outY }
}

/** The finite rows of a column; a table without it has none. */
export function finite(table, metric) {
  const column = table?.columns.get(metric)
  const x = []
  const y = []
  if (!column) return { x, y }
  for (let i = 0; i < table.x.length; i += 1) {
    if (Number.isFinite(column[i])) {
      x.push(table.x[i])
      y.push(column[i])
    }
  }
  return { x, y }
}

/** Whether `now` is `before` with rows added at its end. Compares the ends only: a row is replaced there or nowhere. */
export function extended(before, now) {
  const n = before.x.length
  if (!n || now.x.length < n) return false
  return (
    now.x[0] === before.x[0] && now.y[0] === before.y[0] && now.x[n - 1] === before.x[n - 1] && now.y[n - 1] === before.y[n - 1]
  )
}

function lowerBound(x, value) {
  let low = 0
  let high = x.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (x[middle] < value) low = middle + 1
    else high = middle
  }
  return low
}
