/** One run as a card. It is made once and then only told what changed, so that focus and scrolling stay where they are. */

import { el, fill, set, text } from "../lib/dom.mjs"
import { duration, number, signed, timeAgo } from "../lib/format.mjs"
import { statusSign } from "../lib/status.mjs"
import { available, isActive, perform } from "./run_actions.mjs"
import { spark } from "./spark.mjs"

/** A shape for each state, so that colour is never the only sign. */

let count = 0

/**
 * @param {object} context of the view; `unfolded` is the Set of the ids whose further actions are shown
 * @returns {{element: HTMLElement, update: (run: object) => void}}
 */
export function createCard(context, unfolded) {
  const { backend, open, t } = context
  const id = `vg-card-${(count += 1)}`
  let run = null
  let buttons = null // what the buttons were made for
  let pictured = null

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
  const picture = el("img", { alt: "", loading: "lazy", decoding: "async", on: { error: () => picture.classList.add("vg-broken") } })
  const thumbnail = open
    ? el("button", { type: "button", class: "vg-thumb", on: { click: () => open(run.id, { tab: "samples" }) } }, picture)
    : el("div", { class: "vg-thumb" }, picture)
  const noPicture = el("div", { class: ["vg-thumb", "vg-thumb-none"] }, t("cards.noThumbnail"))
  const actions = el("div", { class: "vg-actions", role: "group" })
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
    actions,
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
    pictures(title)
    drawActions()
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

  function pictures(title) {
    const url = run.thumbnail ? backend.picture(run, run.thumbnail) : null
    thumbnail.hidden = !url
    noPicture.hidden = Boolean(url)
    const label = t(open ? "cards.thumbnail" : "cards.thumbnailPlain", { name: title })
    set(picture, { alt: label })
    if (url === pictured) return
    pictured = url
    picture.classList.remove("vg-broken")
    if (url) picture.src = url
    else picture.removeAttribute("src")
  }

  function drawActions() {
    const { first, more } = available(run, context)
    const folded = !unfolded.has(run.id)
    const wanted = [run.name, folded, ...first, "|", ...more].join()
    if (wanted === buttons) return
    buttons = wanted
    const focused = actions.contains(document.activeElement) ? document.activeElement.dataset.action : null
    set(actions, { "aria-label": t("cards.actions", { name: run.name || run.id }) })
    const fold = el(
      "button",
      { type: "button", class: "vg-button", dataset: { action: "more" }, "aria-expanded": String(!folded), on: { click: turn } },
      t(folded ? "cards.moreActions" : "cards.fewerActions"),
    )
    fill(actions, first.map(button), fold, folded ? null : more.map(button))
    if (!focused) return
    // The button that was pressed may be gone (Pause became Resume): its neighbour takes the focus, not the page.
    const next = actions.querySelector(`[data-action="${focused}"]`) ?? actions.querySelector("button")
    next?.focus()
  }

  function button(action) {
    const title = t(`cards.${action}Title`)
    return el(
      "button",
      {
        type: "button",
        class: ["vg-button", action === "open" && "vg-primary", action === "delete" && "vg-danger"],
        dataset: { action },
        title: title === `cards.${action}Title` ? null : title,
        on: { click: (event) => press(action, event.currentTarget) },
      },
      t(`cards.${action}`),
    )
  }

  async function press(action, pressed) {
    if (pressed.getAttribute("aria-disabled") === "true") return
    // Not `disabled`: that would throw the focus away while the server thinks.
    set(pressed, { "aria-disabled": "true" })
    await perform(action, run, context)
    set(pressed, { "aria-disabled": null })
  }

  function turn() {
    if (!unfolded.delete(run.id)) unfolded.add(run.id)
    drawActions()
  }

  return { element, update }
}
