/** One picture as large as the window allows, with its prompt, seed and scores. A modal dialog: it holds the focus and gives it back. */

import { clear, el, fill, text } from "../lib/dom.mjs"
import { number, signed } from "../lib/format.mjs"
import { check } from "./fields.mjs"
import { pictureAt, scoresAt } from "./sample_list.mjs"
import { wipeControl, wipePair } from "./wipe.mjs"

const SMALL = 256 // smaller pictures are enlarged with their pixels to be seen

/**
 * @param {object} options
 * @param {object} options.run the run's description, for addresses
 * @param {import("./sample_list.mjs").Evaluation[]} options.evaluations
 * @param {{place: number, row: number, member: number}} options.at
 * @param {number} options.before place of the evaluation that is compared with
 * @param {boolean} [options.wipe] whether it opens with both pictures
 * @param {(evaluation: object) => Promise<object>} options.scores
 * @param {(at: {place: number, row: number, member: number}) => void} options.onClose
 */
export function openLightbox({ backend, run, evaluations, at, before, wipe = false, scores, onClose, t }) {
  let closed = false
  let asked = 0
  const stage = el("div", { class: "vgd-stage" })
  stage.addEventListener("error", () => fill(stage, el("p", { class: "vgd-empty" }, t("samples.unreadable"))), true) // does not bubble
  const title = el("h2", { class: "vgd-light-title" })
  const facts = el("dl", { class: "vgd-facts" })
  const table = el("tbody")
  const live = el("p", { class: "vg-offscreen", "aria-live": "polite" })
  const edge = wipeControl(stage, { label: t("samples.wipe.edge") })
  const compared = check(t("samples.light.compare", { iteration: evaluations[before].iteration }), wipe, draw)
  const compare = compared.firstChild
  const button = (key, sign, go, keys) =>
    el(
      "button",
      {
        type: "button",
        class: "vg-button",
        "aria-label": t(`samples.light.${key}`),
        title: `${t(`samples.light.${key}`)} (${keys})`,
        on: { click: go },
      },
      sign,
    )
  const earlier = button("earlier", "←", () => step(-1), "←")
  const later = button("later", "→", () => step(1), "→")
  const file = el("a", { class: "vg-link", target: "_blank", rel: "noopener" }, t("samples.light.file"))
  const close = el(
    "button",
    { type: "button", class: "vg-button vgd-close", on: { click: () => dialog.close() } },
    t("samples.light.close"),
  )
  const dialog = el(
    "dialog",
    {
      class: "vgrpo vgd vgd-light",
      "aria-label": t("samples.light.title"),
      on: { keydown: key, close: end, click: (event) => event.target === dialog && dialog.close() },
    },
    el(
      "div",
      { class: "vgd-light-inner" },
      stage,
      el(
        "div",
        { class: "vgd-light-side" },
        el(
          "div",
          { class: "vgd-tools" },
          earlier,
          later,
          button("previous", "↑", () => other(-1), "↑"),
          button("next", "↓", () => other(1), "↓"),
          close,
        ),
        title,
        facts,
        compared,
        edge,
        el(
          "table",
          { class: "vgd-table" },
          el(
            "thead",
            null,
            el(
              "tr",
              null,
              el("th", { scope: "col" }, t("samples.reward")),
              el("th", { scope: "col" }, t("samples.score")),
              el("th", { scope: "col" }, t("samples.change", { iteration: evaluations[before].iteration })),
            ),
          ),
          table,
        ),
        file,
        live,
      ),
    ),
  )
  document.body.append(dialog)
  draw() // first: the browser focuses a button that can be pressed
  dialog.showModal()

  function draw() {
    const evaluation = evaluations[at.place]
    const picture = pictureAt(evaluation, at.row, at.member)
    clear(stage)
    clear(facts)
    enable(earlier, at.place > 0)
    enable(later, at.place < evaluations.length - 1)
    const old = pictureAt(evaluations[before], at.row, at.member)
    edge.hidden = !(compare.checked && old && picture)
    if (!picture) stage.append(el("p", { class: "vgd-empty" }, t("samples.missing")))
    else {
      const url = backend.picture(run, picture.path)
      file.setAttribute("href", url)
      const name = t("samples.picture", { prompt: picture.prompt, iteration: evaluation.iteration, seed: picture.seed })
      stage.append(
        edge.hidden
          ? el("img", { src: url, alt: name, class: "vgd-full" })
          : wipePair(backend.picture(run, old.path), url, name),
      )
      for (const image of stage.querySelectorAll("img"))
        image.addEventListener("load", () => image.classList.toggle("vgd-pixels", image.naturalWidth < SMALL))
    }
    file.hidden = !picture
    text(title, picture?.prompt ?? "")
    for (const [word, value] of [
      ["samples.iteration", evaluation.iteration],
      ["samples.seed", picture?.seed ?? "–"],
      [
        "samples.position",
        t("samples.positionOf", {
          row: at.row + 1,
          rows: evaluation.prompts.length,
          member: at.member + 1,
          members: evaluation.perPrompt,
        }),
      ],
    ])
      facts.append(el("dt", null, t(word)), el("dd", null, value))
    text(
      live,
      t("samples.picture", { prompt: picture?.prompt ?? "", iteration: evaluation.iteration, seed: picture?.seed ?? "" }),
    )
    showScores(evaluation)
  }

  /** A focused button that is disabled would leave the focus, and with it the keys, to the page behind. */
  function enable(button, on) {
    if (!on && document.activeElement === button) close.focus()
    button.disabled = !on
  }

  async function showScores(evaluation) {
    const mine = (asked += 1)
    try {
      const [now, then] = await Promise.all([scores(evaluation), scores(evaluations[before])])
      if (closed || mine !== asked) return
      const old = new Map(scoresAt(then, evaluations[before], at.row, at.member))
      clear(table)
      for (const [name, value] of scoresAt(now, evaluation, at.row, at.member)) {
        const change = Number.isFinite(value) && Number.isFinite(old.get(name)) ? signed(value - old.get(name)) : "–"
        table.append(
          el(
            "tr",
            null,
            el("th", { scope: "row" }, name),
            el("td", { class: "vgd-number" }, value === null ? t("samples.unscored") : number(value)),
            el("td", { class: "vgd-number" }, change),
          ),
        )
      }
    } catch (error) {
      if (!closed && mine === asked) clear(table).append(el("tr", null, el("td", { colspan: "3" }, error.message)))
    }
  }

  function step(by) {
    at = { ...at, place: Math.min(evaluations.length - 1, Math.max(0, at.place + by)) }
    draw()
  }

  /** The next or previous picture of the same iteration: seeds first, then prompts. */
  function other(by) {
    const { perPrompt, prompts } = evaluations[at.place]
    const place = Math.min(prompts.length * perPrompt - 1, Math.max(0, at.row * perPrompt + at.member + by))
    at = { ...at, row: Math.floor(place / perPrompt), member: place % perPrompt }
    draw()
  }

  function key(event) {
    event.stopPropagation() // the page behind has keys of its own
    if (event.target === edge || event.altKey || event.ctrlKey || event.metaKey) return
    const go = {
      ArrowLeft: () => step(-1),
      ArrowRight: () => step(1),
      ArrowUp: () => other(-1),
      ArrowDown: () => other(1),
      Home: () => step(-evaluations.length),
      End: () => step(evaluations.length),
      Escape: () => dialog.close(), // ComfyUI's page takes the key from the browser, which would close it by itself
    }[event.key]
    if (!go) return
    event.preventDefault()
    go()
  }

  function end() {
    if (closed) return
    closed = true
    dialog.remove()
    onClose(at)
  }

  return { close: () => dialog.close() }
}
