// What is wrong with the page that is shown, as a list of sentences; an empty list is a good page.
(() => {
  const faults = [];
  const words = element => `${element.tagName.toLowerCase()} "${(element.textContent || "").trim().slice(0, 40)}"`;
  const isShown = element => element.getClientRects().length > 0 && getComputedStyle(element).visibility !== "hidden";

  // The document: language, title, one first heading, no level left out, each identifier once.
  if (!document.documentElement.lang) faults.push("the page names no language");
  if (!document.title.trim()) faults.push("the page has no title");
  if (!document.querySelector("meta[name=viewport]")) faults.push("a phone would shrink the page");
  if (!document.querySelector("main")) faults.push("no main part");
  const levels = [...document.querySelectorAll("h1,h2,h3,h4,h5,h6")].map(heading => Number(heading.tagName[1]));
  if (levels[0] !== 1 || levels.filter(level => level === 1).length !== 1) faults.push("not one first heading, first");
  levels.forEach((level, place) => {
    if (place && level > levels[place - 1] + 1) faults.push(`heading ${place} leaves a level out`);
  });
  const identifiers = [...document.querySelectorAll("[id]")].map(element => element.id);
  if (new Set(identifiers).size !== identifiers.length) faults.push("an identifier is there twice");

  // Width: the page itself never scrolls sideways; what is wider scrolls in a box that a keyboard reaches.
  if (document.documentElement.scrollWidth > WIDTH) {
    const wide = [...document.querySelectorAll("body *")].filter(
      element => element.getBoundingClientRect().right > WIDTH + 1 && !element.closest(".scroll"));
    faults.push(`the page is ${document.documentElement.scrollWidth} wide, from ${wide.slice(0, 3).map(words)}`);
  }
  for (const box of document.querySelectorAll("body *")) {
    const across = getComputedStyle(box).overflowX;
    if (across !== "auto" && across !== "scroll") continue;
    if (box.tabIndex !== 0) faults.push(`no keyboard reaches ${words(box)}`);
    const name = box.getAttribute("aria-label") || document.getElementById(box.getAttribute("aria-labelledby"));
    if (!name) faults.push(`${words(box)} scrolls and has no name`);
  }

  // Tables: head cells with their direction, none of them empty.
  for (const table of document.querySelectorAll("table")) {
    const heads = [...table.querySelectorAll("th")];
    if (!heads.length) faults.push(`${words(table)} has no head cells`);
    for (const head of heads) {
      if (!["row", "col"].includes(head.scope)) faults.push(`${words(head)} names no direction`);
      if (!head.textContent.trim()) faults.push(`an empty head cell in ${words(table)}`);
    }
    if (!table.closest(".scroll")) faults.push(`${words(table)} has no box to scroll in`);
  }

  // Pictures and fields: each has words.
  for (const picture of document.querySelectorAll("svg,img")) {
    const name = picture.getAttribute("aria-label") || picture.getAttribute("alt");
    if (picture.getAttribute("aria-hidden") !== "true" && !(name && name.trim().length > 10))
      faults.push("a picture has no words");
  }
  for (const field of document.querySelectorAll("input:not([type=hidden]),select,textarea,progress,meter")) {
    if (!field.labels?.length && !field.getAttribute("aria-label")) faults.push(`a ${field.tagName} has no label`);
  }

  // Contrast, WCAG 2.1: text 4.5 to 1, large text and lines of charts 3 to 1.
  const parsed = colour => {
    const numbers = colour.match(/[\d.]+/g)?.map(Number);
    return colour === "none" || !numbers ? null : [...numbers.slice(0, 3), numbers.length > 3 ? numbers[3] : 1];
  };
  const over = (top, bottom) => [0, 1, 2].map(at => top[at] * top[3] + bottom[at] * (1 - top[3])).concat(1);
  const ground = element => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(parsed(getComputedStyle(at).backgroundColor));
    const base = matchMedia("(prefers-color-scheme:dark)").matches ? [0, 0, 0, 1] : [255, 255, 255, 1];
    return layers.reverse().filter(Boolean).reduce((below, layer) => over(layer, below), base);
  };
  const light = colour => {
    const [red, green, blue] = colour.slice(0, 3).map(part => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = (one, other) => {
    const [high, low] = [light(one), light(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const judged = (element, colour, least, what) => {
    const below = ground(element), found = contrast(over(colour, below), below);
    if (found < least) faults.push(`${what} ${words(element)}: contrast ${found.toFixed(2)}, needed ${least}`);
    pairs.add(`${colour} on ${below}: ${found.toFixed(2)}`);
  };
  const pairs = new Set();
  for (const element of document.querySelectorAll("body *")) {
    if (!isShown(element) || ["SCRIPT", "STYLE"].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const hasText = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (hasText && element.tagName !== "title") {
      const isDrawn = element instanceof SVGElement;
      const colour = parsed(isDrawn ? style.fill : style.color);
      const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      if (colour) judged(element, colour, isLarge ? 3 : 4.5, "text");
      if (isDrawn && element.getBoundingClientRect().height < 9) faults.push(`${words(element)} is too small to read`);
    }
    if (element.matches("path.line,path.span,polyline,circle")) {
      const colour = parsed(style.stroke) || parsed(style.fill);
      if (colour) judged(element, colour, 3, "line");
    }
  }
  return {faults: [...new Set(faults)], pairs: [...pairs].sort()};
})()
