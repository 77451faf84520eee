/**
 * Elements without markup: text is only ever set as text, so whatever a prompt, a name or an error holds shows as it is.
 */

const SVG = "http://www.w3.org/2000/svg"
/** Attributes through which text could become markup or script. */
const FORBIDDEN = /^(on.*|innerhtml|outerhtml|srcdoc)$/i
const LINKS = /^(href|src|action|formaction|xlink:href)$/i
/** Attributes that are there or not; every other boolean (aria-pressed, draggable) is written as a word. */
const FLAGS =
  /^(hidden|disabled|checked|selected|open|readonly|required|multiple|autofocus|inert|loop|controls|muted|novalidate)$/i

/**
 * An HTML element.
 * @param {string} tag
 * @param {object} [props] class: text or list (falsy left out); dataset: {name: value}; style: {property: value}, also
 *   custom properties; on: {event: function}; value, checked, indeterminate, selected and disabled as properties;
 *   anything else as an attribute (null, undefined and a false flag leave it out; aria-* booleans are written as words).
 * @param {...(Node|string|number|null|undefined|false|Array)} children texts become text nodes
 * @returns {HTMLElement}
 */
export function el(tag, props, ...children) {
  return build(document.createElement(tag), props, children)
}

/** An SVG element; see `el`. */
export function svg(tag, props, ...children) {
  return build(document.createElementNS(SVG, tag), props, children)
}

/** Removes all children. Returns the node. */
export function clear(node) {
  node.replaceChildren()
  return node
}

/** Sets a node's text, without touching the page if it is that already. Returns the node. */
export function text(node, string) {
  const wanted = string === null || string === undefined ? "" : String(string)
  if (node.textContent !== wanted || node.childElementCount) node.textContent = wanted
  return node
}

/** Sets properties of an element that is there, with the meanings they have in `el`. Returns it. */
export function set(node, props) {
  for (const [name, value] of Object.entries(props ?? {})) assign(node, name, value)
  return node
}

/** Replaces all children, with the meanings they have in `el`. Returns the node. */
export function fill(node, ...children) {
  clear(node)
  append(node, children)
  return node
}

/**
 * Makes `children` all that a node holds, in their order. What is in its place already is not touched: moving an element takes
 * the focus from it.
 */
export function arrange(node, children) {
  const wanted = new Set(children)
  for (const child of [...node.children]) if (!wanted.has(child)) child.remove()
  children.forEach((child, at) => {
    if (node.children[at] !== child) node.insertBefore(child, node.children[at] ?? null)
  })
}

function build(node, props, children) {
  // Children first: a select can only take a value that one of its options has.
  append(node, children)
  return set(node, props)
}

function append(node, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(node, child)
    else if (child instanceof Node) node.appendChild(child)
    else if (child !== null && child !== undefined && child !== false && child !== true)
      node.appendChild(document.createTextNode(String(child)))
  }
}

function assign(node, name, value) {
  if (name === "class") {
    const names = Array.isArray(value) ? value.flat().filter(Boolean).join(" ") : (value ?? "")
    if (names) node.setAttribute("class", names)
    else node.removeAttribute("class")
  } else if (name === "dataset") {
    for (const [key, item] of Object.entries(value ?? {})) {
      if (item === null || item === undefined) delete node.dataset[key]
      else node.dataset[key] = String(item)
    }
  } else if (name === "style") {
    for (const [key, item] of Object.entries(value ?? {})) {
      if (key.startsWith("--")) node.style.setProperty(key, String(item))
      else node.style[key] = item ?? ""
    }
  } else if (name === "on") {
    for (const [event, listener] of Object.entries(value ?? {})) if (listener) node.addEventListener(event, listener)
  } else if (["value", "checked", "indeterminate", "selected", "disabled"].includes(name) && name in node) {
    node[name] = value ?? (name === "value" ? "" : false)
  } else if (FORBIDDEN.test(name)) {
    throw new TypeError(`${name} is not set on elements; use "on", or text`)
  } else if (value === null || value === undefined || (value === false && FLAGS.test(name))) {
    node.removeAttribute(name)
  } else if (LINKS.test(name) && /^[\s\0-\x1f]*(javascript|vbscript):/i.test(String(value))) {
    node.removeAttribute(name)
  } else {
    node.setAttribute(name, value === true && FLAGS.test(name) ? "" : String(value))
  }
}
