/**
 * All about one run: its state, hints of what may be wrong, and behind tabs its curves, health, samples, configuration, log and
 * events. Only the tab in sight exists; what the user chose is kept here, so that closing the panel loses nothing.
 */

import { clear, el, stylesheet, text } from "../lib/dom.mjs"
import { duration, timeAgo } from "../lib/format.mjs"
import { isActiveStatus } from "../lib/status.mjs"
import * as config from "./config.mjs"
import * as curves from "./curves.mjs"
import * as events from "./events.mjs"
import * as health from "./health.mjs"
import * as log from "./log.mjs"
import * as samples from "./samples.mjs"
import { warningStrip } from "./warning_strip.mjs"

const VIEWS = { curves, health, samples, config, log, events }
const TABS = Object.keys(VIEWS)

const chosen = { run: null, tab: TABS[0] }
const mounted = new Map() // element -> panel
let count = 0

/**
 * Shows a run here; without runId the one that was shown last, else the newest. Mounting again in the same element replaces it.
 * @param {HTMLElement} element
 * @param {{store: object, backend: object, graph: object|null, settings: object, t: Function}} context
 * @param {string} [runId]
 * @returns {{destroy: () => void, show: typeof show}}
 */
export function mount(element, context, runId) {
  mounted.get(element)?.destroy()
  if (runId) chosen.run = runId
  const panel = createPanel(element, context, () => mounted.delete(element))
  mounted.set(element, panel)
  return { destroy: panel.destroy, show }
}

/** Shows another run, tab or iteration wherever the panel is mounted, or once it is. */
export function show(runId, { tab, iteration } = {}) {
  if (runId) chosen.run = runId
  if (TABS.includes(tab)) chosen.tab = tab
  for (const panel of mounted.values()) panel.follow({ iteration })
}

function createPanel(element, context, gone) {
  const { store, t } = context
  const id = `vgd-${(count += 1)}`
  let data = null
  let view = null
  let shown = { run: null, tab: null }
  let offData = () => {}

  for (const file of ["../vgrpo.css", "../detail.css"]) stylesheet(new URL(file, import.meta.url))
  const picker = el("select", { class: "vgd-run", "aria-label": t("detail.run"), on: { change: () => show(picker.value) } })
  const state = el("span", { class: "vgd-state", role: "status" })
  const progress = el("progress", { class: "vgd-progress", max: "1", "aria-label": t("detail.progress") })
  const facts = el("span", { class: "vgd-note" })
  const connection = el("span", { class: "vgd-connection", role: "status" })
  const message = el("p", { class: "vgd-message", hidden: true })
  const strip = warningStrip(context)
  const tabs = TABS.map((tab) => el("button", { type: "button", role: "tab", id: `${id}-${tab}`, "aria-controls": `${id}-panel`, class: "vgd-tab", dataset: { tab }, on: { click: () => show(null, { tab }) } }, t(`detail.tab.${tab}`)))
  const tablist = el("div", { class: "vgd-tabs", role: "tablist", "aria-label": t("detail.tabs"), on: { keydown: tabKey } }, tabs)
  const body = el("div", { class: "vgd-panel", role: "tabpanel", id: `${id}-panel`, tabindex: "0" })
  const root = el("div", { class: "vgrpo vgd" }, el("header", { class: "vgd-header" }, picker, state, progress, facts, connection), message, strip.node, tablist, body)
  clear(element).append(root)

  // Which run, which tab

  function follow({ iteration } = {}) {
    chosen.run ??= store.order[0] ?? null
    if (chosen.run !== shown.run) open(chosen.run)
    if (data && chosen.tab !== shown.tab) openTab()
    if (iteration !== undefined) view?.show?.({ iteration })
    head()
  }

  function open(run) {
    close()
    shown = { run, tab: null }
    if (!run) return void body.replaceChildren(el("p", { class: "vgd-empty" }, t(store.loaded ? "detail.none" : "detail.loading")))
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
    const entry = data && (store.runs.get(data.id) ?? data.detail)
    for (const part of [state, progress, facts, tablist]) part.hidden = !data
    runs()
    text(connection, store.connection === "reconnecting" ? t("connection.reconnecting") : "")
    say(entry)
    if (!entry) return
    text(state, t(`status.${entry.status}`))
    state.dataset.status = entry.status
    progress.max = Math.max(1, entry.iterations)
    progress.value = entry.iteration
    const parts = [t("detail.iterations", { iteration: entry.iteration, iterations: entry.iterations })]
    if (Number.isFinite(entry.eta_s) && entry.status === "running") parts.push(t("detail.left", { time: duration(entry.eta_s) }))
    else if (!isActiveStatus(entry.status) && entry.updated) parts.push(timeAgo(entry.updated))
    if (entry.base) parts.push(entry.base)
    text(facts, parts.join(" · "))
  }

  /** Why nothing moves, or nothing is here: the run's own message, or the server's. */
  function say(entry) {
    const wrong = data?.error && !data.detail ? data.error.message : ""
    const failure = entry && ["failed", "lost"].includes(entry.status)
    const away = store.loaded && data?.detail && !store.runs.has(data.id)
    const words = wrong || (away ? t("detail.gone") : entry?.message) || (failure ? t(`detail.${entry.status}`) : "")
    message.hidden = !words
    message.classList.toggle("vgd-bad", Boolean(wrong || failure))
    text(message, words)
    if (failure && !wrong && chosen.tab !== "log")
      message.append(" ", el("button", { type: "button", class: "vgd-link", on: { click: () => show(null, { tab: "log" }) } }, t("detail.seeLog")))
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
      gone()
      offStore()
      offTheme()
      close()
      root.remove()
    },
  }
}

/** Calls fn when the page's colours may have changed: ComfyUI writes its palette into classes and styles of html and body. */
function onTheme(fn) {
  let timer = 0
  const soon = () => {
    clearTimeout(timer)
    timer = setTimeout(fn, 150)
  }
  const watch = new MutationObserver(soon)
  for (const node of [document.documentElement, document.body]) watch.observe(node, { attributes: true, attributeFilter: ["class", "style", "data-theme"] })
  const dark = matchMedia("(prefers-color-scheme: dark)")
  dark.addEventListener("change", soon)
  return () => {
    clearTimeout(timer)
    watch.disconnect()
    dark.removeEventListener("change", soon)
  }
}
