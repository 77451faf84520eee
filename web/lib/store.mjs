/**
 * The state of the panel, once for all its views: the list of runs, the runs that are looked at, and the connection.
 *
 * What the server pushes only says that something is new; what it is, is always asked for, by number. A lost message, a
 * reload, a restart of the server therefore lead to the same state.
 */

import { listeners } from "./backend.mjs"
import { RunData } from "./run_data.mjs"
import { isActiveStatus } from "./status.mjs"

const CONTROL = new Set(["pause", "resume", "stop", "checkpoint", "sample"])
/** How often the whole list is asked for: where nobody pushes, runs that others start are only found so. */
const LIST_SECONDS = { pushed: 30, asked: 6 }
const RETRY_SECONDS = 2
const MAX_IDS = 40

/**
 * @param {import("./backend.mjs").Backend} backend
 * @param {{refreshSeconds?: number | (() => number)}} [options] how often a run that changes is looked at; a function is
 *   asked each time, so that a setting acts at once
 */
export function createStore(backend, options = {}) {
  return new Store(backend, options.refreshSeconds ?? 1)
}

class Store {
  constructor(backend, refreshSeconds) {
    /** @type {Map<string, object>} */
    this.runs = new Map()
    /** @type {string[]} newest first */
    this.order = []
    /** @type {"live"|"reconnecting"} */
    this.connection = "live"
    this.loaded = false // whether the list was ever here
    this.error = null // why the last list did not come, null if it did
    this._backend = backend
    this._refreshSeconds = refreshSeconds
    this._told = listeners()
    this._open = new Map() // id -> {data, count}
    this._dirty = new Set()
    this._turn = 0 // counts questions and deletions, to tell which came first
    this._gone = new Map() // id -> the turn of its deletion
    this._pending = null // {ids: Set|null, connection: bool} for the next frame
    this._off = []
    this._timer = null
    this._listAt = 0
    this._listing = null
    this._working = false
    this._started = false
  }

  /** Calls fn({ids, connection}) at most once a frame; ids is null when the list itself changed. Returns what ends it. */
  subscribe(fn) {
    return this._told.add(fn)
  }

  /** Begins to follow the runs. A second call changes nothing. */
  start() {
    if (this._started) return
    this._started = true
    this._off = [
      this._backend.onEvent((message) => this._hear(message)),
      this._backend.onDisconnect(() => this._connect("reconnecting")),
      this._backend.onReconnect(() => {
        this._connect("live")
        this._everything()
      }),
      onShown(() => this._everything()),
    ]
    this._everything()
    this._plan()
  }

  stop() {
    this._started = false
    for (const off of this._off) off()
    this._off = []
    clearTimeout(this._timer)
    this._timer = null
  }

  /** Asks for the whole list; resolves when it is here, rejects with the server's line. */
  refresh() {
    this._listing ??= this._list().finally(() => {
      this._listing = null
    })
    return this._listing
  }

  /** The data of a run, shared by all who open it. Each open needs its release. */
  open(id) {
    let entry = this._open.get(id)
    if (!entry) {
      entry = { data: new RunData(this._backend, id, this.runs.get(id) ?? null, frame), count: 0 }
      this._open.set(id, entry)
      entry.data.update().catch(() => {}) // the data keeps the error for its views
    }
    entry.count += 1
    return entry.data
  }

  release(id) {
    const entry = this._open.get(id)
    if (!entry) return
    entry.count -= 1
    if (entry.count <= 0) {
      entry.data.close()
      this._open.delete(id)
    }
  }

  /**
   * Asks something of a run: pause, resume, stop, checkpoint, sample; restart (a new process for a run that ended early);
   * delete. Resolves when the server has taken it, rejects with the server's line.
   */
  async act(id, action) {
    const path = `/vgrpo/runs/${id}`
    let answer
    if (CONTROL.has(action)) answer = await this._backend.post(`${path}/control`, { action })
    else if (action === "restart") answer = await this._backend.post(`${path}/resume`, {})
    else if (action === "delete") {
      answer = await this._backend.post(`${path}/delete`, {})
      this._drop(id)
      return answer
    } else throw new Error(`unknown action ${action}`)
    this._touch(id)
    return answer
  }

  // What is heard

  _hear(message) {
    const id = message?.run
    if (typeof id !== "string") return
    if (message.type === "deleted") {
      this._drop(id)
      return
    }
    const known = this.runs.get(id)
    if (!known) {
      this.refresh().catch(() => {})
      return
    }
    // What the message itself tells shows at once; curves and pictures are asked for at the chosen rate. Another status has
    // other actions: these are asked for now.
    const other = message.status !== undefined && message.status !== known.status
    for (const key of ["status", "iteration", "iterations", "message"]) {
      if (message[key] !== undefined) known[key] = message[key]
    }
    this._changed([id])
    this._dirty.add(id)
    if (other) this._work()
  }

  /** After an action: look soon, and once more when the run's process has had time to obey. */
  _touch(id) {
    this._dirty.add(id)
    this._work()
    setTimeout(() => this._dirty.add(id), 1500)
  }

  _connect(state) {
    if (this.connection === state) return
    this.connection = state
    this._changed([], true)
    if (state === "reconnecting") this._plan()
  }

