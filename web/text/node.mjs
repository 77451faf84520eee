/** English texts under "node."; see lib/text.mjs. */
export const texts = {
  "node.none": "No run yet: queue this graph.",
  "node.gone": "Its run is gone: queue this graph for a new one.",
  "node.status": "State of the training",
  "node.iteration": "{iteration} of {iterations}",
  "node.left": "{time} left",
  "node.reward": "reward {last} ({change})",
  "node.curve": "Reward curve, from {first} to {last}",
  "node.noCurve": "No reward curve yet",
  "node.open": "Open",
  "node.openTitle": "Open run {run} in the bottom panel",
  "node.grid": "The latest pictures of run {run}; show them larger",
  "node.reconnecting": "connection lost",
}
