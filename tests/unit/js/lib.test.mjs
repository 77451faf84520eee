// The pure modules of web/lib, under node: `node --test`. What needs a page is tested in a browser.
import assert from "node:assert/strict"
import { test } from "node:test"

const at = (name) => import(new URL(`../../../web/lib/${name}`, import.meta.url))
const { bytes, clock, duration, number, signed, timeAgo } = await at("format.mjs")
const { apply, emptyTable, merged, put, tableFrom, takeBack } = await at("series.mjs")
const { keys, loadLanguage, t } = await at("text.mjs")
const { answered, listeners, split } = await at("backend.mjs")
const { comfyBackend } = await at("comfy_backend.mjs")
const { serveBackend } = await at("serve_backend.mjs")
const { createStore } = await at("store.mjs")
const { RunData } = await at("run_data.mjs")

test("durations", () => {
  const cases = [[0, "0 s"], [1.26, "1.3 s"], [59.4, "59 s"], [59.6, "1 min"], [200, "3 min 20 s"], [3599, "60 min"], [7500, "2 h 05 min"], [86400, "1 d"], [100000, "1 d 4 h"]]
  for (const [seconds, words] of cases) assert.equal(duration(seconds), words)
  for (const none of [null, undefined, NaN, -1, Infinity, "3"]) assert.equal(duration(none), "–")
})

test("numbers", () => {
  const cases = [[0, "0"], [0.123456, "0.1235"], [-2.5, "-2.5"], [1234.6, "1235"], [2e6, "2e6"], [1.23e-7, "1.23e-7"], [1e-5, "1e-5"], [100, "100"]]
  for (const [x, words] of cases) assert.equal(number(x), words)
  assert.equal(number(null), "–")
  assert.equal(signed(0.5), "+0.5")
  assert.equal(signed(-0.5), "−0.5")
  assert.equal(signed(0), "0")
})

test("times and sizes", () => {
  const cases = [[995, "just now"], [960, "40 s ago"], [700, "5 min ago"], [1000 - 7200, "2 h ago"], [1000 - 3 * 86400, "3 d ago"]]
  for (const [time, words] of cases) assert.equal(timeAgo(time, 1000), words)
  assert.equal(timeAgo(null), "–")
  assert.notEqual(clock(1e9), "–")
  for (const [n, words] of [[0, "0 B"], [1023, "1023 B"], [1536, "1.5 KiB"], [20 * 2 ** 20, "20 MiB"]]) assert.equal(bytes(n), words)
})

test("a table stays rising and whole", () => {
  const table = emptyTable()
  for (const x of [1, 2, 4]) put(table, x, { a: x })
  put(table, 3, { b: 30 })
  put(table, 4, { b: NaN })
  assert.deepEqual(table.x, [1, 2, 3, 4])
  assert.deepEqual(table.columns.get("a"), [1, 2, null, null])
  assert.deepEqual(table.columns.get("b"), [null, null, 30, null])
  assert.equal(takeBack(table, 2), true)
  assert.equal(takeBack(table, 2), false)
  assert.deepEqual([...table.columns].map(([, values]) => values.length), [2, 2])
})

test("events make the tables, and telling them again changes nothing", () => {
  const series = { train: emptyTable(), evaluate: emptyTable() }
  const events = [
    { type: "evaluation", iteration: 0, metrics: { e: 1 } },
    ...[1, 2, 3].map((iteration) => ({ type: "iteration", iteration, metrics: { a: iteration } })),
    { type: "resumed", iteration: 1 },
    { type: "iteration", iteration: 2, metrics: { a: 20 } },
    { type: "grid", iteration: 2 },
  ]
  for (const event of [...events, ...events.slice(2)]) apply(series, event)
  assert.deepEqual(series.train.x, [1, 2])
  assert.deepEqual(series.train.columns.get("a"), [1, 20])
  assert.deepEqual(series.evaluate.x, [0])
})

