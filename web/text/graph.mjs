/** English texts under "graph."; see lib/text.mjs. */
export const texts = {
  "graph.notReady": "the graph is not ready; open a workflow first",
  "graph.noNode": "ComfyUI has no node {type}; restart it after an update",
  "graph.noLora": "this run has no LoRA yet: it saves one with its first checkpoint",
  "graph.loraAdded": "LoRA loader added with {lora}",
  "graph.runLoraAdded": "Load Run and Apply Run LoRA added with {what} of {run}",
  "graph.latest": "the newest checkpoint",
  "graph.iteration": "iteration {iteration}",
  "graph.wiredBehind": "wired behind {node}",
  "graph.wiredBetween": "wired between {from} and {to}",
  "graph.notWired": "not wired: no node with a model was selected",
  "graph.gridAdded": "Load Run added with iteration {iteration} of {run}",
  "graph.noGrid": "this run has no pictures yet",
  "graph.openTitle": "Open the workflow of this run?",
  "graph.openText": "It opens in a tab of its own. What is in the graph now stays in its tab, but is not saved by this.",
  "graph.openAction": "Open workflow",
  "graph.opened": "The workflow of {run} is open",
}
