/** The end of a run's log: followed, kept still while one reads further up, copied. */

import { clear, el } from "../lib/dom.mjs"
import { copyButton } from "./copy.mjs"
import { check } from "./fields.mjs"

const TAILS = [200, 1000, 5000]
const NEAR_END = 24

const chosen = { tail: TAILS[0], follow: true }

/** @returns {{update: (kinds: Set<string>) => void, destroy: () => void}} */
export function mount(element, { data, t }) {
  const followed = check(t("log.follow"), chosen.follow, (on) => {
    chosen.follow = on
    toEnd()
  })
  const follow = followed.firstChild
  const tail = el(
    "select",
    {
      class: "vg-input",
      on: {
        change: () => {
          chosen.tail = Number(tail.value)
          load()
        },
      },
      value: String(chosen.tail),
    },
    TAILS.map((count) => el("option", { value: String(count) }, t("log.lines", { count }))),
  )
  const problem = el("p", { class: "vgd-problem", role: "alert", hidden: true })
  const lines = el(
    "div",
    { class: "vgd-code vgd-log", role: "log", tabindex: "0", "aria-label": t("log.title"), "aria-live": "off" },
    t("detail.loading"),
  )
  lines.addEventListener("scroll", () => {
    const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < NEAR_END
    if (follow.checked && !atEnd)
      follow.checked = chosen.follow = false // somebody reads further up
    else if (!follow.checked && atEnd) follow.checked = chosen.follow = true
  })
  element.append(
    el(
      "div",
      { class: "vgd-tools" },
      el("label", { class: "vgd-field" }, t("log.show"), tail),
      followed,
      copyButton(t, () => (data.log ?? []).join("\n")),
    ),
    problem,
    lines,
  )
  element.classList.add("vgd-filled")
  let shown = []

  function load() {
    data.loadLog(chosen.tail).then(
      () => {
        problem.hidden = true
      },
      (error) => {
        problem.textContent = t("log.failed", { error: error.message })
        problem.hidden = false
      },
    )
  }

  /** Only what differs from what is shown: usually a few lines leave at the top, a few come at the end. */
  function draw() {
    const now = data.log
    if (!now) return
    const kept = overlap(shown, now)
    if (!kept) {
      clear(lines)
      if (!now.length) lines.append(t("log.empty"))
    } else for (let i = shown.length - kept; i > 0; i -= 1) lines.firstChild.remove()
    lines.append(...now.slice(kept).map(line))
    shown = now
    toEnd()
  }

  function toEnd() {
    if (follow.checked) lines.scrollTop = lines.scrollHeight
  }

  if (data.log) draw()
  load()
  return {
    update(kinds) {
      if (kinds.has("log")) draw()
    },
    destroy() {
      element.classList.remove("vgd-filled")
      data.loadLog(0)
    },
  }
}

function line(content) {
  const level = / (ERROR|CRITICAL|WARNING) /.exec(content)?.[1]
  return el(
    "div",
    { class: ["vgd-line", level === "WARNING" && "vgd-warned", level && level !== "WARNING" && "vgd-failed"] },
    content || " ",
  )
}

/** How many lines at the end of `before` are the first of `now`. */
function overlap(before, now) {
  for (let from = Math.max(0, before.length - now.length); from < before.length; from += 1) {
    const count = before.length - from
    if (
      before[from] === now[0] &&
      before[before.length - 1] === now[count - 1] &&
      before.slice(from).every((text, i) => text === now[i])
    )
      return count
  }
  return 0
}
