/**
 * One run as several views share it: its description, curves, events, log and configuration, followed while it runs.
 *
 * Events are numbered. `seen` is the number up to which all are here; whatever happens (a message lost, the page reloaded,
 * the server restarted), the next question is for those after it, so none is missed and none counts twice.
 */

import { listeners } from "./backend.mjs"
import { apply, become, emptyTable, merged, tableFrom } from "./series.mjs"

const POINTS = 2000
const OLDER = 200
/** Everything but `iteration`, whose metrics are in the series. */
const TOLD = ["grid", "checkpoint", "evaluation", "warning", "error", "finished", "resumed", "paused"]
/** After these the description differs: new pictures, checkpoints, a result. */
const DESCRIBED = new Set(["grid", "checkpoint", "evaluation", "error", "finished", "resumed", "paused"])

export class RunData {
  /**
   * @param {import("./backend.mjs").Backend} backend
   * @param {string} id
   * @param {object|null} summary the list's entry
   * @param {(fn: () => void) => void} schedule runs a function once, at the next frame
   */
  constructor(backend, id, summary, schedule) {
    this.id = id
    this.summary = summary
    this.detail = null
    this.series = { train: emptyTable(), evaluate: emptyTable() }
    this.events = []
    this.olderEvents = false // whether there are some before events[0]
    this.config = null
    this.log = null
    this.loading = true
    this.error = null
    this.window = null // {from, to} that is shown in more detail
    this._backend = backend
    this._schedule = schedule
    this._path = `/vgrpo/runs/${id}`
    this._told = listeners()
    this._kinds = new Set()
    this._seen = 0
    this._coarse = { train: emptyTable(), evaluate: emptyTable() }
    this._fine = null
    this._busy = null
    this._again = null
    this._loaded = false
    this._closed = false
    this._zooms = 0
    this._tail = 0
  }

  /** Calls fn(kinds) at most once a frame; kinds is a Set of summary, detail, series, events, log, config. */
  subscribe(fn) {
    return this._told.add(fn)
  }

  /** Fetches what is new, everything the first time. Calls while one is under way lead to one more after it. */
  update({ describe = false } = {}) {
    if (this._closed) return Promise.resolve()
    if (this._busy) {
      this._again = { describe: describe || Boolean(this._again?.describe) }
      return this._busy
    }
    this._busy = this._update(describe).finally(() => {
      this._busy = null
      const again = this._again
      this._again = null
      if (again) this.update(again).catch(() => {}) // `error` keeps it for the views
    })
    return this._busy
  }

  async loadConfig() {
    this.config = await this._backend.get(`${this._path}/config`)
    this._changed("config")
    return this.config
  }

  /** The last lines of the log; they are followed from then on, until loadLog(0). */
  async loadLog(tail = 200) {
    this._tail = tail
    if (!tail) return this.log
    const { lines } = await this._backend.get(`${this._path}/log?tail=${tail}`)
    this.log = lines
    this._changed("log")
    return lines
  }

  /** The events before those that are here. Returns whether there are still older ones. */
  async loadOlderEvents() {
    if (!this.olderEvents || !this.events.length) return false
    const found = await this._recent(this.events[0].seq)
    this._addEvents(found.events)
    this.olderEvents = found.more
    this._changed("events")
    return found.more
  }

  /** Shows iterations from..to in all their detail (null, null: the whole run again). The rest of the curves stays. */
  async zoom(from, to) {
    const mine = (this._zooms += 1)
    if (from === null || from === undefined || to === null || to === undefined) {
      this.window = null
      this._fine = null
      this._show()
      return
    }
    const window = { from: Math.max(0, Math.floor(Math.min(from, to))), to: Math.max(0, Math.ceil(Math.max(from, to))) }
    const answer = await this._backend.get(`${this._path}/series?points=${POINTS}&from=${window.from}&to=${window.to}`)
    if (mine !== this._zooms || this._closed) return // another was asked for meanwhile
    this.window = window
    this._fine = { train: tableFrom(answer.train), evaluate: tableFrom(answer.evaluate), last: answer.last_seq }
    this._show()
  }

