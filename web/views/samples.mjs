/**
 * The held-out pictures: always the same prompts and seeds, so what changes is the policy. All iterations side by side, one
 * iteration to play through, or before and after on top of each other. Only pictures in sight are in the page.
 */

import { clear, el, text } from "../lib/dom.mjs"
import { number } from "../lib/format.mjs"
import { openLightbox } from "./lightbox.mjs"
import { player } from "./player.mjs"
import { sampleCell } from "./sample_cell.mjs"
import { evaluationsOf, pictureAt, placeOf, scoresAt, scoreSource } from "./sample_list.mjs"
import { virtualGrid } from "./virtual.mjs"
import { wipeControl } from "./wipe.mjs"

const MODES = ["all", "one", "wipe"]
const SCORES_MS = 150
const CAPTION = 20
const GAP = 6
const SIDE = 190
const HEAD = 28

/** What the user chose, kept while the panel is closed. */
const chosen = { run: null, mode: "all", size: 112, seed: "all", before: 0, wipe: 50, iteration: null }

/** @returns {{update: (kinds: Set<string>) => void, show: (options: {iteration?: number}) => void, destroy: () => void}} */
export function mount(element, context) {
  const { backend, data, graph, t } = context
  if (chosen.run !== data.id) Object.assign(chosen, { run: data.id, iteration: null, before: 0 })
  const scores = scoreSource(backend, data.id)
  const painters = new WeakMap() // cell -> what shows another iteration in it
  let evaluations = []
  let place = 0
  let items = [] // {row, member} that are shown
  let grid = null
  let light = null

  const modes = el(
    "div",
    { class: "vgd-segments", role: "radiogroup", "aria-label": t("samples.mode") },
    MODES.map((mode) =>
      el(
        "label",
        null,
        el("input", {
          type: "radio",
          name: `vgd-mode-${data.id}`,
          value: mode,
          checked: mode === chosen.mode,
          on: { change: () => setMode(mode) },
        }),
        el("span", null, t(`samples.mode.${mode}`)),
      ),
    ),
  )
  const slider = el("input", {
    type: "range",
    min: "0",
    max: "0",
    step: "1",
    "aria-label": t("samples.iteration"),
    class: "vgd-wide",
    on: {
      input: () => {
        play.stop()
        go(Number(slider.value))
      },
    },
  })
  const shownIteration = el("output", { class: "vgd-number vgd-iteration" })
  const play = player({ at: () => ({ place, last: evaluations.length - 1 }), go, t })
  const seed = el("select", {
    class: "vg-input",
    on: {
      change: () => {
        chosen.seed = seed.value
        arrange()
      },
    },
  })
  const seedField = el("label", { class: "vgd-field" }, t("samples.seeds"), seed)
  const before = el("select", {
    class: "vg-input",
    on: {
      change: () => {
        chosen.before = Number(before.value)
        grid?.refresh()
      },
    },
  })
  const beforeField = el("label", { class: "vgd-field" }, t("samples.before"), before)
  const size = el("input", {
    type: "range",
    class: "vgd-narrow",
    min: "64",
    max: "320",
    step: "16",
    "aria-label": t("samples.size"),
    value: String(chosen.size),
    on: {
      input: () => {
        chosen.size = Number(size.value)
        arrange()
      },
    },
  })
  const area = el("div", { class: "vgd-samples" })
  const edge = wipeControl(area, {
    label: t("samples.wipe.edge"),
    value: chosen.wipe,
    change: (value) => {
      chosen.wipe = value
    },
  })
  const edgeField = el("label", { class: "vgd-field" }, t("samples.wipe.edge"), edge)
  const problem = el("p", { class: "vgd-problem", role: "status", hidden: true })
  const send =
    graph && backend.can.graph
      ? el("button", { type: "button", class: "vg-button", on: { click: sendGrid } }, t("samples.send"))
      : null
  const empty = el("p", { class: "vgd-empty" })
  element.classList.add("vgd-filled")
  element.append(
    el(
      "div",
      { class: "vgd-tools" },
      modes,
      el("span", { class: "vgd-field vgd-grow" }, play.node, slider, shownIteration),
      seedField,
      beforeField,
      edgeField,
      el("label", { class: "vgd-field" }, t("samples.size"), size),
      send,
    ),
    problem,
    empty,
    area,
  )

  // What there is

  function read() {
    const wasLast = place >= evaluations.length - 1
    const first = evaluations.length === 0
    const old = place
    evaluations = evaluationsOf(data.detail)
    empty.hidden = evaluations.length > 0
    text(empty, t(data.detail ? "samples.empty" : "detail.loading"))
    slider.max = String(Math.max(0, evaluations.length - 1))
    for (const part of [area, element.firstChild]) part.hidden = !evaluations.length
    if (!evaluations.length) return
    if (first) place = chosen.iteration === null ? evaluations.length - 1 : placeOf(evaluations, chosen.iteration)
    else if (wasLast && !play.playing() && !light) place = evaluations.length - 1
    place = Math.min(place, evaluations.length - 1)
    choices()
    if (first || !grid) arrange()
    else if (chosen.mode === "all") grid.resize({ columns: evaluations.length })
    if (first || place !== old) go(place)
    else sayPlace() // nobody is scrolled away from what they look at
  }

  function choices() {
    const members = evaluations[0].perPrompt
    seedField.hidden = members < 2
    if (seed.options.length !== members + 1) {
      clear(seed).append(
        el("option", { value: "all" }, t("samples.seeds.all")),
        ...Array.from({ length: members }, (_, i) =>
          el("option", { value: String(i) }, t("samples.seeds.one", { number: i + 1 })),
        ),
      )
      seed.value = chosen.seed !== "all" && Number(chosen.seed) >= members ? "all" : chosen.seed
    }
    if (before.options.length !== evaluations.length) {
      chosen.before = Math.min(chosen.before, evaluations.length - 1)
      clear(before).append(
        ...evaluations.map((evaluation, i) =>
          el("option", { value: String(i) }, t("samples.iterationN", { iteration: evaluation.iteration })),
        ),
      )
      before.value = String(chosen.before)
    }
  }

  function setMode(mode) {
    chosen.mode = mode
    arrange()
    go(place)
  }

  // The grid

  function arrange() {
    grid?.destroy()
    grid = null
    if (!evaluations.length) return
    const { prompts, perPrompt } = evaluations[0]
    const members = seed.value === "all" ? Array.from({ length: perPrompt }, (_, i) => i) : [Number(seed.value)]
    items = prompts.flatMap((_, row) => members.map((member) => ({ row, member })))
    const table = chosen.mode === "all"
    for (const field of [beforeField, edgeField]) field.hidden = chosen.mode !== "wipe"
    const unit = { width: chosen.size + GAP, height: chosen.size + CAPTION + GAP }
    grid = table
      ? virtualGrid(area, {
          label: t("samples.grid"),
          cell: (row, column) => tableCell(items[row], column),
          side: (row) => sideCell(items[row], members.length),
          head: headCell,
        })
      : virtualGrid(area, {
          label: t("samples.grid"),
          cell: (row, column) => itemCell(items[row * wrap() + column]),
          exists: (row, column) => row * wrap() + column < items.length,
        })
    if (table) grid.resize({ ...unit, rows: items.length, columns: evaluations.length, sideWidth: SIDE, headHeight: HEAD })
    else rewrap()
    grid.refresh()
    if (table) grid.reveal(0, place)
  }

  let columns = 1
  const wrap = () => columns

  /** As many pictures in a row as fit. */
  function rewrap() {
    if (!grid || chosen.mode === "all") return
    const unit = chosen.size + GAP
    columns = Math.max(1, Math.floor((area.clientWidth - 14) / unit))
    grid.resize({ width: unit, height: chosen.size + CAPTION + GAP, rows: Math.ceil(items.length / columns), columns })
    grid.refresh()
  }

  const watch = new ResizeObserver(() => {
    if (grid && chosen.mode !== "all" && Math.max(1, Math.floor((area.clientWidth - 14) / (chosen.size + GAP))) !== columns)
      rewrap()
  })
  watch.observe(area)

  /** A cell of the grid. placeNow: whose picture it has; before: whose picture lies under it. */
  function cell(item, placeNow, { before = null, caption = null } = {}) {
    const { node, paint } = sampleCell({
      item,
      evaluation: () => evaluations[placeNow()],
      before,
      address: (path) => backend.picture(data.detail, path),
      caption,
      open: () => enlarge(item, placeNow()),
      t,
    })
    painters.set(node, paint)
    return node
  }

  function tableCell(item, column) {
    const node = cell(item, () => column)
    node.classList.toggle("vgd-current", column === place)
    setTimeout(() => node.isConnected && fillCaption(node, column, item), SCORES_MS) // not for what is only scrolled past
    return node
  }

  function itemCell(item) {
    const before = chosen.mode === "wipe" ? () => evaluations[chosen.before] : null
    return cell(item, () => place, { before, caption: evaluations[0].prompts[item.row] })
  }

  function sideCell(item, members) {
    const prompt = evaluations[0].prompts[item.row] ?? ""
    return el(
      "div",
      { class: "vgd-row-label", title: prompt },
      el("span", null, prompt),
      members > 1 ? el("small", null, t("samples.seeds.one", { number: item.member + 1 })) : null,
    )
  }

  function headCell(column) {
    const { iteration } = evaluations[column]
    const node = el(
      "button",
      {
        type: "button",
        tabindex: "-1",
        class: "vgd-column",
        "aria-label": t("samples.iterationN", { iteration }),
        on: {
          click: () => {
            play.stop()
            go(column)
          },
        },
      },
      iteration,
    )
    node.classList.toggle("vgd-current", column === place)
    return node
  }

  /** The score of the reward that is trained on, or of the first one. */
  function score(found, evaluation, item) {
    const all = scoresAt(found, evaluation, item.row, item.member)
    const trained = Object.keys(data.config?.rewards ?? {})[0]
    const [, value] = all.find(([name]) => name === trained) ?? all[0] ?? []
    return value === undefined ? "" : number(value)
  }

  async function fillCaption(node, column, item) {
    try {
      text(node.lastChild, score(await scores(evaluations[column]), evaluations[column], item))
    } catch {
      // the picture is there without its score; enlarged, it says why
    }
  }

  // Going through iterations

  function go(next) {
    place = Math.max(0, Math.min(evaluations.length - 1, next))
    if (!evaluations.length) return
    chosen.iteration = place === evaluations.length - 1 ? null : evaluations[place].iteration // null: the newest, also later on
    sayPlace()
    if (!grid) return
    if (chosen.mode === "all") {
      const row = Math.max(0, Math.ceil(grid.node.scrollTop / (chosen.size + CAPTION + GAP)))
      grid.reveal(Math.min(row, items.length - 1), place)
      grid.each((node, _, column) => node.classList.toggle("vgd-current", column === place))
      grid.eachHead((node, column) => node.classList.toggle("vgd-current", column === place))
    } else {
      grid.each((node) => painters.get(node)?.())
      preload(place + 1)
    }
  }

  function sayPlace() {
    const words = t("samples.placeOf", { iteration: evaluations[place].iteration, place: place + 1, count: evaluations.length })
    slider.value = String(place)
    slider.setAttribute("aria-valuetext", words)
    text(shownIteration, words)
  }

  /** The pictures that play shows next, so that it does not flicker. */
  function preload(next) {
    const evaluation = evaluations[next]
    if (!evaluation || !play.playing()) return
    grid.each((_, row, column) => {
      const item = items[row * wrap() + column]
      const known = item && pictureAt(evaluation, item.row, item.member)
      if (known) new Image().src = backend.picture(data.detail, known.path)
    })
  }

  // One picture, and back into the graph

  function enlarge(item, from) {
    play.stop()
    light = openLightbox({
      backend,
      run: data.detail,
      evaluations,
      t,
      scores,
      before: Math.min(chosen.before, evaluations.length - 1),
      wipe: chosen.mode === "wipe",
      at: { place: from, row: item.row, member: item.member },
      onClose: (at) => {
        light = null
        if (at.place !== from) go(at.place)
        focusOn(at)
      },
    })
  }

  function focusOn({ place: column, row, member }) {
    const index = items.findIndex((item) => item.row === row && item.member === member)
    if (index < 0 || !grid) return
    if (chosen.mode === "all") grid.reveal(index, column, true)
    else grid.reveal(Math.floor(index / columns), index % columns, true)
  }

  async function sendGrid() {
    send.disabled = true
    try {
      const done = await graph.sendGrid(data.detail, evaluations[place].iteration)
      problem.hidden = true
      if (done) context.notify?.(done, "success")
    } catch (error) {
      text(problem, error.message)
      problem.hidden = false
    } finally {
      send.disabled = false
    }
  }

  read()
  return {
    update(kinds) {
      if (kinds.has("detail")) read()
    },
    show({ iteration }) {
      if (!Number.isFinite(iteration)) return
      chosen.iteration = iteration
      if (evaluations.length) go(placeOf(evaluations, iteration))
    },
    destroy() {
      play.stop()
      light?.close()
      watch.disconnect()
      grid?.destroy()
      element.classList.remove("vgd-filled")
    },
  }
}
