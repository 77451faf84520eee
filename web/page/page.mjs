/** The panel without ComfyUI: the runs on the left, the chosen one beside them. */

import { el, fill, text } from "../lib/dom.mjs"
import { confirm } from "../lib/dialog.mjs"
import { serveBackend } from "../lib/serve_backend.mjs"
import { createStore } from "../lib/store.mjs"
import { loadStyles } from "../lib/styles.mjs"
import { loadLanguage, t } from "../lib/text.mjs"
import { setDark } from "../lib/theme.mjs"
import * as cards from "../views/cards.mjs"
import * as detail from "../views/detail.mjs"
import { loadPlotly } from "../views/plotly.mjs"
import { pageSettings } from "./settings.mjs"
import { keepToken, takeToken } from "./token.mjs"

const BASE = new URL("../../", import.meta.url)
const REFRESH = [1, 2, 5, 15]
const TOAST_MS = 6000

const settings = pageSettings()

async function start() {
  const token = takeToken()
  const asking = serveBackend(BASE)
  const [about] = await Promise.all([
    asking.get("/vgrpo/about"),
    loadLanguage(asking, navigator.language),
    loadStyles(["page"]),
  ])
  const backend = serveBackend(BASE, about.control ? token : null)
  const store = createStore(backend, { refreshSeconds: () => settings.get("VGRPO.RefreshSeconds") })
  const toasts = el("div", { class: "vgp-toasts", role: "status", "aria-live": "polite" })
  const aside = el("aside", { class: "vgp-runs", "aria-label": t("page.runs") })
  const main = el("main", { class: "vgp-run", id: "vgp-run", tabindex: "-1", "aria-label": t("page.run") })
  const context = { store, backend, graph: null, settings, t, open, notify, confirm }

  theme()
  document.title = `${about.folder} – ${t("page.title")}`
  fill(
    document.body,
    el("a", { class: "vgp-skip", href: "#vgp-run", on: { click: skip } }, t("page.skip")),
    header(about, backend, store),
    el("div", { class: "vgp-columns" }, aside, main),
    toasts,
  )
  cards.mount(aside, context)
  detail.mount(main, context, chosen() ?? undefined)
  window.addEventListener("hashchange", () => chosen() && detail.show(chosen(), {}))
  store.start()
  loadPlotly(backend).catch(() => {}) // it is on its way since index.html came; a chart says what went wrong

  function open(id, options = {}) {
    const address = new URLSearchParams(location.hash.slice(1))
    if (address.get("run") !== id) {
      address.set("run", id)
      history.pushState(null, "", `#${address}`)
    }
    detail.show(id, options)
  }

  function skip(event) {
    event.preventDefault() // the part behind '#' says which run is shown
    main.focus()
  }

  function notify(words, kind = "info") {
    const toast = el("p", { class: ["vgp-toast", `vgp-${kind}`] }, words)
    toasts.append(toast)
    setTimeout(() => toast.remove(), TOAST_MS)
  }
}

/** The run that the address names. */
function chosen() {
  return new URLSearchParams(location.hash.slice(1)).get("run")
}

function header(about, backend, store) {
  const connection = el("span", { class: "vgp-connection", role: "status", "aria-live": "polite" })
  const tell = () => {
    const live = store.connection === "live"
    connection.dataset.state = store.connection
    text(connection, live ? t("connection.live") : t("page.away"))
  }
  store.subscribe((change) => change.connection && tell())
  tell()
  return el(
    "header",
    { class: "vgp-header" },
    el("h1", {}, t("page.title"), el("span", { class: "vgp-folder" }, about.folder)),
    connection,
    el("span", { class: "vgp-space" }),
    choice(
      t("page.refresh"),
      "VGRPO.RefreshSeconds",
      REFRESH.map((s) => [s, t("page.refresh.seconds", { seconds: s })]),
    ),
    choice(
      t("page.theme"),
      "VGRPO.Theme",
      ["auto", "light", "dark"].map((name) => [name, t(`page.theme.${name}`)]),
    ),
    about.control
      ? control(backend.can.control)
      : el("span", { class: "vg-muted", title: t("page.readOnly.hint") }, t("page.readOnly")),
  )
}

function choice(label, id, options) {
  const select = el(
    "select",
    {
      class: "vg-input",
      value: String(settings.get(id)),
      on: { change: () => settings.set(id, options[select.selectedIndex][0]) },
    },
    options.map(([value, words]) => el("option", { value: String(value) }, words)),
  )
  return el("label", { class: "vgp-choice" }, label, select)
}

/** Giving the token and taking it back. Either begins the page anew, so that nothing stays of the other state. */
function control(on) {
  const place = el("span", { class: "vgp-control" })
  const begin = (token) => {
    keepToken(token)
    location.reload()
  }
  const closed = () => {
    const words = on ? t("page.control.leave") : t("page.control.enter")
    fill(
      place,
      on && el("span", { class: "vg-muted" }, t("page.control.on")),
      el("button", { type: "button", class: "vg-button", on: { click: () => (on ? begin(null) : asked()) } }, words),
    )
  }
  const asked = () => {
    const input = el("input", {
      type: "password",
      class: "vg-input",
      autocomplete: "off",
      required: true,
      "aria-label": t("page.control.label"),
      placeholder: t("page.control.label"),
    })
    fill(
      place,
      el(
        "form",
        {
          class: "vgp-token",
          on: {
            submit: (event) => {
              event.preventDefault()
              if (input.value.trim()) begin(input.value.trim())
            },
          },
        },
        input,
        el("button", { type: "submit", class: "vg-button" }, t("page.control.use")),
        el("button", { type: "button", class: "vg-button", on: { click: closed } }, t("page.control.cancel")),
      ),
    )
    input.focus()
  }
  closed()
  return place
}

/** Light or dark as chosen, else as the system is. */
function theme() {
  const system = matchMedia("(prefers-color-scheme: dark)")
  const set = () => {
    const wanted = settings.get("VGRPO.Theme")
    const dark = wanted === "dark" || (wanted !== "light" && system.matches)
    setDark(dark)
    document.documentElement.style.colorScheme = dark ? "dark" : "light"
  }
  system.addEventListener("change", set)
  settings.onChange("VGRPO.Theme", set)
  set()
}

try {
  await start()
} catch (error) {
  fill(document.body, el("p", { class: "vgp-failed", role: "alert" }, t("page.failed", { error: error.message })))
}
