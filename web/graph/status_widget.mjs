/** Puts the status widget on V-GRPO Train LoRA nodes and keeps it up to date. */

import { createNodeStatus } from "../views/node_status.mjs"
import { followNodes, TYPE } from "./node_runs.mjs"

const NAME = "vgrpo_status"
const MIN_HEIGHT = 148
const MIN_WIDTH = 300

/**
 * @param {object} context app, api, store, backend, t, open, and begin(): called when there is a node that needs the runs
 * @returns {{nodeCreated: (node: object) => void, update: () => void}} hooks for the extension
 */
export function statusWidgets(context) {
  const { app, api, store, begin } = context
  const shown = new Map() // node -> its widget's update
  const nodes = followNodes({ app, api, store, changed: (node) => shown.get(node)?.() })
  let planned = false

  function update() {
    if (planned || !shown.size) return
    planned = true
    // A graph that is loaded adds its nodes first and gives them their properties after.
    requestAnimationFrame(() => {
      planned = false
      for (const each of shown.values()) each()
    })
  }

  function ask(node) {
    const run = nodes.runOf(node)
    return { run, shows: (path) => showsItself(app, node, `vgrpo/${run}/${path}`) }
  }

  function nodeCreated(node) {
    if ((node.comfyClass ?? node.type) !== TYPE || typeof node.addDOMWidget !== "function") return
    const status = createNodeStatus(context, () => ask(node))
    const widget = node.addDOMWidget(NAME, "vgrpo-status", status.element, {
      serialize: false, // not a value of the prompt
      getMinHeight: () => MIN_HEIGHT,
      margin: 8,
    })
    widget.serialize = false // and not one of the saved workflow
    chain(node, "onAdded", () => {
      begin()
      shown.set(node, status.update)
      update()
    })
    chain(node, "onRemoved", () => shown.delete(node))
    chain(node, "onConfigure", update)
    const [width, height] = node.computeSize()
    node.setSize([Math.max(node.size[0], width, MIN_WIDTH), Math.max(node.size[1], height)])
  }

  store.subscribe(update)
  return { nodeCreated, update }
}

/** Whether the node's own preview is this very picture: twice would be once too often. */
function showsItself(app, node, path) {
  const outputs = app.nodeOutputs ?? {}
  const own = outputs[node.id] ?? outputs[String(node.id)]
  return Boolean(own?.images?.some?.((image) => `${image.subfolder}/${image.filename}` === path))
}

function chain(node, name, after) {
  const before = node[name]
  node[name] = function (...given) {
    const result = before?.apply(this, given)
    after(...given)
    return result
  }
}
