/**
 * What can be done with a run, once for every place that has buttons for it: which actions there are now, and doing one.
 * An action says what came of it through `context.notify`; it never throws.
 */

import { copyText } from "../lib/clipboard.mjs"
import { confirm, showText } from "../lib/dialog.mjs"
import { isActiveStatus } from "../lib/status.mjs"

/** Whether a process works on the run, or is about to. */
export function isActive(run) {
  return isActiveStatus(run.status)
}

/**
 * The names of the actions that make sense now, the most wanted first. `first` are worth a button of their own.
 * @returns {{first: string[], more: string[]}}
 */
export function available(run, { backend, graph, open }) {
  const server = new Set(backend.can.control ? (run.actions ?? []) : [])
  const has = (action) => (server.has(action) ? action : null)
  const active = isActive(run)
  const first = [
    open && "open",
    has("pause"),
    server.has("resume") && (active ? "resume" : "restart"),
    active && has("stop"),
    !active && graph && run.status === "finished" && "addLora",
  ]
  const more = [
    has("checkpoint"),
    has("sample"),
    graph && !(run.status === "finished" && !active) && "addLora",
    graph && run.thumbnail && "sendGrid",
    graph && run.origin !== null && "openWorkflow", // a run of the command line has none
    "reveal",
    "command",
    !active && has("delete"),
  ]
  return { first: first.filter(Boolean), more: more.filter(Boolean) }
}

/** Does it. Resolves to whether it was done; what came of it has been said by then. */
export async function perform(action, run, context) {
  const { notify, t } = context
  try {
    const said = await DO[action](run, context)
    if (said) notify(said, "success")
    return said !== null
  } catch (error) {
    notify(t("cards.failed", { name: run.name || run.id, reason: error.message }), "error")
    return false
  }
}

/** Each returns what to say, "" for nothing, null if the user thought better of it. */
const DO = {
  async open(run, { open }) {
    await open(run.id, {})
    return ""
  },
  pause: ask("pause"),
  resume: ask("resume"),
  restart: ask("restart"),
  stop: ask("stop"),
  checkpoint: ask("checkpoint"),
  sample: ask("sample"),
  async delete(run, { store, t }) {
    const sure = await confirm({
      title: t("cards.deleteTitle"),
      text: t("cards.deleteText"),
      detail: run.id,
      action: t("cards.deleteAction"),
      danger: true,
    })
    if (!sure) return null
    await store.act(run.id, "delete")
    return t("cards.deleted", { name: run.name || run.id })
  },
  async command(run, { backend, t }) {
    const { command } = await backend.get(`/vgrpo/runs/${run.id}/command`)
    if (await copyText(command)) return t("cards.copied")
    await showText({ title: t("cards.commandShown"), content: command })
    return ""
  },
  async reveal(run, { backend, t }) {
    const answer = await backend.post(`/vgrpo/runs/${run.id}/reveal`, {})
    if (answer.opened) return t("cards.revealed")
    await showText({ title: t("cards.folder"), text: t("cards.folderText"), content: answer.path })
    return ""
  },
  addLora: (run, { graph }) => graph.addLoraLoader(run),
  sendGrid: (run, { graph }) => graph.sendGrid(run),
  openWorkflow: (run, { graph }) => graph.openWorkflow(run),
}

function ask(action) {
  return async (run, { store, t }) => {
    await store.act(run.id, action)
    return t(`cards.asked.${action}`, { name: run.name || run.id })
  }
}
