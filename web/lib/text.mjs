/**
 * All words that the panel says. English is here; another language comes from `locales/<language>/vgrpo.json`, key by key,
 * and what it lacks stays English. Each view keeps its texts under its own prefix in `text/<view>.mjs`.
 */

import { texts as cards } from "../text/cards.mjs"
import { texts as config } from "../text/config.mjs"
import { texts as curves } from "../text/curves.mjs"
import { texts as detail } from "../text/detail.mjs"
import { texts as events } from "../text/events.mjs"
import { texts as graph } from "../text/graph.mjs"
import { texts as health } from "../text/health.mjs"
import { texts as log } from "../text/log.mjs"
import { texts as node } from "../text/node.mjs"
import { texts as page } from "../text/page.mjs"
import { texts as samples } from "../text/samples.mjs"
import { texts as settings } from "../text/settings.mjs"
import { texts as warnings } from "../text/warnings.mjs"

/** What every view may need. */
const common = {
  "status.starting": "starting",
  "status.running": "running",
  "status.paused": "paused",
  "status.stopping": "stopping",
  "status.finished": "finished",
  "status.stopped": "stopped",
  "status.failed": "failed",
  "status.lost": "lost",
  "connection.live": "Connected",
  "connection.reconnecting": "Connection lost; trying again",
  "error.network": "the server does not answer",
  "error.answer": "the server answered {status}",
}

const english = Object.freeze({
  ...common,
  ...page,
  ...cards,
  ...node,
  ...graph,
  ...settings,
  ...detail,
  ...curves,
  ...health,
  ...config,
  ...log,
  ...events,
  ...samples,
  ...warnings,
})

let translated = {}

/**
 * The text of a key with `{name}` replaced by values.name. A key without a text shows as the key.
 * @param {string} key
 * @param {Record<string, unknown>} [values]
 * @returns {string}
 */
export function t(key, values) {
  const found = translated[key] ?? english[key] ?? key
  return values ? found.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole)) : found
}

/**
 * Takes the texts of a language, where there are any; never throws. Call it before the views are mounted.
 * @param {{asset: (path: string) => string}} backend
 * @param {string} language as in navigator.language: de, de-AT, zh-TW
 */
export async function loadLanguage(backend, language) {
  translated = {}
  const wanted = String(language || "en")
  if (/^en\b/i.test(wanted) || !/^[a-z]{2,3}(-[a-z0-9]{2,8})*$/i.test(wanted)) return
  try {
    const answer = await fetch(backend.asset(`locales/${wanted}.json`), { credentials: "same-origin" })
    const found = answer.ok ? await answer.json() : {}
    translated = Object.fromEntries(Object.entries(found).filter(([, value]) => typeof value === "string"))
  } catch {
    // English then: a missing language must not keep the panel away.
  }
}

/** Every key, for tests and for translators. */
export function keys() {
  return Object.keys(english)
}