  _drop(id) {
    this._gone.set(id, ++this._turn)
    this.runs.delete(id)
    this.order = this.order.filter((other) => other !== id)
    this._dirty.delete(id)
    this._changed(null)
  }

  // What is asked

  /** The list and every open run: after a start, a reconnection, or a while in the background. */
  _everything() {
    for (const [id, { data }] of this._open) {
      this._dirty.delete(id)
      data.update({ describe: true }).catch(() => {})
    }
    this.refresh().catch(() => {})
  }

  async _list() {
    this._listAt = Date.now()
    let entries
    try {
      entries = await this._ask("/vgrpo/runs")
    } catch (error) {
      this.error = error
      this._changed([])
      throw error
    }
    this.error = null
    this.loaded = true
    const order = entries.map((run) => run.id)
    const same = order.length === this.order.length && order.every((id, k) => id === this.order[k])
    this.order = order
    this.runs = new Map(entries.map((run) => [run.id, merge(this.runs.get(run.id), run)]))
    this._take(entries)
    this._changed(same ? order : null)
  }

  /** The entries of an answer, without those deleted since the question: they would come back as cards of nothing. */
  async _ask(path) {
    const asked = ++this._turn
    const { runs } = await this._backend.get(path)
    return runs.filter((run) => !(this._gone.get(run.id) > asked))
  }

  /** New entries of the list; an open run with events that it has not seen is brought up to date. */
  _take(entries) {
    for (const entry of entries) {
      const open = this._open.get(entry.id)
      if (!open) continue
      open.data.takeSummary(this.runs.get(entry.id))
      const stale = open.data.detail !== null && open.data.detail.status !== entry.status
      const logging = open.data.followsLog && isActiveStatus(entry.status) // a model that loads writes lines, and no events
      if (stale || logging || open.data.behind(entry.seq)) open.data.update({ describe: stale }).catch(() => {})
    }
  }

  _plan() {
    clearTimeout(this._timer)
    if (!this._started) return
    const away = this.connection === "reconnecting"
    this._timer = setTimeout(() => this._work().finally(() => this._plan()), (away ? RETRY_SECONDS : this._seconds()) * 1000)
  }

  _seconds() {
    const wanted = typeof this._refreshSeconds === "function" ? this._refreshSeconds() : this._refreshSeconds
    return Math.min(60, Math.max(0.25, Number(wanted) || 1))
  }

  /** One look at what is new. A page that nobody sees asks for nothing; it catches up when it is shown. */
  async _work() {
    if (this._working || (hidden() && this.connection === "live")) return
    this._working = true
    try {
      const pushed = this._backend.pushes
      const every = LIST_SECONDS[pushed ? "pushed" : "asked"] * 1000
      if (this.connection === "reconnecting" || !this.loaded || Date.now() - this._listAt >= every) {
        await this.refresh()
        return
      }
      const ids = new Set(this._dirty)
      this._dirty.clear()
      for (const [id, { data }] of this._open) if (data.followsLog && isActiveStatus(this.runs.get(id)?.status)) ids.add(id)
      if (!pushed) for (const run of this.runs.values()) if (isActiveStatus(run.status)) ids.add(run.id)
      const wanted = [...ids].filter((id) => this.runs.has(id))
      for (let k = 0; k < wanted.length; k += MAX_IDS) await this._look(wanted.slice(k, k + MAX_IDS))
    } catch {
      // The list keeps the error; whoever pushes or asks next tries again.
    } finally {
      this._working = false
    }
  }

  async _look(ids) {
    let entries
    try {
      entries = await this._ask(`/vgrpo/runs?ids=${ids.join(",")}`)
    } catch (error) {
      for (const id of ids) this._dirty.add(id)
      throw error
    }
    for (const run of entries) this.runs.set(run.id, merge(this.runs.get(run.id), run))
    this._take(entries)
    const here = new Set(entries.map((run) => run.id))
    for (const id of ids) if (!here.has(id) && this.runs.has(id)) this._drop(id) // deleted by somebody else
    this._changed(ids)
  }

  // Telling

  _changed(ids, connection = false) {
    const first = this._pending === null
    this._pending ??= { ids: new Set(), connection: false }
    if (ids === null) this._pending.ids = null
    else if (this._pending.ids) for (const id of ids) this._pending.ids.add(id)
    this._pending.connection ||= connection
    if (!first) return
    frame(() => {
      const change = this._pending
      this._pending = null
      this._told.tell(change)
    })
  }
}

/** The new entry; an entry never goes back to fewer events than it had (an answer that was overtaken). */
function merge(old, entry) {
  return old && old.seq > entry.seq && old.updated >= entry.updated ? old : entry
}

function hidden() {
  return typeof document !== "undefined" && document.hidden
}

/** The next frame; a page in the background has none, and a test no page. */
function frame(fn) {
  if (typeof requestAnimationFrame === "function" && !hidden()) requestAnimationFrame(() => fn())
  else setTimeout(fn, 50)
}

function onShown(fn) {
  if (typeof document === "undefined") return () => {}
  const listen = () => {
    if (!document.hidden) fn()
  }
  document.addEventListener("visibilitychange", listen)
  return () => document.removeEventListener("visibilitychange", listen)
}
