/**
 * All runs as cards, with filters: the sidebar's view, and the headless page's. Cards are made as they come into sight, and
 * kept by their run's id, so a list of hundreds opens and moves like one of ten.
 */

import { arrange, clear, el, set, text } from "../lib/dom.mjs"
import { createCard } from "./card.mjs"
import { isActive } from "./run_actions.mjs"

const PAGE = 30
const CLOCK_MS = 30_000

const FILTERS = {
  all: () => true,
  active: isActive,
  finished: (run) => run.status === "finished",
  ended: (run) => !isActive(run) && run.status !== "finished",
}

/** What the user chose: closing the sidebar loses nothing. */
const chosen = { filter: "all", search: "", limit: PAGE, scroll: 0, unfolded: new Set() }
const mounted = new WeakMap()
let count = 0

/**
 * @param {HTMLElement} element
 * @param {object} context store, backend, graph, settings, t; and where there are such: open(runId, {tab, iteration}),
 *   which shows a run in full, and notify(text, kind), else what came of an action is said in the view itself
 * @returns {{destroy: () => void}}
 */
export function mount(element, context) {
  mounted.get(element)?.destroy()
  const view = createView(element, context)
  mounted.set(element, view)
  return view
}

function createView(element, given) {
  const { store, t } = given
  const id = `vg-cards-${(count += 1)}`
  const context = { ...given, notify: given.notify ?? ((words, kind) => say(words, kind)) }
  const cards = new Map() // id -> card
  const told = new Map() // id -> the status that was last said

  const found = el("span", { class: "vg-muted", role: "status" })
  const connection = el("p", { class: "vg-notice", role: "status", hidden: true })
  const live = el("p", { class: "vg-offscreen", role: "status", "aria-live": "polite" })
  const answer = el("p", { class: "vg-notice", "aria-live": "polite", hidden: true })
  const search = el("input", {
    type: "search",
    class: ["vg-input", "vg-search"],
    id: `${id}-search`,
    value: chosen.search,
    placeholder: t("cards.search"),
    "aria-label": t("cards.search"),
    autocomplete: "off",
    spellcheck: "false",
    on: { input: () => choose({ search: search.value }) },
  })
  const filters = Object.keys(FILTERS).map((filter) =>
    el("button", { type: "button", class: "vg-chip", dataset: { filter }, on: { click: () => choose({ filter }) } }),
  )
  const list = el("ul", { class: "vg-list", "aria-label": t("cards.title") })
  const nothing = el("div", { class: "vg-nothing", hidden: true })
  const more = el("button", { type: "button", class: "vg-button", hidden: true, on: { click: next } })
  const scroller = el(
    "div",
    { class: "vg-scroll", tabindex: "-1", on: { scroll: () => (chosen.scroll = scroller.scrollTop) } },
    list,
    nothing,
    more,
  )
  const root = el(
    "section",
    { class: ["vgrpo", "vg-cards"], "aria-labelledby": `${id}-title` },
    el(
      "header",
      { class: "vg-top" },
      el("div", { class: "vg-line" }, el("h2", { id: `${id}-title` }, t("cards.title")), found),
      search,
      el("div", { class: "vg-chips", role: "group", "aria-label": t("cards.filter") }, filters),
      connection,
      answer,
      live,
    ),
    scroller,
  )
  clear(element).append(root)

  function choose(change) {
    Object.assign(chosen, change, { limit: PAGE })
    scroller.scrollTop = 0
    draw()
  }

  function next() {
    chosen.limit += PAGE
    draw()
  }

  // Drawing

  function matching() {
    const words = chosen.search.toLowerCase().split(/\s+/).filter(Boolean)
    const runs = store.order.map((run) => store.runs.get(run)).filter(Boolean)
    const named = runs.filter((run) => {
      const where = `${run.name} ${run.id} ${run.base ?? ""}`.toLowerCase()
      return words.every((word) => where.includes(word))
    })
    for (const chip of filters) {
      const n = named.filter(FILTERS[chip.dataset.filter]).length
      text(chip, `${t(`cards.filter.${chip.dataset.filter}`)} ${n}`)
      set(chip, { "aria-pressed": String(chip.dataset.filter === chosen.filter) })
    }
    return { all: runs.length, runs: named.filter(FILTERS[chosen.filter]) }
  }

  function draw() {
    const { all, runs } = matching()
    text(found, all ? t("cards.count", { shown: runs.length, all }) : "")
    const shown = runs.slice(0, chosen.limit)
    const ids = new Set(shown.map((run) => run.id))
    const focused = list.contains(document.activeElement)
    for (const run of [...cards.keys()]) if (!ids.has(run)) cards.delete(run)
    for (const run of shown) {
      if (!cards.has(run.id)) cards.set(run.id, createCard(context, chosen.unfolded))
      cards.get(run.id).update(run)
    }
    arrange(
      list,
      shown.map((run) => cards.get(run.id).element),
    )
    if (focused && !list.contains(document.activeElement)) scroller.focus() // its card is gone; the keys stay in the list
    const left = runs.length - shown.length
    more.hidden = left <= 0
    text(more, t("cards.more", { n: Math.min(PAGE, left) }))
    drawNothing(all, runs.length)
    drawConnection()
  }

  function drawNothing(all, matched) {
    nothing.hidden = matched > 0
    if (matched) return
    if (store.error && !all) text(nothing, t("cards.listFailed", { reason: store.error.message }))
    else if (!store.loaded) text(nothing, t("cards.loading"))
    else if (!all) text(nothing, t("cards.none"))
    else if (!nothing.querySelector("button"))
      clear(nothing).append(
        el("p", {}, t("cards.noneMatch")),
        el(
          "button",
          {
            type: "button",
            class: "vg-button",
            on: { click: () => ((search.value = ""), choose({ filter: "all", search: "" }), search.focus()) },
          },
          t("cards.clearFilters"),
        ),
      )
  }

  function drawConnection() {
    const lost = store.connection === "reconnecting"
    const words = lost
      ? t("connection.reconnecting")
      : store.error && store.loaded
        ? t("cards.listFailed", { reason: store.error.message })
        : ""
    connection.hidden = !words
    text(connection, words)
  }

  // Saying

  function say(words, kind) {
    answer.hidden = false
    answer.dataset.kind = kind
    text(answer, words)
  }

  /** A change of state is said once; iterations are not. */
  function announce() {
    const words = []
    for (const run of store.runs.values()) {
      const before = told.get(run.id)
      if (before !== undefined && before !== run.status)
        words.push(t("cards.changed", { name: run.name || run.id, status: t(`status.${run.status}`) }))
      told.set(run.id, run.status)
    }
    for (const run of told.keys()) if (!store.runs.has(run)) told.delete(run)
    if (words.length) text(live, words.join(". "))
  }

  const off = store.subscribe(({ ids, connection: changedConnection }) => {
    announce()
    const known = ids && [...ids].every((run) => cards.has(run)) && chosen.filter === "all" && !chosen.search
    if (!known) return draw()
    for (const run of ids) if (store.runs.has(run)) cards.get(run).update(store.runs.get(run))
    matching() // the chips' numbers
    if (changedConnection || ids.size === 0) drawConnection()
  })
  const clock = setInterval(() => {
    for (const [run, card] of cards) if (store.runs.has(run)) card.update(store.runs.get(run))
  }, CLOCK_MS)
  const sight = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && !more.hidden && next(), {
    root: scroller,
    rootMargin: "600px",
  })
  sight.observe(more)
  draw()
  announce()
  scroller.scrollTop = chosen.scroll

  return {
    destroy() {
      off()
      clearInterval(clock)
      sight.disconnect()
      if (mounted.get(element)) mounted.delete(element)
      root.remove()
    },
  }
}
