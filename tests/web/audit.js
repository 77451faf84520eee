/** What tests look for in a page; audit.py says what each is. Each is evaluated on the element that is looked through. */
({
  namelessControls: root => {
    const named = node => {
      const ids = (node.getAttribute('aria-labelledby') || '').split(/\s+/)
      const by = ids.map(id => document.getElementById(id)?.textContent || '').join('')
      const label = [...(node.labels || [])].map(label => label.textContent).join('')
      return [node.getAttribute('aria-label'), by, label, node.textContent, node.title, node.alt, node.querySelector("img[alt]")?.alt].some(text => text && text.trim())
    }
    const kinds = 'button, a[href], input:not([type=hidden]), select, textarea, [role=tab], [role=dialog], dialog, summary'
    return [...root.querySelectorAll(kinds)].filter(node => node.checkVisibility() && !named(node)).map(node => node.outerHTML.slice(0, 200))
  },

  // WCAG 2: 4.5 for text, 3 for large text. Pictures and drawings behind a text are not looked at.
  faintTexts: root => {
    const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true })
    const rgba = color => {
      canvas.clearRect(0, 0, 1, 1)
      canvas.fillStyle = color
      canvas.fillRect(0, 0, 1, 1)
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data
      return [r, g, b, a / 255]
    }
    const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1)
    const ground = node => {
      const layers = []
      for (let at = node; at; at = at.parentElement) {
        const color = rgba(getComputedStyle(at).backgroundColor)
        if (color[3] > 0) layers.push(color)
        if (color[3] === 1) break
      }
      return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1])
    }
    const light = color => {
      const [r, g, b] = color.slice(0, 3).map(c => c / 255).map(c => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
      return 0.2126 * r + 0.7152 * g + 0.0722 * b
    }
    const found = new Map()
    const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT)
    while (texts.nextNode()) {
      const words = texts.currentNode.textContent.trim()
      const node = texts.currentNode.parentElement
      if (!words || !node.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue
      if (node.closest(':disabled, [aria-disabled=true], svg, option')) continue
      const style = getComputedStyle(node)
      const below = ground(node)
      const ink = rgba(style.color)
      for (let at = node; at && at !== root; at = at.parentElement) ink[3] *= Number(getComputedStyle(at).opacity)
      const [a, b] = [light(over(ink, below)), light(below)].sort((x, y) => y - x)
      const ratio = (a + 0.05) / (b + 0.05)
      const size = parseFloat(style.fontSize)
      const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700)
      if (ratio >= (large ? 3 : 4.5)) continue
      const colours = `${style.color} on rgb(${below.slice(0, 3).map(Math.round)})`
      found.set(node.className + words.slice(0, 40), `${ratio.toFixed(2)}: "${words.slice(0, 60)}" ${colours} ${node.className}`)
    }
    return [...found.values()]
  },
})
