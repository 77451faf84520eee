/**
 * What a run's series say is going wrong. Pure functions of numbers: no page, no text.
 *
 * A finding is {kind, level: "warning"|"error", iteration, values}: `kind` names the texts "warnings.<kind>" (what is seen) and
 * "warnings.<kind>.try" (what to do about it), `values` what they mention.
 *
 * A table is {x, columns: Map name -> (number|null)[]}. Long runs come thinned, so a window is counted in iterations and is
 * widened to enough rows where rows are far apart.
 */

const FLAT_ITERATIONS = 20
const FLAT_SHARE = 1 / 20 // of the iterations done, where that is more: late in a long run progress is slower
const RECENT_ITERATIONS = 20
const MIN_ROWS = 10
const MUCH_ZERO_VARIANCE = 0.5
const NOISE_SHARE_OF_CLIP = 1 / 5
const DRIFT_MONITORS = ["saturation", "high_frequency"]
const DRIFT_UP = 0.3
const DRIFT_DOWN = 0.6

/**
 * All findings, the gravest first.
 * @param {{train: object, evaluate: object}} series
 * @param {{clipEps?: number|null, trained?: string[]}} known from the configuration; `trained` are the rewards in the objective
 */
export function findWarnings(series, { clipEps = null, trained = [] } = {}) {
  const train = series?.train
  if (!train || train.x.length === 0) return []
  return [
    nanOutputs(train),
    skippedSteps(train),
    rewardHacking(train, trained),
    zeroVariance(train),
    ratioNoise(train, clipEps),
    rewardFlat(train),
  ].filter(Boolean)
}

/** The total reward has found no new best for 20 iterations (in long runs a twentieth of them), beyond its own noise. */
export function rewardFlat(train) {
  const { x, y } = points(train, "reward/total/mean")
  const last = x.length - 1
  if (last < 5 || x[last] - x[0] < FLAT_ITERATIONS) return null
  const wait = Math.max(FLAT_ITERATIONS, Math.round((x[last] - x[0]) * FLAT_SHARE))
  const smooth = y.map((_, i) => average(y.slice(Math.max(0, i - 4), i + 1)))
  const noise = spread(y.map((value, i) => value - smooth[i]))
  const since = x[last] - wait
  const split = Math.max(
    1,
    Math.min(
      x.findIndex((value) => value > since),
      last - FLAT_ITERATIONS + 1,
    ),
  )
  const from = Math.min(4, split - 1) // the first averages are over too few rows to be a best
  const before = Math.max(...finiteOr(smooth.slice(from, split), smooth[split - 1]))
  const now = Math.max(...smooth.slice(split))
  if (now > before + noise / 4) return null
  const best = smooth.indexOf(Math.max(...smooth))
  const flatSince = best < split ? x[best] : x[split - 1]
  return {
    kind: "rewardFlat",
    level: "warning",
    iteration: x[last],
    values: { iterations: x[last] - flatSince, since: flatSince },
  }
}

/** In more than half of the prompt groups all outputs score the same: these groups teach nothing. */
export function zeroVariance(train) {
  const { x, y } = recent(points(train, "advantage/frac_zero_std"))
  const share = average(y)
  if (!(share > MUCH_ZERO_VARIANCE)) return null
  return { kind: "zeroVariance", level: "warning", iteration: x[x.length - 1], values: { percent: Math.round(share * 100) } }
}

/** Before any update the ratio is 1; what it differs by is numerical noise, and must be small beside the clip. */
export function ratioNoise(train, clipEps) {
  if (!(clipEps > 0)) return null
  const { x, y } = recent(points(train, "ratio/noise"))
  const noise = Math.max(...finiteOr(y, 0))
  const limit = clipEps * NOISE_SHARE_OF_CLIP
  if (!(noise > limit)) return null
  return {
    kind: "ratioNoise",
    level: "warning",
    iteration: x[x.length - 1],
    values: { noise: noise.toExponential(1), limit: limit.toExponential(1), clip: String(clipEps) },
  }
}

/** The reward rises while pictures become garish, flat or noisy: it may be won by a trick. */
export function rewardHacking(train, trained = []) {
  const reward = change(points(train, "reward/total/mean"))
  if (!reward || !(reward.difference > 2 * reward.error)) return null
  for (const name of DRIFT_MONITORS) {
    if (trained.includes(name)) continue
    const drift = change(points(train, `reward/${name}/mean`))
    if (!drift || Math.abs(drift.difference) <= 3 * drift.error) continue
    const relative = drift.difference / Math.max(Math.abs(drift.first), 1e-6)
    if (relative < DRIFT_UP && relative > -DRIFT_DOWN) continue
    return {
      kind: relative > 0 ? "rewardHackingUp" : "rewardHackingDown",
      level: "warning",
      iteration: drift.iteration,
      values: {
        monitor: name,
        first: short(drift.first),
        last: short(drift.last),
        percent: Math.round(Math.abs(relative) * 100),
      },
    }
  }
  return null
}

/** Outputs that a training reward could not score, lately. */
export function nanOutputs(train) {
  const { x, y } = recent(points(train, "reward/nan_outputs"))
  const outputs = y.reduce((sum, value) => sum + value, 0)
  const total = recentColumn(train, "reward/total/mean")
  const unscored = total.length > 0 && total[total.length - 1] === null
  if (!(outputs > 0) && !unscored) return null
  const newest = train.x[train.x.length - 1]
  return {
    kind: unscored ? "nanReward" : "nanOutputs",
    level: "error",
    iteration: newest,
    values: { outputs: Math.round(outputs), iterations: x.length ? newest - x[0] + 1 : 1 },
  }
}

/** Gradient steps left out because no finite gradient came. */
export function skippedSteps(train) {
  const { x, y } = recent(points(train, "steps/skipped"))
  const steps = y.reduce((sum, value) => sum + value, 0)
  if (!(steps > 0)) return null
  return { kind: "skippedSteps", level: "error", iteration: x[x.length - 1], values: { steps: Math.round(steps) } }
}

// Series

/** The finite points of a column. */
function points(table, name) {
  const column = table.columns.get(name)
  const x = []
  const y = []
  if (column) {
    for (let i = 0; i < table.x.length; i += 1) {
      if (Number.isFinite(column[i])) {
        x.push(table.x[i])
        y.push(column[i])
      }
    }
  }
  return { x, y }
}

function recent({ x, y }) {
  const start = recentStart(x)
  return { x: x.slice(start), y: y.slice(start) }
}

function recentColumn(table, name) {
  const column = table.columns.get(name)
  return column ? column.slice(recentStart(table.x)) : []
}

function recentStart(x) {
  const since = x[x.length - 1] - RECENT_ITERATIONS
  const start = x.findIndex((value) => value > since)
  return Math.max(0, Math.min(start, x.length - MIN_ROWS))
}

/** How the last tenth (at least ten rows) differs from the first; null while there are too few rows. */
function change({ x, y }) {
  const rows = Math.max(MIN_ROWS, Math.floor(y.length / 10))
  if (y.length < 2 * rows) return null
  const head = y.slice(0, rows)
  const tail = y.slice(-rows)
  const first = average(head)
  const last = average(tail)
  const error = Math.sqrt((spread(head) ** 2 + spread(tail) ** 2) / rows)
  return { first, last, difference: last - first, error, iteration: x[x.length - 1] }
}

function average(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : NaN
}

function spread(values) {
  const mean = average(values)
  return values.length > 1 ? Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1)) : 0
}

function finiteOr(values, fallback) {
  return values.length ? values : [fallback]
}

function short(value) {
  return String(Number(value.toPrecision(3)))
}
