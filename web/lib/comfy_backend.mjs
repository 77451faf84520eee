/** Runs through ComfyUI's own `api` object: its base path, its user, its websocket. */

import { answered, posting, split } from "./backend.mjs"

/**
 * @param {object} api ComfyUI's api
 * @param {object} app ComfyUI's app
 * @returns {import("./backend.mjs").Backend}
 */
export function comfyBackend(api, app) {
  const listen = (name, fn) => {
    api.addEventListener(name, fn)
    return () => api.removeEventListener(name, fn)
  }
  return {
    get: (path) => answered(() => api.fetchApi(path, { cache: "no-store" })),
    post: (path, body) => answered(() => api.fetchApi(path, posting(body))),
    picture(run, relative) {
      const [folder, filename] = split(relative)
      const view = run.view ?? { type: "output", subfolder: `vgrpo/${run.id}` }
      const subfolder = folder ? `${view.subfolder}/${folder}` : view.subfolder
      return api.apiURL(`/view?${new URLSearchParams({ filename, subfolder, type: view.type })}`)
    },
    asset: (path) => api.apiURL(`/vgrpo/assets/${path}`),
    onEvent: (fn) => listen("vgrpo.event", (event) => fn(event.detail)),
    onReconnect: (fn) => listen("reconnected", () => fn()),
    onDisconnect: (fn) => listen("reconnecting", () => fn()),
    pushes: true,
    can: { control: true, graph: Boolean(app) },
  }
}
