/** English texts under "log."; see lib/text.mjs. */
export const texts = {
  "log.title": "Log of the run",
  "log.show": "Show",
  "log.lines": "the last {count} lines",
  "log.follow": "Follow",
  "log.empty": "The log is empty.",
  "log.failed": "The log could not be read: {error}",
}
