// A page without a page: the store over real HTTP. Each line on stdin is a question, each line on stdout its answer.
import { createInterface } from "node:readline"

const at = (name) => import(new URL(`../../../web/lib/${name}`, import.meta.url))
const { serveBackend } = await at("serve_backend.mjs")
const { createStore } = await at("store.mjs")

const [base, run, token] = process.argv.slice(2)
const store = createStore(serveBackend(base, token || null), { refreshSeconds: 0.25 })
const told = { list: 0, connections: [], kinds: [] }
store.subscribe((change) => {
  told.list += 1
  if (change.connection) told.connections.push(store.connection)
})
store.start()
const data = store.open(run)
const twin = store.open(run)
data.subscribe((kinds) => told.kinds.push([...kinds]))

function state() {
  const { train, evaluate } = data.series
  return {
    same: data === twin,
    connection: store.connection,
    connections: told.connections,
    order: store.order,
    summary: store.runs.get(run) ?? null,
    detail: data.detail,
    error: data.error?.message ?? null,
    train: { x: train.x, columns: Object.fromEntries(train.columns) },
    evaluate: { x: evaluate.x, columns: Object.fromEntries(evaluate.columns) },
    events: data.events.map((event) => [event.seq, event.type]),
    older: data.olderEvents,
    log: data.log,
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const [what, ...words] = JSON.parse(line)
  let answer
  try {
    if (what === "state") answer = state()
    else if (what === "act") answer = await store.act(...words)
    else if (what === "zoom") answer = await data.zoom(...words)
    else if (what === "older") answer = await data.loadOlderEvents()
    else if (what === "log") answer = await data.loadLog(...words)
    else if (what === "release") {
      store.release(run)
      store.release(run)
      store.stop()
      answer = true
    }
  } catch (error) {
    answer = { error: error.message, status: error.status }
  }
  console.log(JSON.stringify(answer ?? null))
}
process.exit(0)
