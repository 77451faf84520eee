/** The graph that started a run, back on the page. */

import { confirm } from "../lib/dialog.mjs"
import { t } from "../lib/text.mjs"
import { writeProperty } from "./node_runs.mjs"

/** Resolves to what was done in words, or to null if the user thought better of it. */
export async function restore(app, backend, run) {
  const workflow = await backend.get(`/vgrpo/runs/${run.id}/workflow`)
  const sure = await confirm({
    title: t("graph.openTitle"),
    text: t("graph.openText"),
    detail: run.id,
    action: t("graph.openAction"),
  })
  if (!sure) return null
  mark(workflow, run)
  // With a name it becomes a workflow of its own, in a tab where there are tabs.
  await app.loadGraphData(workflow, true, true, run.id)
  return t("graph.opened", { run: run.id })
}

/** The node that started the run shows it again, also where the server cannot say which node that was. */
function mark(workflow, run) {
  const trainers = (workflow?.nodes ?? []).filter((node) => node.type === "VGRPOTrainLoRA")
  const node =
    trainers.find((each) => String(each.id) === String(run.origin?.node)) ?? (trainers.length === 1 ? trainers[0] : null)
  if (node) writeProperty(node, run.id, Date.now() / 1000)
}
