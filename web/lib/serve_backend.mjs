/** Runs from the command `serve`: plain fetch below a base address. Nobody pushes there; whoever asks learns what is new. */

import { answered, listeners, posting } from "./backend.mjs"

/** Statuses by which a proxy says that nobody is behind it. */
const AWAY = [0, 502, 503, 504]

/**
 * @param {string|URL} base address of the page, ending in "/"
 * @param {string|null} [token] without it nothing can be changed
 * @returns {import("./backend.mjs").Backend}
 */
export function serveBackend(base, token = null) {
  const back = listeners()
  const gone = listeners()
  let away = false

  const at = (path) => new URL(path.replace(/^\//, ""), base).href

  /** Every question also tells whether the server is there. */
  async function ask(path, options) {
    try {
      const found = await answered(() => fetch(at(path), { credentials: "same-origin", ...options }))
      is(false)
      return found
    } catch (error) {
      is(AWAY.includes(error.status))
      throw error
    }
  }

  function is(now) {
    if (now === away) return
    away = now
    ;(away ? gone : back).tell()
  }

  return {
    get: (path) => ask(path, { cache: "no-store" }),
    post: (path, body) => ask(path, posting(body, token ? { Authorization: `Bearer ${token}` } : {})),
    picture: (run, relative) => at(`vgrpo/runs/${run.id}/${relative.includes("/") ? relative : `reports/${relative}`}`),
    asset: (path) => at(`vgrpo/assets/${path}`),
    onEvent: () => () => {},
    onReconnect: back.add,
    onDisconnect: gone.add,
    pushes: false,
    can: { control: Boolean(token), graph: false },
  }
}
