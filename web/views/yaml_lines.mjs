/** Lines of a YAML file as our own writer lays it out: pure, and no parser. */

const LONG = 14 // list entries, of which only the first are shown at once
const FIRST = 6

/**
 * @param {string} yaml
 * @param {Map<string, unknown>} changed dotted key -> the preset's value
 * @returns {{text: string, preset?: unknown, entry: boolean}[]} `preset` where the line's key is among the changed ones
 */
export function marked(yaml, changed) {
  const path = [] // {indent, key} of the mappings around the line
  return yaml
    .replace(/\n$/, "")
    .split("\n")
    .map((text) => {
      const found = /^( *)([A-Za-z0-9_]+):(?: |$)/.exec(text)
      const entry = /^ *- /.test(text) || (!found && /^ +\S/.test(text))
      if (!found) return { text, entry }
      const indent = found[1].length
      while (path.length && path[path.length - 1].indent >= indent) path.pop()
      path.push({ indent, key: found[2] })
      const key = path.map((part) => part.key).join(".")
      return changed.has(key) ? { text, entry, preset: changed.get(key) } : { text, entry }
    })
}

/** The same with the ends of long lists replaced by {folded: lines}. */
export function fold(lines) {
  const out = []
  for (let i = 0; i < lines.length;) {
    let end = i
    while (end < lines.length && lines[end].entry) end += 1
    if (end - i > LONG) {
      out.push(...lines.slice(i, i + FIRST), { folded: lines.slice(i + FIRST, end) })
      i = end
    } else {
      out.push(lines[i])
      i += 1
    }
  }
  return out
}
