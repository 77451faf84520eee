/** The panel's settings in ComfyUI. Ids and values of VGRPO.Cancel are read by the server too (nodes/training_flow.py). */

import { listeners } from "./backend.mjs"
import { t } from "./text.mjs"

const GROUP = "V-GRPO"
const DEFAULTS = { "VGRPO.Cancel": "detach", "VGRPO.RefreshSeconds": 1, "VGRPO.Smoothing": 0.6 }
const changed = new Map() // id -> listeners

/** What registerExtension takes. */
export function settingDefinitions() {
  const common = (id) => ({ id, defaultValue: DEFAULTS[id], onChange: (value) => changed.get(id)?.tell(value) })
  const range = (min, max, step) => ({ type: "slider", attrs: { min, max, step } })
  return [
    {
      ...common("VGRPO.Cancel"),
      category: [GROUP, t("settings.group.training"), "Cancel"],
      name: t("settings.cancel"),
      tooltip: t("settings.cancelTip"),
      type: "combo",
      options: ["detach", "pause", "stop"].map((value) => ({ value, text: t(`settings.cancel.${value}`) })),
    },
    {
      ...common("VGRPO.RefreshSeconds"),
      category: [GROUP, t("settings.group.panel"), "RefreshSeconds"],
      name: t("settings.refresh"),
      tooltip: t("settings.refreshTip"),
      ...range(0.25, 10, 0.25),
    },
    {
      ...common("VGRPO.Smoothing"),
      category: [GROUP, t("settings.group.panel"), "Smoothing"],
      name: t("settings.smoothing"),
      tooltip: t("settings.smoothingTip"),
      ...range(0, 0.95, 0.05),
    },
  ]
}

/**
 * The values, as views see them. An unknown id is undefined; a stored value that is out of place is the default.
 * @param {object} app
 */
export function settings(app) {
  return {
    get(id) {
      const value = app.extensionManager?.setting?.get?.(id)
      const usual = DEFAULTS[id]
      return typeof value === typeof usual && (typeof value !== "number" || Number.isFinite(value)) ? value : (usual ?? value)
    },
    set: (id, value) => app.extensionManager?.setting?.set?.(id, value),
    onChange(id, fn) {
      if (!changed.has(id)) changed.set(id, listeners())
      return changed.get(id).add(fn)
    },
  }
}
