/** An evaluation's pictures into the graph: Load Run with the iteration chosen. */

import { t } from "../lib/text.mjs"
import { addNode, changing, middle, setWidget, show, shownGraph } from "./access.mjs"

/**
 * @param {object} app
 * @param {object} run a description
 * @param {number|null} iteration of the evaluation; null for the newest
 * @returns {Promise<string>} what was done, in words
 */
export async function addGrid(app, run, iteration = null) {
  const wanted = iteration ?? run.samples?.at(-1)?.iteration ?? null
  if (wanted === null) throw new Error(t("graph.noGrid"))
  const graph = shownGraph(app)
  return changing(app, graph, async () => {
    const node = addNode(graph, "VGRPOLoadRun", middle(app))
    await setWidget(app, node, "run", run.id)
    await setWidget(app, node, "checkpoint", "iteration")
    await setWidget(app, node, "iteration", wanted)
    show(app, node)
    return t("graph.gridAdded", { iteration: wanted, run: run.id })
  })
}
