/** What brings a run back into the graph: the only door of this folder. Each resolves to what was done, in words. */

import { addGrid } from "./load_run.mjs"
import { addLora } from "./lora_loader.mjs"
import { restore } from "./workflow.mjs"

/**
 * @param {object} app ComfyUI's app
 * @param {import("../lib/backend.mjs").Backend} backend
 */
export function createGraph(app, backend) {
  /** As it is now: a list's entry has no LoRA's name, and what a view holds may be older than the run. */
  const description = (run) => backend.get(`/vgrpo/runs/${run.id}`)
  return {
    /** Iteration: that checkpoint's LoRA; without it the finished one, else the newest checkpoint. */
    addLoraLoader: async (run, iteration = null) => addLora(app, await description(run), iteration),
    sendGrid: async (run, iteration = null) => addGrid(app, await description(run), iteration),
    /** Null if the user said no. */
    openWorkflow: (run) => restore(app, backend, run),
  }
}
