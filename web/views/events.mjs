/** What happened in a run beside its iterations, the newest first, filtered by type. */

import { arrange, clear, el, text } from "../lib/dom.mjs"
import { clock, number } from "../lib/format.mjs"

const TYPES = ["error", "warning", "evaluation", "grid", "checkpoint", "paused", "resumed", "finished"]
const AT_ONCE = 200

/** Types that are hidden, kept while the panel is closed. */
const hidden = new Set()
const MARKS = {
  error: "✕",
  warning: "!",
  evaluation: "◆",
  grid: "▦",
  checkpoint: "⤓",
  paused: "⏸",
  resumed: "▶",
  finished: "✓",
}

/** @returns {{update: (kinds: Set<string>) => void, destroy: () => void}} */
export function mount(element, { data, graph, notify, show, t }) {
  let shown = AT_ONCE
  let loading = false
  const filters = el("div", { class: "vgd-tools", role: "group", "aria-label": t("events.filter") })
  const rows = el("tbody")
  const table = el(
    "table",
    { class: "vgd-table vgd-events" },
    el(
      "thead",
      null,
      el(
        "tr",
        null,
        ["iteration", "time", "type", "what"].map((key) => el("th", { scope: "col" }, t(`events.${key}`))),
      ),
    ),
    rows,
  )
  const empty = el("p", { class: "vgd-empty" })
  const more = el("button", { type: "button", class: "vg-button", on: { click: older } }, t("events.older"))
  element.append(filters, table, empty, more)

  function draw() {
    const counts = new Map()
    for (const { type } of data.events) counts.set(type, (counts.get(type) ?? 0) + 1)
    filter(counts)
    const fits = data.events.filter(({ type }) => !hidden.has(type)).reverse()
    const keep = new Map([...rows.children].map((row) => [row.dataset.seq, row]))
    arrange(
      rows,
      fits.slice(0, shown).map((event) => keep.get(String(event.seq)) ?? row(event)),
    )
    offerCheckpoints()
    table.hidden = !fits.length
    empty.hidden = fits.length > 0
    text(empty, t(!data.detail ? "detail.loading" : data.events.length ? "events.filtered" : "events.empty"))
    more.hidden = fits.length <= shown && !data.olderEvents
  }

  function filter(counts) {
    const types = [...TYPES, ...[...counts.keys()].filter((type) => !TYPES.includes(type))].filter((type) => counts.has(type))
    const now = types.join()
    if (filters.dataset.types !== now) {
      filters.dataset.types = now
      clear(filters)
      for (const type of types) {
        const box = el("input", {
          type: "checkbox",
          checked: !hidden.has(type),
          on: {
            change: () => {
              hidden[box.checked ? "delete" : "add"](type)
              draw()
            },
          },
        })
        filters.append(
          el(
            "label",
            { class: "vgd-check" },
            box,
            el("span", { class: `vgd-type vgd-type-${known(type)}` }, mark(type), word(type)),
            el("span", { class: "vgd-note vgd-count" }),
          ),
        )
      }
    }
    types.forEach((type, i) => {
      filters.children[i].lastChild.textContent = `(${counts.get(type)}${data.olderEvents ? "+" : ""})`
    })
  }

  function row(event) {
    return el(
      "tr",
      { dataset: { seq: event.seq } },
      el("td", { class: "vgd-number" }, event.iteration ?? ""),
      el("td", null, el("time", { datetime: new Date(event.time * 1000).toISOString() }, clock(event.time))),
      el("td", null, el("span", { class: `vgd-type vgd-type-${known(event.type)}` }, mark(event.type), word(event.type))),
      el("td", null, what(event)),
    )
  }

  function what(event) {
    if (event.type === "grid")
      return el(
        "button",
        { type: "button", class: "vg-link", on: { click: () => show({ tab: "samples", iteration: event.iteration }) } },
        t("events.pictures", { count: event.pictures ?? "" }),
      )
    if (event.type === "evaluation") {
      const scores = Object.entries(event.metrics ?? {}).map(
        ([name, value]) => `${name.replace(/^eval\//, "").replace(/\/mean$/, "")} ${number(value)}`,
      )
      return scores.join(" · ")
    }
    if (event.type === "checkpoint") return checkpoint(event)
    if (event.type === "finished") return event.lora ? t("events.lora", { lora: event.lora }) : ""
    return [event.kind, event.message].filter((part) => typeof part === "string" && part).join(": ")
  }

  function checkpoint(event) {
    const words = `${event.path ?? ""}${event.best ? ` (${t("events.best")})` : ""} `
    if (!graph) return words
    const add = async () => {
      try {
        notify(await graph.addLoraLoader(data.detail, event.iteration), "success")
      } catch (error) {
        notify(error.message, "error")
      }
    }
    const label = t("events.addLora.label", { iteration: event.iteration })
    const dataset = { checkpoint: event.iteration }
    return [
      words,
      el("button", { type: "button", class: "vg-link", "aria-label": label, dataset, on: { click: add } }, t("events.addLora")),
    ]
  }

  /** Old checkpoints are removed as new ones come: what is gone has no LoRA to add. */
  function offerCheckpoints() {
    const kept = new Set((data.detail?.checkpoints ?? []).map(({ iteration }) => iteration))
    for (const button of rows.querySelectorAll("[data-checkpoint]"))
      button.hidden = !kept.has(Number(button.dataset.checkpoint))
  }

  async function older() {
    shown += AT_ONCE
    if (data.olderEvents && !loading) {
      loading = more.disabled = true
      try {
        await data.loadOlderEvents()
      } catch (error) {
        text(empty, error.message)
        empty.hidden = false
        return
      } finally {
        loading = more.disabled = false
      }
    }
    draw()
  }

  const word = (type) => (TYPES.includes(type) ? t(`events.type.${type}`) : type)
  draw()
  return {
    update(kinds) {
      if (kinds.has("events")) draw()
      else if (kinds.has("detail")) offerCheckpoints()
    },
    destroy() {},
  }
}

const known = (type) => (TYPES.includes(type) ? type : "other")
const mark = (type) => el("span", { class: "vgd-mark", "aria-hidden": "true" }, MARKS[type] ?? "•")
