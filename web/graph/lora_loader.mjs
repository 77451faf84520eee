/** A run's LoRA into the graph: stock Load LoRA for a published one, Load Run and Apply Run LoRA for a checkpoint. */

import { t } from "../lib/text.mjs"
import {
  addNode,
  changing,
  getLink,
  getNode,
  linkInto,
  linksFrom,
  middle,
  selected,
  setWidget,
  show,
  shownGraph,
  title,
} from "./access.mjs"

const MODEL = "MODEL"
const LOADER = "LoraLoaderModelOnly"
const BESIDE = 60
const BELOW = 220

/**
 * Puts the LoRA of `run` (a description) into the graph and into the selected model's way. Resolves to what was done, in words.
 * @param {object} app
 * @param {object} run with lora_name (null while it is not in loras) and checkpoints
 * @param {number|null} [iteration] a checkpoint's; without it the finished LoRA, else the newest checkpoint
 */
export async function addLora(app, run, iteration = null) {
  const published = iteration === null ? run.lora_name : null
  if (!published && !run.checkpoints?.length) throw new Error(t("graph.noLora"))
  const graph = shownGraph(app)
  const way = modelWay(graph, selected(app))
  return changing(app, graph, async () => {
    const at = way ? [way.node.pos[0] + way.node.size[0] + BESIDE, way.node.pos[1]] : middle(app)
    const node = addNode(graph, published ? LOADER : "VGRPOApplyRunLoRA", at)
    const wired = connect(graph, way, node)
    if (published) await setWidget(app, node, "lora_name", published)
    else await addSource(app, graph, node, run, iteration)
    show(app, node)
    const what = iteration === null ? t("graph.latest") : t("graph.iteration", { iteration })
    const added = published ? t("graph.loraAdded", { lora: published }) : t("graph.runLoraAdded", { what, run: run.id })
    return `${added}; ${wired}`
  })
}

/** Load Run in front of Apply Run LoRA, with the checkpoint chosen. */
async function addSource(app, graph, apply, run, iteration) {
  const source = addNode(graph, "VGRPOLoadRun", [apply.pos[0], apply.pos[1] + BELOW])
  const slot = apply.inputs.findIndex((input) => input.name === "run")
  source.connect(0, apply, slot)
  await setWidget(app, source, "run", run.id)
  await setWidget(app, source, "checkpoint", iteration === null ? "latest" : "iteration")
  if (iteration !== null) await setWidget(app, source, "iteration", iteration)
}

/**
 * Where a model goes on from what is selected: {node, slot} it comes from, and the inputs it goes to. A node that gives a
 * model is followed by the loader; one that only takes a model, and a reroute on its link, have it put before them.
 */
function modelWay(graph, items) {
  for (const item of items) {
    const slot = item.outputs?.findIndex((output) => output.type === MODEL) ?? -1
    if (slot >= 0) return { node: item, slot, targets: targets(graph, linksFrom(graph, item, slot)) }
  }
  for (const item of items) {
    for (const link of linksBefore(graph, item)) {
      const node = getNode(graph, link.origin_id)
      if (node) return { node, slot: link.origin_slot, targets: targets(graph, [link]) }
    }
  }
  return null
}

/** Links with a model: those into a node, or those through a reroute. */
function linksBefore(graph, item) {
  if (item.inputs)
    return item.inputs.map((input, slot) => (input.type === MODEL ? linkInto(graph, item, slot) : null)).filter(Boolean)
  const through = [...(item.linkIds ?? [])].map((id) => getLink(graph, id))
  return through.filter((link) => link && givesModel(getNode(graph, link.origin_id), link.origin_slot))
}

function givesModel(node, slot) {
  return node?.outputs?.[slot]?.type === MODEL
}

function targets(graph, links) {
  return links.map((link) => ({ node: getNode(graph, link.target_id), slot: link.target_slot })).filter(({ node }) => node)
}

/** Wires the loader in; returns in words what it lies between. */
function connect(graph, way, loader) {
  if (!way) return t("graph.notWired")
  const input = loader.inputs.findIndex((each) => each.type === MODEL)
  const output = loader.outputs.findIndex((each) => each.type === MODEL)
  way.node.connect(way.slot, loader, input)
  for (const { node, slot } of way.targets) loader.connect(output, node, slot)
  if (!way.targets.length) return t("graph.wiredBehind", { node: title(way.node) })
  const names = [...new Set(way.targets.map(({ node }) => title(node)))].join(", ")
  return t("graph.wiredBetween", { from: title(way.node), to: names })
}
