/** Numbers, times and sizes for people. Nothing here knows about runs. */

const NONE = "–"

/** A length of time: 8 s, 3 min 20 s, 2 h 05 min, 4 d 3 h. Not a number: a dash. */
export function duration(seconds) {
  if (!isNumber(seconds) || seconds < 0) return NONE
  if (seconds < 9.95) return `${Number(seconds.toFixed(1))} s`
  const whole = Math.round(seconds)
  if (whole < 60) return `${whole} s`
  if (whole < 3600)
    return whole % 60 && whole < 600 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${Math.round(whole / 60)} min`
  const minutes = Math.round(whole / 60)
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`
  const hours = Math.round(minutes / 60)
  return hours % 24 ? `${Math.floor(hours / 24)} d ${hours % 24} h` : `${hours / 24} d`
}

/** A number with four significant digits at most; very large and very small ones as 1.2e-7. Not a number: a dash. */
export function number(x) {
  if (!isNumber(x)) return NONE
  if (x === 0) return "0"
  const size = Math.abs(x)
  if (size >= 1e6 || size < 1e-4)
    return x
      .toExponential(2)
      .replace(/\.?0+e/, "e")
      .replace("e+", "e")
  if (size >= 1000) return String(Math.round(x))
  return String(Number(x.toPrecision(4)))
}

/** The same with its sign, for changes: +0.12, -3, 0. */
export function signed(x) {
  return isNumber(x) && x > 0 ? `+${number(x)}` : number(x).replace(/^-/, "−")
}

/** How long ago a time (seconds since 1970) was. `now` for tests. */
export function timeAgo(time, now = Date.now() / 1000) {
  if (!isNumber(time)) return NONE
  const ago = now - time
  if (ago < 10) return "just now"
  if (ago < 60) return `${Math.round(ago)} s ago`
  if (ago < 3600) return `${Math.round(ago / 60)} min ago`
  if (ago < 86400) return `${Math.round(ago / 3600)} h ago`
  return `${Math.round(ago / 86400)} d ago`
}

/** A size: 512 B, 1.5 KiB, 20 MiB. */
export function bytes(n) {
  if (!isNumber(n) || n < 0) return NONE
  const units = ["B", "KiB", "MiB", "GiB", "TiB"]
  let at = 0
  while (n >= 1023.5 && at < units.length - 1) {
    n /= 1024
    at += 1
  }
  return `${at && n < 9.95 ? n.toFixed(1) : Math.round(n)} ${units[at]}`
}

/** A time of day, with the date when it is not today's, in the browser's own way. Seconds since 1970. */
export function clock(time) {
  if (!isNumber(time)) return NONE
  const date = new Date(time * 1000)
  const options = { hour: "2-digit", minute: "2-digit", second: "2-digit" }
  if (date.toDateString() === new Date().toDateString()) return date.toLocaleTimeString([], options)
  return date.toLocaleString([], { ...options, year: "numeric", month: "short", day: "numeric" })
}

function isNumber(x) {
  return typeof x === "number" && Number.isFinite(x)
}
