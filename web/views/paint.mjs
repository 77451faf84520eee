/** Colours of the style sheet in the words that Plotly understands: it knows neither var() nor color-mix(). */

let canvas = null
const known = new Map()

/**
 * @param {HTMLElement} element whose custom properties count
 * @returns {(name: string, fallback?: string) => string} the value of a custom property as rgba(…)
 */
export function palette(element) {
  const style = getComputedStyle(element)
  return (name, fallback = "#888888") => resolved(style.getPropertyValue(name).trim() || fallback)
}

function resolved(color) {
  if (!known.has(color)) {
    canvas ??= new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true })
    canvas.clearRect(0, 0, 1, 1)
    canvas.fillStyle = color
    canvas.fillRect(0, 0, 1, 1)
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data
    if (known.size > 200) known.clear()
    known.set(color, `rgba(${r}, ${g}, ${b}, ${Number((a / 255).toFixed(3))})`)
  }
  return known.get(color)
}
