/** Loads plotly.js, which our server takes from the installed plotly wheel, once and only when the panel is first opened. */

let loading = null

/**
 * @param {import("../lib/backend.mjs").Backend} backend
 * @returns {Promise<object>} window.Plotly; rejects with an Error of one line, and a later call tries again
 */
export function loadPlotly(backend) {
  if (window.Plotly) return Promise.resolve(window.Plotly)
  loading ??= fetchScript(backend.asset("plotly.js")).catch((error) => {
    loading = null
    throw error
  })
  return loading
}

function fetchScript(url) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script")
    script.src = url
    script.async = true
    script.onload = () => (window.Plotly ? resolve(window.Plotly) : reject(new Error("plotly.js came without Plotly in it")))
    script.onerror = () => {
      script.remove()
      why(url).then((reason) => reject(new Error(reason)))
    }
    document.head.append(script)
  })
}

/** A script element does not tell why it failed; the answer's one line does. */
async function why(url) {
  try {
    const answer = await (await fetch(url)).json()
    if (typeof answer.error === "string") return answer.error
  } catch {
    // no JSON, or nobody there
  }
  return "plotly.js could not be loaded"
}
