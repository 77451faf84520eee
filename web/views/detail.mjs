/**
 * All about one run: its state, hints of what may be wrong, and behind tabs its curves, health, samples, configuration, log and
 * events. Only the tab in sight exists; what the user chose is kept here, so that closing the panel loses nothing.
 */

import { clear, el, text } from "../lib/dom.mjs"
import { duration, timeAgo } from "../lib/format.mjs"
import { isActiveStatus } from "../lib/status.mjs"
import { onTheme } from "../lib/theme.mjs"
import { actionBar } from "./action_bar.mjs"
import * as config from "./config.mjs"
import * as curves from "./curves.mjs"
import * as events from "./events.mjs"
import * as health from "./health.mjs"
import * as log from "./log.mjs"
import * as samples from "./samples.mjs"
import { warningStrip } from "./warning_strip.mjs"

const VIEWS = { curves, health, samples, config, log, events }
const TABS = Object.keys(VIEWS)

/** iteration: one that is to be shown, until there is a view that can. */
const chosen = { run: null, tab: TABS[0], iteration: null }
const unfolded = new Set() // ids of the runs whose further actions are shown
const mounted = new Map() // element -> panel
let count = 0

/**
 * Shows a run here; without runId the one that was shown last, or the newest if that is gone. Mounting again in the same
 * element replaces it.
 * @param {HTMLElement} element
 * @param {{store: object, backend: object, graph: object|null, settings: object, t: Function}} context
 * @param {string} [runId]
 * @returns {{destroy: () => void, show: typeof show}}
 */
export function mount(element, context, runId) {
  mounted.get(element)?.destroy()
  if (runId) chosen.run = runId
  else if (context.store.loaded && !context.store.runs.has(chosen.run)) chosen.run = null
  const panel = createPanel(element, context, () => mounted.delete(element))
  mounted.set(element, panel)
  return { destroy: panel.destroy, show }
}

/** Shows another run, tab or iteration wherever the panel is mounted, or once it is. */
export function show(runId, { tab, iteration } = {}) {
  if (runId) chosen.run = runId
  if (TABS.includes(tab)) chosen.tab = tab
  chosen.iteration = iteration ?? null
  for (const panel of mounted.values()) panel.follow()
}

