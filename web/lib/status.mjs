/** The states of a run, once for all views. */

const ACTIVE = new Set(["starting", "running", "paused", "stopping"])
const SIGNS = { starting: "◌", running: "▶", paused: "‖", stopping: "◔", finished: "✓", stopped: "■", failed: "✕", lost: "?" }

/** Whether a process works on a run of that status, or is about to. */
export function isActiveStatus(status) {
  return ACTIVE.has(status)
}

/** The sign beside a status's word, for those who see no colours. */
export function statusSign(status) {
  return SIGNS[status] ?? "•"
}
