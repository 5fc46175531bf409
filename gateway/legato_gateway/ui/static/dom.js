// Small helpers: elements, rows that keep focus while they change, and numbers formatted for people.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  return fill(element, attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Writes only changed text, so that a focused element keeps its focus, and screen readers repeat nothing.
export function setText(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}

// Keeps one child of `parent` per item, in the items' order: `create` makes it, and `update` shows an item in it.
export function keyed(parent, items, key, create, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let after = null;
  for (const item of items) {
    let child = known.get(key(item));
    if (child) known.delete(key(item));
    else {
      child = create(item);
      child.dataset.key = key(item);
    }
    update(child, item);
    const place = after ? after.nextSibling : parent.firstChild;
    if (place !== child) parent.insertBefore(child, place);
    after = child;
  }
  for (const child of known.values()) child.remove();
}

// Divides a bar into parts: [[class, share of the whole bar], …].
export function setBar(bar, parts) {
  while (bar.children.length < parts.length) bar.append(make("i"));
  parts.forEach(([kind, share], index) => {
    const part = bar.children[index];
    part.className = kind;
    part.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  });
}

export function count(value) {
  if (value === undefined || value === null) return "–";
  return Math.round(value).toLocaleString("en");
}

export function seconds(value) {
  if (value === undefined || value === null) return "–";
  if (value < 0.9995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  return value < 99.95 ? `${value.toFixed(2)} s` : `${Math.round(value)} s`;
}

export const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");