function createPanel(element, context, forget) {
  const { store, t } = context
  const id = `vgd-${(count += 1)}`
  let data = null
  let view = null
  let shown = { run: null, tab: null }
  let offData = () => {}

  const picker = el("select", {
    class: "vg-input vgd-run",
    "aria-label": t("detail.run"),
    on: { change: () => show(picker.value) },
  })
  const state = el("span", { class: "vgd-state", role: "status" })
  const progress = el("progress", { class: "vg-progress vgd-progress", max: "1", "aria-label": t("detail.progress") })
  const facts = el("span", { class: "vgd-note" })
  const connection = el("span", { class: "vgd-connection", role: "status" })
  const reason = el("span")
  const link = (key, go) => el("button", { type: "button", class: "vg-link", hidden: true, on: { click: go } }, t(key))
  const seeLog = link("detail.seeLog", () => show(null, { tab: "log" }))
  const seeNewest = link("detail.seeNewest", () => show(store.order[0]))
  const message = el("p", { class: "vgd-message", hidden: true }, reason, " ", seeLog, " ", seeNewest)
  const strip = warningStrip(context)
  const tabs = TABS.map((tab) =>
    el(
      "button",
      {
        type: "button",
        role: "tab",
        id: `${id}-${tab}`,
        "aria-controls": `${id}-panel`,
        class: "vgd-tab",
        dataset: { tab },
        on: { click: () => show(null, { tab }) },
      },
      t(`detail.tab.${tab}`),
    ),
  )
  const tablist = el(
    "div",
    { class: "vgd-tabs", role: "tablist", "aria-label": t("detail.tabs"), on: { keydown: tabKey } },
    tabs,
  )
  const actions = actionBar({ ...context, open: null }, unfolded) // it is open
  const bar = el("div", { class: "vgd-bar" }, tablist, actions.node)
  const body = el("div", { class: "vgd-panel", role: "tabpanel", id: `${id}-panel`, tabindex: "0" })
  const header = el("header", { class: "vgd-header" }, picker, state, progress, facts, connection)
  const root = el("div", { class: "vgrpo vgd" }, header, message, strip.node, bar, body)
  clear(element).append(root)

  // Which run, which tab

  function follow() {
    chosen.run ??= store.order[0] ?? null
    if (chosen.run !== shown.run) open(chosen.run)
    if (data && chosen.tab !== shown.tab) openTab()
    if (chosen.iteration !== null && view?.show) {
      view.show({ iteration: chosen.iteration })
      chosen.iteration = null
    }
    head()
  }

  function open(run) {
    close()
    shown = { run, tab: null }
    if (!run)
      return void body.replaceChildren(el("p", { class: "vgd-empty" }, t(store.loaded ? "detail.none" : "detail.loading")))
    data = store.open(run)
    offData = data.subscribe(changed)
    strip.follow(data)
    if (!data.config) data.loadConfig().catch(() => {}) // the tab says why; here only hints become fewer
  }

  function openTab() {
    view?.destroy()
    shown.tab = chosen.tab
    for (const tab of tabs) {
      const on = tab.dataset.tab === chosen.tab
      tab.setAttribute("aria-selected", String(on))
      tab.tabIndex = on ? 0 : -1
    }
    body.setAttribute("aria-labelledby", `${id}-${chosen.tab}`)
    clear(body)
    body.scrollTop = 0
    const inner = el("div", { class: "vgd-view" })
    body.append(inner)
    view = VIEWS[chosen.tab].mount(inner, { ...context, data, show: (options) => show(null, options) })
  }

  function close() {
    view?.destroy()
    view = null
    offData()
    offData = () => {}
    strip.follow(null)
    if (data) store.release(data.id)
    data = null
  }

  function tabKey(event) {
    const at = TABS.indexOf(chosen.tab)
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: TABS.length - 1 }[event.key]
    if (next === undefined) return
    event.preventDefault()
    event.stopPropagation()
    show(null, { tab: TABS[(next + TABS.length) % TABS.length] })
    tabs[TABS.indexOf(chosen.tab)].focus()
  }

  // What is new

  function changed(kinds) {
    head()
    strip.update(kinds)
    view?.update(kinds)
  }

  function head() {
    const away = isGone()
    const entry = data && (store.runs.get(data.id) ?? data.detail)
    for (const part of [state, facts, bar]) part.hidden = !data
    progress.hidden = actions.node.hidden = !data || away
    runs()
    text(connection, store.connection === "reconnecting" ? t("connection.reconnecting") : "")
    say(entry, away)
    if (!entry) return
    actions.update(entry)
    text(state, away ? t("detail.deleted") : t(`status.${entry.status}`))
    header.dataset.status = away ? "gone" : entry.status
    progress.max = Math.max(1, entry.iterations)
    progress.value = entry.iteration
    const parts = [t("detail.iterations", { iteration: entry.iteration, iterations: entry.iterations })]
    if (Number.isFinite(entry.eta_s) && entry.status === "running" && !away)
      parts.push(t("detail.left", { time: duration(entry.eta_s) }))
    else if (!isActiveStatus(entry.status) && entry.updated) parts.push(timeAgo(entry.updated))
    if (entry.base) parts.push(entry.base)
    text(facts, parts.join(" · "))
  }

  /** Deleted while it was looked at: what is here is the last that was seen of it. */
  function isGone() {
    return Boolean(store.loaded && data?.detail && !store.runs.has(data.id))
  }

  /** Why nothing moves, or nothing is here: the run's own message, or the server's. */
  function say(entry, away) {
    const wrong = data?.error && !data.detail ? data.error.message : ""
    const failure = Boolean(entry && !away && ["failed", "lost"].includes(entry.status))
    const words = wrong || (away ? t("detail.gone") : entry?.message) || (failure ? t(`detail.${entry.status}`) : "")
    text(reason, words)
    message.hidden = !words
    message.classList.toggle("vgd-bad", Boolean(wrong || failure))
    seeLog.hidden = !failure || Boolean(wrong) || chosen.tab === "log"
    seeNewest.hidden = !(away || wrong) || !store.order.length
  }

  function runs() {
    const order = data && !store.order.includes(data.id) ? [data.id, ...store.order] : store.order
    const known = picker.dataset.order
    const now = order.join()
    if (known !== now) {
      picker.dataset.order = now
      clear(picker).append(...order.map((run) => el("option", { value: run }, run)))
    }
    picker.hidden = !order.length
    if (data && picker.value !== data.id) picker.value = data.id
  }

  const offStore = store.subscribe(({ ids, connection: changedConnection }) => {
    if (shown.run === null && store.order.length) chosen.run ??= store.order[0]
    if (chosen.run !== shown.run) return follow()
    if (!data && store.loaded) open(null)
    if (ids === null || changedConnection || (data && ids.has(data.id))) head()
  })
  const offTheme = onTheme(() => view?.restyle?.())
  follow()

  return {
    follow,
    destroy() {
      forget()
      offStore()
      offTheme()
      close()
      root.remove()
    },
  }
}
