/** One run as a card. It is made once and then only told what changed, so that focus and scrolling stay where they are. */

import { el, fill, set, text } from "../lib/dom.mjs"
import { duration, number, signed, timeAgo } from "../lib/format.mjs"
import { statusSign } from "../lib/status.mjs"
import { actionBar } from "./action_bar.mjs"
import { isActive } from "./run_actions.mjs"
import { spark } from "./spark.mjs"

let count = 0

/**
 * @param {object} context of the view; `unfolded` is the Set of the ids whose further actions are shown
 * @returns {{element: HTMLElement, update: (run: object) => void}}
 */
export function createCard(context, unfolded) {
  const { backend, open, t } = context
  const id = `vg-card-${(count += 1)}`
  let run = null
  let pictured = null
  let broken = false

  const name = el("h3", { class: "vg-card-name", id })
  const badge = el("span", { class: "vg-badge" })
  const base = el("p", { class: "vg-card-base" })
  const bar = el("progress", { class: "vg-progress", "aria-label": t("cards.progress") })
  const iteration = el("span", { class: "vg-strong" })
  const when = el("span", { class: "vg-muted" })
  const reward = el("span", { class: "vg-strong" })
  const change = el("span", { class: "vg-change", title: t("cards.since") })
  const since = el("span", { class: ["vg-muted", "vg-since"] }, t("cards.since"))
  const curve = spark()
  const message = el("p", { class: "vg-card-message", hidden: true })
  const picture = el("img", {
    alt: "",
    loading: "lazy",
    decoding: "async",
    on: {
      error: () => {
        broken = true
        pictures()
      },
    },
  })
  const thumbnail = open
    ? el("button", { type: "button", class: "vg-thumb", on: { click: () => open(run.id, { tab: "samples" }) } }, picture)
    : el("div", { class: "vg-thumb" }, picture)
  const noPicture = el("div", { class: ["vg-thumb", "vg-thumb-none"] }, t("cards.noThumbnail"))
  const actions = actionBar(context, unfolded)
  const element = el(
    "li",
    { class: "vg-card", "aria-labelledby": id },
    el("div", { class: "vg-card-head" }, name, badge),
    base,
    el(
      "div",
      { class: "vg-card-body" },
      thumbnail,
      noPicture,
      el(
        "div",
        { class: "vg-card-facts" },
        el("div", { class: "vg-line" }, iteration, when),
        bar,
        el("div", { class: "vg-line" }, el("span", { class: "vg-muted" }, t("cards.reward")), reward, change, since),
        curve.element,
      ),
    ),
    message,
    actions.node,
  )

  function update(now) {
    run = now
    const title = run.name || run.id
    text(name, title)
    name.title = run.id
    element.dataset.run = run.id
    element.dataset.status = run.status
    fill(badge, el("span", { "aria-hidden": "true" }, statusSign(run.status)), " ", t(`status.${run.status}`))
    text(base, run.base ? t("cards.base", { base: run.base }) : run.id)
    progress()
    rewards()
    text(message, run.message ?? "")
    message.hidden = !run.message
    pictures()
    actions.update(run)
  }

  function progress() {
    text(iteration, t("cards.iteration", { iteration: run.iteration, iterations: run.iterations }))
    const left = run.status === "running" && Number.isFinite(run.eta_s)
    text(when, left ? t("cards.left", { time: duration(run.eta_s) }) : isActive(run) ? "" : timeAgo(run.updated))
    set(bar, { max: Math.max(1, run.iterations), value: run.iteration })
  }

  function rewards() {
    const first = run.reward?.first
    const last = run.reward?.last
    const known = Number.isFinite(last)
    text(reward, known ? number(last) : t("cards.noReward"))
    const by = known && Number.isFinite(first) ? last - first : null
    change.dataset.way = by === null || by === 0 ? "none" : by > 0 ? "up" : "down"
    text(change, by === null ? "" : `${by > 0 ? "▲" : by < 0 ? "▼" : ""} ${signed(by)}`.trim())
    since.hidden = by === null
    curve.update(run.spark, known ? t("cards.curve", { first: number(first), last: number(last) }) : t("cards.noCurve"))
  }

  function pictures() {
    const url = run.thumbnail ? backend.picture(run, run.thumbnail) : null
    set(picture, { alt: t(open ? "cards.thumbnail" : "cards.thumbnailPlain", { name: run.name || run.id }) })
    if (url !== pictured) {
      pictured = url
      broken = false
      set(picture, { src: url })
    }
    thumbnail.hidden = !url || broken
    noPicture.hidden = !thumbnail.hidden
    text(noPicture, t(broken ? "cards.badThumbnail" : "cards.noThumbnail"))
  }

  return { element, update }
}