test("a stretch in more detail, the rest as it was", () => {
  const coarse = tableFrom({ x: [1, 5, 9, 13], columns: { a: [1, 5, 9, 13], only: [0, 0, 0, 0] } })
  const fine = tableFrom({ x: [4, 5, 6, 7], columns: { a: [4, 5, 6, 7], late: [null, 1, 2] } })
  const both = merged(coarse, fine, 4, 7)
  assert.deepEqual(both.x, [1, 4, 5, 6, 7, 9, 13])
  assert.deepEqual(both.columns.get("a"), [1, 4, 5, 6, 7, 9, 13])
  assert.deepEqual(both.columns.get("only"), [0, null, null, null, null, 0, 0])
  assert.deepEqual(both.columns.get("late"), [null, null, 1, 2, null, null, null])
  assert.deepEqual(merged(coarse, tableFrom({}), 20, 30).x, coarse.x)
})

test("texts", async () => {
  assert.equal(t("error.answer", { status: 500 }), "the server answered 500")
  assert.equal(t("error.answer", { other: 1 }), "the server answered {status}")
  assert.equal(t("no.such.key"), "no.such.key")
  assert.equal(t("error.answer", { status: "{status} $& <b>" }), "the server answered {status} $& <b>")
  for (const key of keys()) assert.equal(typeof t(key), "string", key)
  const before = globalThis.fetch
  globalThis.fetch = async (url) => Response.json(url === "x:locales/de.json" ? { "status.running": "läuft", bad: 3 } : {})
  await loadLanguage({ asset: (path) => `x:${path}` }, "de")
  assert.equal(t("status.running"), "läuft")
  assert.equal(t("status.paused"), "paused")
  globalThis.fetch = async () => {
    throw new TypeError("away")
  }
  await loadLanguage({ asset: (path) => path }, "fr")
  assert.equal(t("status.running"), "running")
  globalThis.fetch = before
})

test("answers that are none", async () => {
  const said = async (response) => {
    try {
      return await answered(async () => response)
    } catch (error) {
      return [error.status, error.message]
    }
  }
  assert.deepEqual(await said(Response.json({ a: 1 })), { a: 1 })
  assert.deepEqual(await said(Response.json({ error: "busy" }, { status: 409 })), [409, "busy"])
  assert.deepEqual(await said(new Response("<html>", { status: 502 })), [502, "the server answered 502"])
  assert.deepEqual(await said(new Response("<html>", { status: 200 })), [200, "the server answered 200"])
  await assert.rejects(answered(() => Promise.reject(new TypeError("x"))), { status: 0 })
})

test("one listener that throws keeps no other from hearing", () => {
  const heard = []
  const all = listeners()
  const log = console.error
  console.error = () => {}
  all.add(() => {
    throw new Error("mine")
  })
  const off = all.add((value) => heard.push(value))
  all.tell(1)
  off()
  all.tell(2)
  console.error = log
  assert.deepEqual(heard, [1])
  assert.deepEqual(split("samples/000000/grid.png"), ["samples/000000", "grid.png"])
  assert.deepEqual(split("curve.png"), ["", "curve.png"])
})

test("in ComfyUI everything goes through its api", async () => {
  const asked = []
  const api = new EventTarget()
  api.fetchApi = async (path, options) => {
    asked.push([path, options?.method])
    return Response.json({})
  }
  api.apiURL = (path) => `/base/api${path}`
  const backend = comfyBackend(api, {})
  await backend.get("/vgrpo/runs")
  await backend.post("/vgrpo/runs/a/control", { action: "stop" })
  assert.deepEqual(asked, [["/vgrpo/runs", undefined], ["/vgrpo/runs/a/control", "POST"]])
  const url = new URL(backend.picture({ id: "a", view: { type: "output", subfolder: "vgrpo/a" } }, "samples/000000/grid.png"), "http://x")
  assert.equal(url.pathname, "/base/api/view")
  assert.deepEqual(Object.fromEntries(url.searchParams), { filename: "grid.png", subfolder: "vgrpo/a/samples/000000", type: "output" })
  const report = new URL(backend.picture({ id: "a" }, "curve.png"), "http://x")
  assert.equal(report.searchParams.get("subfolder"), "vgrpo/a")
  assert.equal(backend.asset("plotly.js"), "/base/api/vgrpo/assets/plotly.js")
  const heard = []
  const off = backend.onEvent((message) => heard.push(message))
  api.dispatchEvent(Object.assign(new Event("vgrpo.event"), { detail: { run: "a" } }))
  off()
  api.dispatchEvent(Object.assign(new Event("vgrpo.event"), { detail: { run: "b" } }))
  assert.deepEqual(heard, [{ run: "a" }])
})

