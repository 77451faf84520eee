/** The settings of the headless page, which has no ComfyUI to keep them: in this browser, with ComfyUI's names. */

import { listeners } from "../lib/backend.mjs"

const PREFIX = "vgrpo:"
const DEFAULTS = { "VGRPO.Cancel": "detach", "VGRPO.RefreshSeconds": 2, "VGRPO.Smoothing": 0.6, "VGRPO.Theme": "auto" }

/** @returns {{get: (id: string) => any, set: (id: string, value: any) => void, onChange: (id: string, fn: (value: any) => void) => () => void}} */
export function pageSettings(storage = browserStorage()) {
  const told = new Map()
  return {
    get(id) {
      try {
        const found = storage?.getItem(PREFIX + id)
        return found === null || found === undefined ? DEFAULTS[id] : JSON.parse(found)
      } catch {
        return DEFAULTS[id]
      }
    },
    set(id, value) {
      try {
        storage?.setItem(PREFIX + id, JSON.stringify(value))
      } catch {
        // A browser that keeps nothing: it holds until the page is left.
      }
      told.get(id)?.tell(value)
    },
    onChange(id, fn) {
      if (!told.has(id)) told.set(id, listeners())
      return told.get(id).add(fn)
    },
  }
}

function browserStorage() {
  try {
    return window.localStorage
  } catch {
    return null
  }
}
