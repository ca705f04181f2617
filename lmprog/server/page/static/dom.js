// Elements and numbers. Whatever comes from the server is put in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  set(element, attributes);
  element.append(...children);
  return element;
}

/** Sets what has changed only, so that nothing is laid out again for nothing. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }
}

export function say(element, text) {
  const shown = String(text);
  if (element.textContent !== shown) element.textContent = shown;
}

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (value) => whole.format(value);
export const brief = (value) => (value < 10_000 ? whole.format(value) : short.format(value));
export const many = (value, one, more = `${one}s`) => `${count(value)} ${value === 1 ? one : more}`;
export const percent = (share) =>
  share > 0 && share < 0.0005 ? "<0.1%" : `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)}%`;

/** Seconds in the unit that says it best. */
export function duration(seconds) {
  if (seconds < 0.95) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}
