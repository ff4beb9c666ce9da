// Messages about every visible text whose contrast with its background is below WCAG's AA; and the number of texts examined.
(() => {
  const parse = color => {
    const numbers = (color.match(/[\d.]+/g) || []).map(Number);
    return color.startsWith("rgb") && (numbers.length < 4 || numbers[3] > 0) ? numbers.slice(0, 3) : null;
  };
  const luminance = rgb => {
    const [r, g, b] = rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color) return color;
    }
    return [255, 255, 255];
  };
  // In an SVG, the last rectangle drawn before the text that contains its centre.
  const drawn = text => {
    const box = text.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
    let found = null;
    for (const rect of text.ownerSVGElement.querySelectorAll("rect")) {
      const area = rect.getBoundingClientRect(), fill = parse(getComputedStyle(rect).fill);
      const holds = area.left <= x && x <= area.right && area.top <= y && y <= area.bottom;
      const before = rect.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING;
      if (holds && before && fill) found = fill;
    }
    return found || behind(text.ownerSVGElement);
  };
  document.querySelectorAll("details").forEach(details => details.open = true);
  document.querySelectorAll("#stale").forEach(stale => { stale.hidden = false; stale.textContent ||= "Out of date"; });
  const bad = [];
  let looked = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest("script, style, noscript, title, desc, option")) continue;
    if (!element.checkVisibility() || !element.getClientRects().length) continue;
    const style = getComputedStyle(element), svg = element.ownerSVGElement;
    const color = parse(svg ? style.fill : style.color), back = svg ? drawn(element) : behind(element);
    const size = parseFloat(style.fontSize), bold = Number(style.fontWeight) >= 700;
    const least = size >= 24 || bold && size >= 18.66 ? 3 : 4.5;
    looked++;
    if (!color || ratio(color, back) < least)
      bad.push(node.data.trim().slice(0, 40) + ": " + style.color + " on rgb(" + back + ")");
  }
  for (const tile of document.querySelectorAll("rect.tile, rect.box")) {
    looked++;
    if (ratio(parse(getComputedStyle(tile).stroke), behind(tile.ownerSVGElement)) < 3) bad.push("shape " + tile.outerHTML);
  }
  return {bad, looked};
})()
