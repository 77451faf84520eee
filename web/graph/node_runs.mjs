/**
 * Which run a V-GRPO Train LoRA node shows.
 *
 * Three sources, so that it is found again after a reload, in another browser and in a workflow saved long ago:
 * what the server says when the node runs (event `vgrpo.node`, or the node's output), kept in a property that is saved with
 * the workflow; and the origin that each run keeps, for a page that was not there when it was said. The later one counts.
 */

import { capture, nodeById, rootGraph } from "./access.mjs"

export const TYPE = "VGRPOTrainLoRA"
const PROPERTY = "vgrpo_run"

/** Writes "<run> <node id> <time>" to a node or its serialised form. The id tells a copy of the node from the node itself. */
export function writeProperty(node, run, time) {
  node.properties = { ...node.properties, [PROPERTY]: `${run} ${node.id} ${Math.round(time)}` }
}

function readProperty(node) {
  const [run, id, time] = String(node.properties?.[PROPERTY] ?? "").split(" ")
  return run && id === String(node.id) ? { run, time: Number(time) || 0 } : null
}

/**
 * @param {{app: object, api: object, store: object, changed: (node: object) => void}} given changed: a node's run is another
 * @returns {{runOf: (node: object) => string|null, stop: () => void}}
 */
export function followNodes({ app, api, store, changed }) {
  const heard = new Map() // "<workflow> <node>" -> {run, time}: an undone step must not forget a run
  const named = new Map() // "<node> <run>" -> workflow, as the server named it

  function learn(node, executionId, run, time) {
    heard.set(`${rootGraph(app)?.id} ${executionId}`, { run, time })
    const kept = readProperty(node)
    const own = started(node)
    // What is kept stays as it is while it says the same: to queue again is no change of the workflow.
    if (kept?.run !== run || (own && own.run !== run && own.time > kept.time)) {
      writeProperty(node, run, time)
      capture(app)
    }
    if (!store.runs.has(run)) store.refresh().catch(() => {})
    changed(node)
  }

  function trainer(executionId) {
    const node = nodeById(app, executionId)
    return node && (node.comfyClass ?? node.type) === TYPE ? node : null
  }

  function said({ detail }) {
    const { run, node: id, workflow = null, time } = detail ?? {}
    if (typeof run !== "string" || id === undefined || id === null) return
    named.set(`${id} ${run}`, workflow)
    const node = trainer(id)
    if (node && (workflow === null || workflow === rootGraph(app)?.id)) learn(node, id, run, time ?? Date.now() / 1000)
  }

  function executed({ detail }) {
    const run = detail?.output?.vgrpo_run?.[0]
    const id = detail?.display_node ?? detail?.node
    const node = typeof run === "string" ? trainer(id) : null
    if (!node) return
    // The graph in sight may be another than the one that was queued, with a node of the same number.
    const workflow = named.get(`${id} ${run}`) ?? null
    if (workflow === null || workflow === rootGraph(app)?.id) learn(node, id, run, Date.now() / 1000)
  }

  /** The newest run that this very node started. */
  function started(node) {
    const workflow = rootGraph(app)?.id
    for (const id of store.order) {
      const entry = store.runs.get(id)
      const origin = entry?.origin
      if (origin?.workflow && origin.workflow === workflow && nodeById(app, origin.node) === node)
        return { run: id, time: entry.started ?? 0 }
    }
    return null
  }

  function runOf(node) {
    const candidates = [readProperty(node), heardOf(node), started(node)].filter(Boolean)
    // One that is gone counts only when there is no other: then the node says that it is gone.
    const here = store.loaded ? candidates.filter(({ run }) => store.runs.has(run)) : candidates
    return (
      (here.length ? here : candidates).reduce((best, each) => (best && best.time >= each.time ? best : each), null)?.run ??
      null
    )
  }

  function heardOf(node) {
    const workflow = rootGraph(app)?.id
    for (const [key, found] of heard) {
      const [of, id] = key.split(" ")
      if (of === String(workflow) && nodeById(app, id) === node) return found
    }
    return null
  }

  api.addEventListener("vgrpo.node", said)
  api.addEventListener("executed", executed)
  return {
    runOf,
    stop() {
      api.removeEventListener("vgrpo.node", said)
      api.removeEventListener("executed", executed)
    },
  }
}
