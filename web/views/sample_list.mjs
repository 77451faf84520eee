/** The held-out pictures of a run, by iteration, prompt and seed: pure, but for asking the server for scores. */

/**
 * @typedef {{iteration: number, folder: string, prompts: string[], seeds: (string|number)[], perPrompt: number, names: Map<string, string>,
 *   scores: Record<string, (number|null)[]>|null, means: Record<string, number>}} Evaluation
 */

/**
 * All evaluations, iterations rising. What an entry leaves out (null) is as in the one before: prompts and seeds stay the same in a run.
 * @returns {Evaluation[]}
 */
export function evaluationsOf(detail) {
  const found = []
  let known = { prompts: [], seeds: [], seeds_per_prompt: 1, files: [] }
  let names = new Map()
  for (const entry of detail?.samples ?? []) {
    for (const key of Object.keys(known))
      if (entry[key] !== null && entry[key] !== undefined) known = { ...known, [key]: entry[key] }
    if (entry.files || !names.size) names = byPlace(known.files)
    found.push({
      iteration: entry.iteration,
      folder: entry.folder,
      prompts: known.prompts,
      seeds: known.seeds,
      perPrompt: Math.max(1, known.seeds_per_prompt),
      names,
      scores: entry.scores ?? null,
      means: entry.means ?? {},
    })
  }
  return found
}

/** "row,member" -> file name. */
function byPlace(files) {
  const names = new Map()
  for (const file of files) {
    const match = /^p(\d+)-s(\d+)\.png$/.exec(file)
    if (match) names.set(`${Number(match[1])},${Number(match[2])}`, file)
  }
  return names
}

/** One picture, or null where it is missing: its path in the run, prompt and seed. */
export function pictureAt(evaluation, row, member) {
  const name = evaluation?.names.get(`${row},${member}`)
  if (!name) return null
  const seed = evaluation.seeds[row * evaluation.perPrompt + member]
  return {
    path: `${evaluation.folder}/${name}`,
    prompt: evaluation.prompts[row] ?? "",
    seed: seed === undefined ? "" : String(seed),
    iteration: evaluation.iteration,
  }
}

/** The scores of one picture by reward; empty while they are not here. */
export function scoresAt(scores, evaluation, row, member) {
  return Object.entries(scores ?? {}).map(([name, values]) => [name, values?.[row * evaluation.perPrompt + member] ?? null])
}

/** The place of the evaluation at an iteration, else of the last before it. */
export function placeOf(evaluations, iteration) {
  let place = evaluations.length - 1
  while (place > 0 && evaluations[place].iteration > iteration) place -= 1
  return Math.max(0, place)
}

/** Asks for scores that the run's description leaves out, once for each evaluation. */
export function scoreSource(backend, runId) {
  const asked = new Map()
  return (evaluation) => {
    if (evaluation.scores) return Promise.resolve(evaluation.scores)
    const key = evaluation.iteration
    if (!asked.has(key)) {
      asked.set(
        key,
        backend.get(`/vgrpo/runs/${runId}/samples/${key}`).then(
          (entry) => entry.scores ?? {},
          (error) => {
            asked.delete(key)
            throw error
          },
        ),
      )
      if (asked.size > 64) asked.delete(asked.keys().next().value)
    }
    return asked.get(key)
  }
}