  /** Whether there are events after those that are here. */
  behind(seq) {
    return !this._loaded || seq !== this._seen
  }

  get followsLog() {
    return this._tail > 0
  }

  /** Nobody looks any more. */
  close() {
    this._closed = true
  }

  /** The list's new entry. */
  takeSummary(summary) {
    this.summary = summary
    this._changed("summary")
  }

  async _update(describe) {
    try {
      if (this._loaded) {
        const found = await this._pull()
        if (describe || found.some((event) => DESCRIBED.has(event.type))) await this._describe()
      } else {
        await this._load()
      }
      if (this._tail) await this.loadLog(this._tail)
      this.error = null
    } catch (error) {
      this.error = error
      this._changed("summary")
      throw error
    } finally {
      this.loading = false
    }
  }

  async _load() {
    // The curves alone at first: they are what is looked at, and of a long run the server's most work.
    const series = await this._backend.get(`${this._path}/series?points=${POINTS}`)
    this._takeSeries(series)
    const [detail, recent] = await Promise.all([this._backend.get(this._path), this._recent(Number.MAX_SAFE_INTEGER)])
    // From the older of the two answers on: telling an event again changes nothing.
    this._seen = Math.min(series.last_seq, recent.last_seq)
    this.detail = detail
    this.events = []
    this._addEvents(recent.events)
    this.olderEvents = recent.more
    this._loaded = true
    this._changed("detail", "series", "events")
    const meanwhile = await this._pull()
    if (meanwhile.some((event) => DESCRIBED.has(event.type))) await this._describe()
  }

  async _describe() {
    this.detail = await this._backend.get(this._path)
    this._changed("detail")
  }

  /** All events after `seen`, in windows. Returns those that are no iterations. */
  async _pull() {
    const told = []
    for (;;) {
      const answer = await this._backend.get(`${this._path}/events?after=${this._seen}`)
      if (answer.last_seq < this._seen) {
        // Another file lies there now (a run copied back): begin anew.
        this._loaded = false
        await this._load()
        return told
      }
      let curves = false
      for (const event of answer.events) {
        if (event.seq <= this._seen) continue
        this._seen = event.seq
        curves = apply(this._coarse, event) || curves
        if (this._fine) apply(this._fine, event)
        if (event.type !== "iteration") told.push(event)
      }
      if (curves) this._show()
      if (!answer.more) break
    }
    if (told.length) {
      this._addEvents(told)
      this._changed("events")
    }
    if (this._coarse.train.x.length > 2 * POINTS && !this._fine) await this._thin()
    return told
  }

  /** A page that is open for days holds no more of a curve than it can show. `seen` stays: the next question is as before. */
  async _thin() {
    this._takeSeries(await this._backend.get(`${this._path}/series?points=${POINTS}`))
  }

  _takeSeries(answer) {
    this._coarse = { train: tableFrom(answer.train), evaluate: tableFrom(answer.evaluate) }
    this._show()
  }

  _show() {
    for (const name of ["train", "evaluate"]) {
      const coarse = this._coarse[name]
      become(this.series[name], this._fine ? merged(coarse, this._fine[name], this.window.from, this.window.to) : coarse)
    }
    this._changed("series")
  }

  _recent(before) {
    return this._backend.get(`${this._path}/events?before=${before}&limit=${OLDER}&types=${TOLD.join(",")}`)
  }

  _addEvents(found) {
    const bySeq = new Map(this.events.map((event) => [event.seq, event]))
    for (const event of found) bySeq.set(event.seq, event)
    this.events = [...bySeq.values()].sort((a, b) => a.seq - b.seq)
  }

  _changed(...kinds) {
    if (this._closed) return
    const first = this._kinds.size === 0
    for (const kind of kinds) this._kinds.add(kind)
    if (first) {
      this._schedule(() => {
        const all = this._kinds
        this._kinds = new Set()
        if (!this._closed) this._told.tell(all)
      })
    }
  }
}
