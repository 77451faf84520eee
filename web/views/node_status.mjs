/**
 * What V-GRPO Train LoRA shows of its run: state, iteration, curve and newest pictures, in a small DOM widget.
 *
 * The widget is the same element in classic and in Vue nodes. Which run it shows is the business of graph/node_runs.mjs; here
 * it is only drawn.
 */

import { el, set, text } from "../lib/dom.mjs"
import { duration, number, signed } from "../lib/format.mjs"
import { statusSign } from "../lib/status.mjs"
import { isActive } from "./run_actions.mjs"
import { spark } from "./spark.mjs"

/**
 * @param {object} context store, backend, t, open(runId, {tab, iteration})
 * @param {() => {run: string|null, shows: (path: string) => boolean}} ask which run this node shows now, and whether the node
 *   itself already shows a picture (path below the run)
 * @returns {{element: HTMLElement, update: () => void}}
 */
export function createNodeStatus({ store, backend, t, open }, ask) {
  let pictured = null
  let said = null
  const sign = el("span", { "aria-hidden": "true" })
  const state = el("span")
  const badge = el("span", { class: "vg-badge" }, sign, " ", state)
  const live = el("span", { class: "vg-offscreen", role: "status" })
  const facts = el("span", { class: "vg-node-facts" })
  const more = el("button", { type: "button", class: "vg-button", on: { click: () => open(ask().run, {}) } }, t("node.open"))
  const bar = el("progress", { class: "vg-progress", "aria-label": t("cards.progress") })
  const curve = spark()
  const reward = el("span", { class: ["vg-node-facts", "vg-node-reward"] })
  const picture = el("img", { alt: "", decoding: "async", draggable: "false", on: { error: () => (grid.hidden = true) } })
  const grid = el(
    "button",
    { type: "button", class: "vg-thumb", hidden: true, on: { click: () => open(ask().run, { tab: "samples" }) } },
    picture,
  )
  const head = el("div", { class: "vg-node-head" }, badge, facts, more)
  const body = el("div", { class: "vg-node-body" }, el("div", { class: "vg-node-curve" }, bar, curve.element, reward), grid)
  const none = el("p", { class: "vg-node-none" })
  // widget-expands: Vue nodes then give the widget the height that is left.
  const element = el(
    "div",
    { class: ["vgrpo", "vg-node", "widget-expands"], role: "group", "aria-label": t("node.status") },
    live,
    head,
    body,
    none,
  )

  function update() {
    const { run: id, shows } = ask()
    const run = id ? store.runs.get(id) : null
    head.hidden = body.hidden = !run
    none.hidden = Boolean(run)
    element.dataset.status = run?.status ?? "none"
    element.dataset.run = run?.id ?? ""
    if (!run) return void text(none, !id || !store.loaded ? t("node.none") : t("node.gone"))
    drawState(run)
    drawReward(run)
    drawPicture(run, shows)
  }

  function drawState(run) {
    text(sign, statusSign(run.status))
    text(state, t(`status.${run.status}`))
    if (said !== null && said !== run.status)
      text(live, t("cards.changed", { name: run.name || run.id, status: t(`status.${run.status}`) }))
    said = run.status
    const parts = [t("node.iteration", { iteration: run.iteration, iterations: run.iterations })]
    if (store.connection === "reconnecting") parts.push(t("node.reconnecting"))
    else if (run.status === "running" && Number.isFinite(run.eta_s)) parts.push(t("node.left", { time: duration(run.eta_s) }))
    if (run.message && (!isActive(run) || run.status === "starting")) parts.push(run.message)
    const words = parts.join(" · ")
    text(facts, words)
    facts.title = words
    set(bar, { max: Math.max(1, run.iterations), value: run.iteration })
    set(more, { title: t("node.openTitle", { run: run.id }), "aria-label": t("node.openTitle", { run: run.id }) })
  }

  function drawReward(run) {
    const first = run.reward?.first
    const last = run.reward?.last
    const known = Number.isFinite(last)
    const change = known && Number.isFinite(first) ? signed(last - first) : "–"
    text(reward, known ? t("node.reward", { last: number(last), change }) : "")
    curve.update(run.spark, known ? t("node.curve", { first: number(first), last: number(last) }) : t("node.noCurve"))
  }

  function drawPicture(run, shows) {
    const url = run.thumbnail && !shows(run.thumbnail) ? backend.picture(run, run.thumbnail) : null
    if (url === pictured) return
    pictured = url
    grid.hidden = !url
    if (!url) return void picture.removeAttribute("src")
    picture.src = url
    set(picture, { alt: t("node.grid", { run: run.id }) })
  }

  update()
  return { element, update }
}
