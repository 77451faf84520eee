/**
 * V-GRPO in ComfyUI's page: the sidebar's list of runs, the bottom panel for one, the status on the node, settings, commands.
 * The only file that ComfyUI loads by itself; everything else is imported from here.
 */

import { api } from "../../scripts/api.js"
import { app } from "../../scripts/app.js"
import { createGraph } from "./graph/index.mjs"
import { statusWidgets } from "./graph/status_widget.mjs"
import { comfyBackend } from "./lib/comfy_backend.mjs"
import { confirm } from "./lib/dialog.mjs"
import { settings, settingDefinitions } from "./lib/settings.mjs"
import { createStore } from "./lib/store.mjs"
import { loadStyles } from "./lib/styles.mjs"
import { loadLanguage, t } from "./lib/text.mjs"
import { followTheme } from "./lib/theme.mjs"
import { toaster } from "./lib/toast.mjs"
import * as cards from "./views/cards.mjs"
import * as detail from "./views/detail.mjs"

const SIDEBAR = "vgrpo"
const BOTTOM = "vgrpo-run"
const ICON = "pi pi-chart-line"

const backend = comfyBackend(api, app)
await Promise.all([loadLanguage(backend, app.extensionManager?.setting?.get?.("Comfy.Locale")), loadStyles()])
followTheme()
// ComfyUI logs an error for each message that nobody listens to, and the store begins only when there is something to show.
api.addEventListener("vgrpo.event", () => {})

const chosen = settings(app)
const store = createStore(backend, { refreshSeconds: () => chosen.get("VGRPO.RefreshSeconds") })
const context = {
  app,
  api,
  store,
  backend,
  graph: createGraph(app, backend),
  settings: chosen,
  t,
  open,
  confirm,
  notify: toaster(app),
  begin: () => store.start(),
}
const nodes = statusWidgets(context)

/** Shows a run in the bottom panel. Without an id: the one that was shown last, else the newest. */
function open(runId, options = {}) {
  detail.show(runId ?? undefined, options)
  const panel = app.extensionManager?.bottomPanel
  const inSight = panel ? panel.bottomPanelVisible && panel.activeBottomPanelTab?.id === BOTTOM : run.shown()
  if (!inSight) return app.extensionManager.command.execute(`Workspace.ToggleBottomPanelTab.${BOTTOM}`)
}

/**
 * A tab's content. ComfyUI calls `render` again whenever it draws the tab, and drops what is in it on close: the view is made
 * once for an element, and everything that must last is in the store or in the views' modules.
 */
function tab(view) {
  let element = null
  let mounted = null
  return {
    shown: () => mounted !== null && element.isConnected,
    render(into) {
      if (mounted && element === into && into.hasChildNodes()) return
      mounted?.destroy()
      element = into
      into.classList.add("vg-host")
      store.start()
      mounted = view.mount(into, context)
    },
    destroy() {
      mounted?.destroy()
      mounted = element = null
    },
  }
}

const run = tab(detail)
const runs = tab(cards)

app.registerExtension({
  name: "VGRPO.Panel",
  settings: settingDefinitions(),
  commands: [
    {
      id: "VGRPO.ShowRuns",
      label: t("settings.command.runs"),
      icon: ICON,
      function: () => app.extensionManager.command.execute(`Workspace.ToggleSidebarTab.${SIDEBAR}`),
    },
    { id: "VGRPO.ShowRun", label: t("settings.command.run"), icon: ICON, function: () => open() },
  ],
  menuCommands: [{ path: ["V-GRPO"], commands: ["VGRPO.ShowRuns", "VGRPO.ShowRun"] }],
  bottomPanelTabs: [{ id: BOTTOM, title: t("settings.tab.run"), type: "custom", render: run.render, destroy: run.destroy }],
  setup() {
    app.extensionManager.registerSidebarTab({
      id: SIDEBAR,
      icon: ICON,
      title: t("settings.tab.runs"),
      tooltip: t("settings.tab.runsTip"),
      type: "custom",
      render: runs.render,
      destroy: runs.destroy,
    })
  },
  nodeCreated: nodes.nodeCreated,
  afterConfigureGraph: nodes.update,
})
