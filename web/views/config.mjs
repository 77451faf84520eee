/** The configuration of a run: what differs from the preset that is most like it, then the whole file with those lines marked. */

import { clear, el, text } from "../lib/dom.mjs"
import { copyButton } from "./copy.mjs"
import { fold, marked } from "./yaml_lines.mjs"

/** @returns {{update: (kinds: Set<string>) => void, destroy: () => void}} */
export function mount(element, { data, t }) {
  let closed = false
  let shown = null

  function draw() {
    const config = data.config
    if (!config || config === shown) return
    shown = config
    clear(element)
    element.append(differences(config), file(config))
  }

  function differences({ preset, diff }) {
    const title = el("h3", { class: "vgd-heading" }, preset ? t("config.differs", { preset }) : t("config.noPreset"))
    if (!preset) return el("section", null, title)
    if (!diff.length) return el("section", null, title, el("p", { class: "vgd-note" }, t("config.same", { preset })))
    const head = [t("config.key"), t("config.here"), t("config.preset", { preset })].map((word) =>
      el("th", { scope: "col" }, word),
    )
    const rows = diff.map((row) =>
      el(
        "tr",
        null,
        el("th", { scope: "row" }, row.key),
        el("td", null, shortly(row.value)),
        el("td", { class: "vgd-was" }, shortly(row.preset)),
      ),
    )
    return el(
      "section",
      null,
      title,
      el("table", { class: "vgd-table" }, el("thead", null, el("tr", null, head)), el("tbody", null, rows)),
    )
  }

  function file({ yaml, digest, diff }) {
    const changed = new Map(diff.map((row) => [row.key, row.preset]))
    const lines = fold(marked(yaml, changed))
    const code = el("div", { class: "vgd-code", role: "region", tabindex: "0", "aria-label": t("config.file") })
    for (const part of lines) code.append(part.folded ? folded(part) : line(part))
    return el(
      "section",
      null,
      el(
        "div",
        { class: "vgd-tools" },
        el("h3", { class: "vgd-heading" }, t("config.file")),
        copyButton(t, () => yaml),
        el("span", { class: "vgd-note" }, t("config.digest", { digest: String(digest).slice(0, 12) })),
      ),
      code,
    )
  }

  function shortly(value) {
    if (value === null || value === undefined) return t("config.unset")
    return typeof value === "string" ? value : JSON.stringify(value)
  }

  function line(part) {
    if (part.preset === undefined) return el("div", { class: "vgd-line" }, part.text || " ")
    const note = t("config.presetHas", { value: shortly(part.preset) })
    return el("div", { class: "vgd-line vgd-changed", title: note }, part.text, el("span", { class: "vgd-side" }, note))
  }

  function folded(part) {
    const button = el(
      "button",
      { type: "button", class: "vg-link", on: { click: () => button.replaceWith(...part.folded.map(line)) } },
      t("config.more", { count: part.folded.length }),
    )
    return button
  }

  element.append(el("p", { class: "vgd-empty" }, t("detail.loading")))
  draw()
  if (!data.config) {
    data.loadConfig().catch((error) => {
      if (!closed) text(element.firstChild, t("config.failed", { error: error.message }))
    })
  }
  return {
    update(kinds) {
      if (kinds.has("config")) draw()
    },
    destroy() {
      closed = true
    },
  }
}
