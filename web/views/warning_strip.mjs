/** The hints above the tabs: what a run may suffer from, and what to try. */

import { clear, el, text } from "../lib/dom.mjs"
import { findWarnings } from "../lib/warnings.mjs"

const EVERY_MS = 1000
const MARKS = { error: "✕", warning: "!" }

/** "run kind" of hints that were hidden, and of those that are unfolded; kept while the panel is closed. */
const dismissed = new Set()
const unfolded = new Set()
/** Whether all hints of a run are shown, not the gravest only. */
const wide = new Set()

/** @returns {{node: HTMLElement, follow: (data: object|null) => void, update: (kinds: Set<string>) => void}} */
export function warningStrip({ t }) {
  let data = null
  let timer = 0
  let last = ""
  const said = el("p", { class: "vg-offscreen", role: "status" })
  const list = el("ul", { class: "vgd-warnings", "aria-label": t("warnings.title"), hidden: true })
  const more = el("button", { type: "button", class: "vg-link vgd-more", hidden: true, on: { click: toggle } })
  const node = el("div", { class: "vgd-strip" }, said, list, more)

  function toggle() {
    wide[wide.has(data.id) ? "delete" : "add"](data.id)
    fold()
  }

  /** A panel at the bottom is low: at first only the gravest hint is shown. */
  function fold() {
    const all = wide.has(data?.id)
    const others = list.children.length - 1
    Array.from(list.children).forEach((item, i) => {
      item.hidden = i > 0 && !all
    })
    more.hidden = others < 1
    more.setAttribute("aria-expanded", String(all))
    text(more, all ? t("warnings.fewer") : t(others === 1 ? "warnings.more.one" : "warnings.more", { count: others }))
  }

  function look() {
    timer = 0
    const found = data
      ? findWarnings(data.series, {
          clipEps: data.config?.clip_eps ?? null,
          trained: Object.keys(data.config?.rewards ?? {}),
        }).filter(({ kind }) => !dismissed.has(`${data.id} ${kind}`))
      : []
    const now = JSON.stringify([data?.id, found])
    if (now === last) return
    last = now
    list.hidden = !found.length
    const kinds = found.map(({ kind }) => kind).join()
    if (list.dataset.kinds === kinds && list.dataset.run === data?.id) {
      found.forEach((finding, i) => text(list.children[i].querySelector(".vgd-warning-what"), what(finding)))
      return
    }
    list.dataset.kinds = kinds
    list.dataset.run = data?.id ?? ""
    clear(list).append(...found.map(item))
    fold()
    text(said, found.map(what).join(" "))
  }

  const what = ({ kind, values }) => t(`warnings.${kind}`, values)

  function item(finding) {
    const key = `${data.id} ${finding.kind}`
    const details = el(
      "details",
      { open: unfolded.has(key), on: { toggle: () => unfolded[details.open ? "add" : "delete"](key) } },
      el(
        "summary",
        null,
        el(
          "span",
          { class: "vgd-mark", role: "img", "aria-label": t(`warnings.level.${finding.level}`) },
          MARKS[finding.level],
        ),
        el("span", { class: "vgd-warning-what" }, what(finding)),
      ),
      el("p", null, el("strong", null, t("warnings.try")), " ", t(`warnings.${finding.kind}.try`)),
    )
    const hide = el(
      "button",
      {
        type: "button",
        class: "vg-icon",
        "aria-label": t("warnings.dismiss.label", { title: what(finding) }),
        title: t("warnings.dismiss"),
        on: {
          click: () => {
            dismissed.add(key)
            look()
          },
        },
      },
      "×",
    )
    return el("li", { class: `vgd-warning vgd-level-${finding.level}`, dataset: { kind: finding.kind } }, details, hide)
  }

  return {
    node,
    follow(next) {
      data = next
      clearTimeout(timer)
      look()
    },
    update(kinds) {
      if (data && !timer && (kinds.has("series") || kinds.has("config"))) timer = setTimeout(look, EVERY_MS)
    },
  }
}
