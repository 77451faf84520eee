/**
 * What both backends have in common: an answer is JSON or an Error of one line.
 *
 * @typedef {object} Backend
 * @property {(path: string) => Promise<any>} get path like "/vgrpo/runs"
 * @property {(path: string, body?: object) => Promise<any>} post
 * @property {(run: {id: string, view?: {type: string, subfolder: string}}, relative: string) => string} picture
 * @property {(path: string) => string} asset
 * @property {(fn: (message: object) => void) => () => void} onEvent returns what takes the listener away
 * @property {(fn: () => void) => () => void} onReconnect
 * @property {(fn: () => void) => () => void} onDisconnect
 * @property {boolean} pushes whether onEvent tells of what is new; else the store asks
 * @property {{control: boolean, graph: boolean}} can
 */

import { t } from "./text.mjs"

/** An answer that is no answer: `status` is the HTTP status, 0 when nobody answered. */
export class AnswerError extends Error {
  constructor(status, message) {
    super(message)
    this.name = "AnswerError"
    this.status = status
  }
}

/**
 * The JSON of an answer. Throws AnswerError with the server's own line where there is one.
 * @param {() => Promise<Response>} ask
 */
export async function answered(ask) {
  let response
  try {
    response = await ask()
  } catch {
    throw new AnswerError(0, t("error.network"))
  }
  let body = null
  try {
    body = await response.json()
  } catch {
    // A proxy's page, or an answer cut short: there is only the status to tell of.
  }
  const said = body && typeof body === "object" && typeof body.error === "string" ? body.error : null
  if (!response.ok || said !== null || body === null) {
    throw new AnswerError(response.status, said ?? t("error.answer", { status: response.status }))
  }
  return body
}

/** The arguments of a fetch that posts `body`. */
export function posting(body, headers = {}) {
  return { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(body ?? {}) }
}

/** Listeners of one kind: `add` returns what takes one away, `tell` calls all; one that throws keeps no other from hearing. */
export function listeners() {
  const all = new Set()
  return {
    add(fn) {
      const entry = { fn }
      all.add(entry)
      return () => all.delete(entry)
    },
    tell(...values) {
      for (const { fn } of [...all]) {
        try {
          fn(...values)
        } catch (error) {
          console.error("V-GRPO:", error)
        }
      }
    },
    get size() {
      return all.size
    },
  }
}

/** The folder and the name in a path inside a run: "samples/000000/grid.png" -> ["samples/000000", "grid.png"]. */
export function split(relative) {
  const at = String(relative).lastIndexOf("/")
  return at < 0 ? ["", String(relative)] : [relative.slice(0, at), relative.slice(at + 1)]
}
