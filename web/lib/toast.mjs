/** ComfyUI's toasts: `add` is deprecated since frontend 1.58, and what replaces it is missing before. */

const LIFE_MS = { success: 4000, info: 4000, error: 10_000 }

/**
 * @param {object} app
 * @returns {(text: string, kind?: "success"|"info"|"error") => void} never throws: saying something is never worth an error
 */
export function toaster(app) {
  return (text, kind = "info") => {
    try {
      const toast = app.extensionManager?.toast
      const life = LIFE_MS[kind] ?? LIFE_MS.info
      if (typeof toast?.[kind] === "function") toast[kind]("V-GRPO", { description: text, duration: life })
      else if (typeof toast?.add === "function") toast.add({ severity: kind, summary: "V-GRPO", detail: text, life })
      else console.info("V-GRPO:", text)
    } catch (error) {
      console.info("V-GRPO:", text, error)
    }
  }
}
