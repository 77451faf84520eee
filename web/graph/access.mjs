/** What the panel asks of ComfyUI's graph, in one place, as it differs from version to version. */

import { t } from "../lib/text.mjs"

const GAP = 40
const TITLE = 30
const STEPS = 60

/** The graph in sight: a subgraph when one is open. Throws where there is none yet. */
export function shownGraph(app) {
  const graph = app.canvas?.graph ?? app.graph
  if (!graph) throw new Error(t("graph.notReady"))
  return graph
}

/** The workflow's outermost graph; its id is that of the workflow. */
export function rootGraph(app) {
  return app.rootGraph ?? app.graph?.rootGraph ?? app.graph ?? null
}

/** The node that the server calls by this id: "7", or "12:7" for node 7 in the subgraph of node 12. */
export function nodeById(app, executionId) {
  let graph = rootGraph(app)
  const path = String(executionId ?? "").split(":")
  for (const [at, part] of path.entries()) {
    const node = graph?.getNodeById?.(part) ?? graph?.getNodeById?.(Number(part))
    if (!node) return null
    if (at === path.length - 1) return node
    graph = node.subgraph
  }
  return null
}

export function getNode(graph, id) {
  return graph.getNodeById(id) ?? null
}

export function getLink(graph, id) {
  if (id === null || id === undefined) return null
  return graph.getLink?.(id) ?? graph.links?.get?.(id) ?? graph.links?.[id] ?? null
}

/** The links that leave an output. New frontends warn of reading them off the output itself. */
export function linksFrom(graph, node, slot) {
  const all = graph.links?.values ? [...graph.links.values()] : Object.values(graph.links ?? {})
  return all.filter((link) => String(link.origin_id) === String(node.id) && link.origin_slot === slot)
}

/** The link that comes into an input, null if there is none. */
export function linkInto(graph, node, slot) {
  return node.getInputLink ? (node.getInputLink(slot) ?? null) : getLink(graph, node.inputs[slot].link)
}

/** Selected nodes and reroutes. */
export function selected(app) {
  const canvas = app.canvas
  const items = canvas?.selectedItems ? [...canvas.selectedItems] : Object.values(canvas?.selected_nodes ?? {})
  return items
}

/** A node of that type in the graph, at a free place at or below `pos`. Throws if ComfyUI does not know the type. */
export function addNode(graph, type, pos) {
  const node = globalThis.LiteGraph?.createNode?.(type)
  if (!node) throw new Error(t("graph.noNode", { type }))
  graph.add(node)
  place(graph, node, pos)
  return node
}

/** Changes of the graph as one step for undo; what it shows is drawn anew. */
export async function changing(app, graph, change) {
  graph.beforeChange?.()
  try {
    return await change()
  } finally {
    graph.afterChange?.()
    graph.setDirtyCanvas?.(true, true)
    capture(app)
  }
}

/** Tells the open workflow that its graph differs, so that undo and the draft that survives a reload know. */
export function capture(app) {
  const tracker = app.extensionManager?.workflow?.activeWorkflow?.changeTracker
  if (tracker?.captureCanvasState) tracker.captureCanvasState()
  else tracker?.checkState?.()
}

/** Selects a node, and brings it into sight if the place that was free for it is outside. */
export function show(app, node) {
  const canvas = app.canvas
  if (canvas?.selectItems) canvas.selectItems([node])
  else canvas?.selectNode?.(node, false)
  const area = inSight(app)
  const [x, y] = [node.pos[0] + node.size[0] / 2, node.pos[1] + node.size[1] / 2]
  const there = area && x > area[0] && x < area[0] + area[2] && y > area[1] && y < area[1] + area[3]
  if (!there) canvas?.centerOnNode?.(node)
}

/**
 * Sets a widget; a value that its list lacks (a file made since the page loaded) is looked for by reloading the lists.
 */
export async function setWidget(app, node, name, value) {
  const widget = node.widgets?.find((each) => each.name === name)
  if (!widget) return
  if (widget.type === "combo" && !options(widget).includes(value)) {
    try {
      await app.refreshComboInNodes?.()
    } catch {
      // The value is set all the same: the server has the last word when the graph is queued.
    }
  }
  widget.value = value
  widget.callback?.(value, app.canvas, node)
}

/** What a person calls a node. */
export function title(node) {
  return node.title || node.type || String(node.id)
}

/** The middle of what is in sight, for a node that belongs to none. */
export function middle(app) {
  const area = inSight(app)
  return area ? [area[0] + area[2] / 2 - 150, area[1] + area[3] / 2 - 80] : [100, 100]
}

/** [x, y, width, height] of what the canvas shows, null where it does not say. */
function inSight(app) {
  const area = app.canvas?.visible_area ?? app.canvas?.ds?.visible_area
  return area?.length >= 4 && Number.isFinite(area[0]) && area[2] > 0 ? area : null
}

function options(widget) {
  const values = widget.options?.values
  const found = typeof values === "function" ? values(widget, widget.node) : values
  return Array.isArray(found) ? found : []
}

function place(graph, node, pos) {
  node.pos = [pos[0], pos[1]]
  const others = (graph.nodes ?? graph._nodes ?? []).filter((other) => other !== node)
  for (let step = 0; step < STEPS; step += 1) {
    const hit = others.find((other) => overlap(node, other))
    if (!hit) return
    node.pos = [node.pos[0], hit.pos[1] + hit.size[1] + TITLE + GAP]
  }
}

function overlap(a, b) {
  const apart =
    a.pos[0] + a.size[0] + GAP / 2 <= b.pos[0] ||
    b.pos[0] + b.size[0] + GAP / 2 <= a.pos[0] ||
    a.pos[1] + a.size[1] <= b.pos[1] - TITLE ||
    b.pos[1] + b.size[1] <= a.pos[1] - TITLE
  return !apart
}
