/** Which curves there are, and in which order: pure. */

/**
 * @param {{train: object, evaluate: object}[]} all series of the run, and of those it is compared with
 * @param {{rewards?: Record<string, number>, monitors?: string[]}|null} config what is trained on, as far as it is known
 * @returns {{id: "rewards"|"monitors"|"heldOut", curves: {id: string, title: string, train: string|null, evaluate: string|null, weight: number|null}[]}[]}
 */
export function curvesOf(all, config) {
  const train = columns(all, "train")
  const evaluate = columns(all, "evaluate")
  const weights = config?.rewards ?? {}
  const trained = new Set(Object.keys(weights))
  const names = [...train].map((metric) => /^reward\/(.+)\/mean$/.exec(metric)?.[1]).filter((name) => name && name !== "total")
  const watched = (name) => (trained.size ? !trained.has(name) : (config?.monitors ?? []).includes(name))
  const curve = (name, id = name) => {
    const metric = `reward/${name}/mean`
    const held = `eval/${name}/mean`
    return {
      id,
      title: name,
      train: train.has(metric) ? metric : null,
      evaluate: evaluate.has(held) ? held : null,
      weight: trained.has(name) ? weights[name] : null,
    }
  }
  const rewards = names.filter((name) => !watched(name))
  const monitors = names.filter(watched)
  const known = new Set(["total", ...names].map((name) => `eval/${name}/mean`))
  const alone = [...evaluate].filter((metric) => metric.startsWith("eval/") && !known.has(metric))
  const total = train.has("reward/total/mean") || evaluate.has("eval/total/mean") ? [curve("total", "total")] : []
  return [
    { id: "rewards", curves: [...total, ...rewards.map((name) => curve(name))] },
    { id: "monitors", curves: monitors.map((name) => curve(name)) },
    {
      id: "heldOut",
      curves: alone.map((metric) => ({
        id: metric,
        title: metric.slice(5).replace(/\/mean$/, ""),
        train: null,
        evaluate: metric,
        weight: null,
      })),
    },
  ].filter((group) => group.curves.length)
}

function columns(all, table) {
  const names = new Set()
  for (const series of all) for (const name of series[table].columns.keys()) names.add(name)
  return names
}
