// All elements of this page are created here. Text becomes text nodes, never markup, so no text can run as a script.

export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.className = value;
    else if (typeof value === "boolean") node.toggleAttribute(key, value);
    else if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const NAMES = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "": "∅" };

// Returns a token in visible form: whitespace as signs, and control and direction characters as code points.
export function visible(text) {
  if (text in NAMES) return NAMES[text];
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (char) => NAMES[char] ?? `U+${char.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}`);
}

// Returns running text: whitespace stays, control and direction characters become code points.
export function readable(text) {
  return String(text).replace(/[^\n\t\u0020-\u{10ffff}]|[\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu, visible);
}

export function share(value) {
  const percent = 100 * value;
  return percent > 0 && percent < 0.1 ? "<0.1 %" : `${percent >= 10 ? percent.toFixed(0) : percent.toFixed(1)} %`;
}

export function count(number) {
  return Number(number).toLocaleString("en-GB");
}

// Arrow keys move the focus inside a row or a grid, which is one stop for Tab. `columns` returns the width of the grid.
export function roving(container, selector, columns = () => 1e9) {
  container.addEventListener("keydown", (event) => {
    const items = [...container.querySelectorAll(selector)];
    const at = items.indexOf(event.target.closest(selector));
    if (at < 0) return;
    const wide = columns(items[at]);
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide >= 1e9 ? 1 : wide, ArrowUp: wide >= 1e9 ? -1 : -wide };
    let next = at + (moves[event.key] ?? NaN);
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = items.length - 1;
    if (Number.isNaN(next)) return;
    event.preventDefault();
    next = Math.max(0, Math.min(items.length - 1, next));
    stopAt(items, next);
    items[next].focus();
  });
  container.addEventListener("focusin", (event) => {
    const items = [...container.querySelectorAll(selector)];
    const at = items.indexOf(event.target.closest(selector));
    if (at >= 0) stopAt(items, at);
  });
}

function stopAt(items, place) {
  items.forEach((item, number) => { item.tabIndex = number === place ? 0 : -1; });
}

export function debounced(call, milliseconds) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), milliseconds);
  };
}