test("below any base address", () => {
  const backend = serveBackend("http://x/proxy/8765/", "secret")
  assert.equal(backend.picture({ id: "a" }, "samples/000000/grid.png"), "http://x/proxy/8765/vgrpo/runs/a/samples/000000/grid.png")
  assert.equal(backend.picture({ id: "a" }, "curve.png"), "http://x/proxy/8765/vgrpo/runs/a/reports/curve.png")
  assert.equal(backend.asset("plotly.js"), "http://x/proxy/8765/vgrpo/assets/plotly.js")
  assert.deepEqual(backend.can, { control: true, graph: false })
  assert.deepEqual(serveBackend("http://x/").can, { control: false, graph: false })
})

test("a list that was asked for before a run was deleted does not bring it back", async () => {
  const entry = (id) => ({ id, seq: 1, updated: 1, status: "stopped" })
  const answers = []
  const nothing = () => () => {}
  const backend = {
    pushes: true,
    get: () => new Promise((resolve) => answers.push((...ids) => resolve({ runs: ids.map(entry) }))),
    post: async () => ({ deleted: true }),
    onEvent: nothing,
    onReconnect: nothing,
    onDisconnect: nothing,
  }
  const store = createStore(backend)
  const list = async (...ids) => {
    const asked = store.refresh()
    answers.pop()(...ids)
    await asked
    return store.order
  }
  assert.deepEqual(await list("a", "b"), ["a", "b"])
  const asked = store.refresh()
  await store.act("b", "delete")
  answers.pop()("a", "b")
  await asked
  assert.deepEqual([store.order, [...store.runs.keys()]], [["a"], ["a"]])
  assert.deepEqual(await list("a", "b"), ["a", "b"]) // made anew
})

test("the curves of a run are shown before the rest of it has come", async () => {
  const asked = new Map() // last part of the path -> what answers it
  const get = (path) => new Promise((resolve) => asked.set(path.split("?")[0].split("/").at(-1), resolve))
  const data = new RunData({ get }, "a", null, (fn) => fn())
  const kinds = []
  data.subscribe((changed) => kinds.push([...changed]))
  const done = data.update()
  const soon = () => new Promise((resolve) => setTimeout(resolve))
  assert.deepEqual([...asked.keys()], ["series"]) // nothing else keeps the server from them
  asked.get("series")({ last_seq: 5, train: { x: [1, 2], columns: { a: [3, 4] } }, evaluate: { x: [], columns: {} } })
  await soon()
  assert.deepEqual([data.series.train.x, kinds, data.detail], [[1, 2], [["series"]], null])
  asked.get("a")({ id: "a" })
  asked.get("events")({ last_seq: 7, events: [{ seq: 6, type: "grid", iteration: 2 }], more: false })
  await soon()
  assert.equal(data.detail.id, "a")
  asked.get("events")({ last_seq: 7, events: [{ seq: 6, type: "grid", iteration: 2 }, { seq: 7, type: "iteration", iteration: 3, metrics: { a: 5 } }], more: false })
  await soon()
  asked.get("a")({ id: "a", samples: [] }) // a new grid is described anew
  await done
  assert.deepEqual([data.series.train.x, data.events.map((event) => event.seq)], [[1, 2, 3], [6]])
})
