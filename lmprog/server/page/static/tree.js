// The radix tree as an icicle: from left to right positions in tokens, one row for each leaf, so that what is shared is
// tall. Sequences that run are drawn behind the node that they stand on, as far as they have come.

import { count, duration, many, percent, say, set, svg } from "./dom.js";

const ROW = { least: 3, most: 30 };
const HEIGHT = { wide: 340, narrow: 260 };
const AXIS = 22;
const GAP = 8; // between cache partitions (salts)
const AGES = [5, 10, 60, 600]; // seconds: the borders of the shades

const FIELDS = ["number", "parent", "begin", "tokens", "pages", "age", "locks", "pins", "leftOut", "salt", "text"];

export class TreePlot {
  constructor(frame, plot, details, empty) {
    this.frame = frame;
    this.plot = plot;
    this.details = details;
    this.empty = empty;
    this.blocks = svg("g");
    this.axis = svg("g", { class: "axis", "aria-hidden": "true" });
    plot.append(this.blocks, this.axis);
    this.drawn = new Map(); // key -> {group, rect, label, more}
    this.items = [];
    this.focused = null;
    this.hint = details.textContent;
    this.snapshot = null;
    plot.addEventListener("pointermove", (event) => this.point(event));
    plot.addEventListener("pointerdown", (event) => this.point(event, true));
    plot.addEventListener("pointerleave", () => this.show(this.focused));
    plot.addEventListener("keydown", (event) => this.walk(event));
    plot.addEventListener("focus", () => this.focus(this.focused ?? this.items[0]?.key ?? null));
    plot.addEventListener("blur", () => this.focus(null));
    new ResizeObserver(() => this.snapshot && this.draw(this.snapshot)).observe(frame);
  }

  draw(snapshot) {
    this.snapshot = snapshot;
    const items = arranged(snapshot);
    this.items = items;
    this.empty.hidden = items.length > 0;
    this.plot.toggleAttribute("hidden", !items.length); // SVG elements have no `hidden` property
    if (!items.length) {
      this.clear();
      return;
    }
    const width = Math.max(200, this.frame.clientWidth);
    const longest = Math.max(16, ...items.map((item) => item.end));
    const rows = Math.max(...items.map((item) => item.row + item.rows));
    const groups = Math.max(...items.map((item) => item.group));
    const room = (width < 560 ? HEIGHT.narrow : HEIGHT.wide) - groups * GAP;
    const row = Math.min(ROW.most, Math.max(ROW.least, Math.floor(room / rows)));
    const height = rows * row + groups * GAP + AXIS;
    const scale = (width - 2) / longest;
    set(this.plot, { viewBox: `0 0 ${width} ${height}`, width, height });
    const seen = new Set();
    for (const item of items) {
      seen.add(item.key);
      this.place(item, scale, row);
    }
    for (const [key, parts] of this.drawn) {
      if (!seen.has(key)) {
        parts.group.remove();
        this.drawn.delete(key);
      }
    }
    this.drawAxis(longest, scale, width, height - AXIS);
    // What had the focus may be gone, or may have become a node of the tree: the keyboard stays in the plot.
    if (this.focused !== null && !seen.has(this.focused)) this.focus(this.hasFocus() ? items[0].key : null);
    else if (this.focused === null && this.hasFocus()) this.focus(items[0].key);
    else if (this.shown !== null) this.show(this.shown);
  }

  clear() {
    for (const parts of this.drawn.values()) parts.group.remove();
    this.drawn.clear();
    this.focused = null;
    this.show(null);
  }

  place(item, scale, row) {
    let parts = this.drawn.get(item.key);
    if (!parts) {
      parts = { group: svg("g", { role: "treeitem", id: `node-${item.key}` }), rect: svg("rect"), label: svg("text") };
      parts.held = svg("rect", { class: "held" });
      parts.group.append(parts.rect, parts.held, parts.label);
      this.drawn.set(item.key, parts);
      this.blocks.append(parts.group);
    }
    const x = 1 + item.begin * scale;
    const y = item.row * row + item.group * GAP;
    const wide = Math.max(2, item.tokens * scale);
    const tall = item.rows * row;
    set(parts.group, {
      class: `node ${look(item)}${item.key === this.focused ? " focused" : ""}`,
      "aria-level": item.depth + 1,
      "aria-label": sentence(item),
      "data-key": item.key,
    });
    set(parts.rect, { x: round(x), y: round(y), width: round(wide), height: round(tall), rx: row > 8 ? 2 : 0 });
    const holds = item.pins > 0 && !item.sequence;
    const thick = holds ? Math.min(3, tall / 3) : 0;
    set(parts.held, { x: round(x), y: round(y + tall - thick), width: holds ? round(wide) : 0, height: round(thick) });
    const text = tall >= 14 && wide > 26 ? label(item, wide) : "";
    set(parts.label, { x: round(x + 5), y: round(y + tall / 2 + 4) });
    say(parts.label, text);
  }

  drawAxis(longest, scale, width, top) {
    const step = nice(longest / Math.max(2, Math.floor(width / 90)));
    const marks = [svg("line", { x1: 0, x2: width, y1: top + 3.5, y2: top + 3.5 })];
    for (let at = 0; at * scale < width - 40; at += step) {
      const x = round(1 + at * scale);
      marks.push(svg("line", { x1: x, x2: x, y1: top + 3.5, y2: top + 7.5 }));
      marks.push(svg("text", { x, y: top + 19, "text-anchor": at ? "middle" : "start" }, count(at)));
    }
    marks.push(svg("text", { x: width, y: top + 19, "text-anchor": "end" }, "tokens"));
    this.axis.replaceChildren(...marks);
  }

  point(event, down = false) {
    const key = event.target.closest("[data-key]")?.dataset.key ?? null;
    if (down && key !== null) this.focus(key);
    this.show(key ?? this.focused);
  }

  hasFocus() {
    return document.activeElement === this.plot;
  }

  focus(key) {
    this.focused = key;
    for (const [own, parts] of this.drawn) parts.group.classList.toggle("focused", own === key);
    if (this.drawn.has(key)) this.blocks.append(this.drawn.get(key).group); // in front of its neighbours
    set(this.plot, { "aria-activedescendant": key === null ? null : `node-${key}` });
    this.show(key);
  }

  /** Arrow keys: to the parent, the first child, the neighbours. */
  walk(event) {
    const at = this.items.find((item) => item.key === this.focused);
    const to = {
      ArrowLeft: () => at && this.items.find((item) => item.key === at.parent),
      ArrowRight: () => at && this.items.find((item) => item.parent === at.key),
      ArrowUp: () => at && beside(this.items, at, -1),
      ArrowDown: () => (at ? beside(this.items, at, 1) : this.items[0]),
      Home: () => this.items[0],
      End: () => this.items.at(-1),
    }[event.key];
    if (!to) return;
    event.preventDefault();
    const found = to();
    if (found) this.focus(found.key);
  }

  show(key) {
    const item = this.items.find((one) => one.key === key);
    this.shown = item ? key : null;
    if (!item) {
      say(this.details, this.hint);
      return;
    }
    say(this.details, sentence(item));
    if (item.text) {
      const quote = document.createElement("q");
      quote.textContent = item.text;
      this.details.append(" ", quote);
    }
  }
}

/** Nodes and running sequences with their rows, in the order in which they are drawn. */
function arranged(snapshot) {
  const nodes = snapshot.nodes.map((values) => Object.fromEntries(FIELDS.map((name, at) => [name, values[at]])));
  const below = new Map([[null, []]]);
  for (const node of nodes) {
    node.key = String(node.number);
    node.parent = node.parent < 0 ? null : nodes[node.parent].key;
    node.end = node.begin + node.tokens;
    node.order = [node.salt, node.number];
    push(below, node.parent, node);
  }
  const byKey = new Map(nodes.map((node) => [node.key, node]));
  for (const sequence of snapshot.running) {
    const on = sequence.node === null ? null : byKey.get(String(sequence.node));
    const begin = on?.end ?? 0;
    if (sequence.tokens <= begin) continue;
    push(below, on?.key ?? null, {
      key: `sequence-${sequence.call}-${sequence.branch}-${sequence.index}`,
      parent: on?.key ?? null,
      begin,
      end: sequence.tokens,
      tokens: sequence.tokens - begin,
      salt: on?.salt ?? "",
      order: [on?.salt ?? "", Infinity],
      age: 0,
      locks: 0,
      pins: 0,
      sequence,
    });
  }
  const items = [];
  let row = 0;
  let group = -1;
  let salt = null;
  const place = (node, depth) => {
    const first = row;
    Object.assign(node, { row, depth, group });
    items.push(node);
    for (const child of sorted(below.get(node.key) ?? [])) place(child, depth + 1);
    if (row === first) row += 1;
    node.rows = row - first;
  };
  for (const top of sorted(below.get(null))) {
    if (top.salt !== salt) {
      group += 1;
      salt = top.salt;
    }
    place(top, 0);
  }
  return items;
}

function sorted(nodes) {
  return nodes.sort((a, b) => (a.order[0] < b.order[0] ? -1 : a.order[0] > b.order[0] ? 1 : a.order[1] - b.order[1] || 0));
}

function push(map, key, value) {
  if (map.has(key)) map.get(key).push(value);
  else map.set(key, [value]);
}

/** The next item above or below in the same depth, or else simply the next. */
function beside(items, at, by) {
  const level = items.filter((item) => item.depth === at.depth);
  return level[level.indexOf(at) + by] ?? items[items.indexOf(at) + by];
}

function look(item) {
  if (item.sequence) return "ghost";
  if (item.locks) return "hot";
  const shade = AGES.findIndex((border) => item.age < border);
  return `age-${shade < 0 ? AGES.length : shade}`;
}

function label(item, wide) {
  const letters = Math.floor((wide - 10) / 6.6);
  const words = item.text ? item.text.replaceAll(/\s+/g, " ").trim() : "";
  if (words && letters > 8) return words.length > letters ? `${words.slice(0, letters - 1)}…` : words;
  const number = count(item.tokens);
  return number.length <= letters ? number : "";
}

function sentence(item) {
  if (item.sequence) {
    const sequence = item.sequence;
    const done = sequence.maxTokens ? `, ${count(sequence.generated)} of at most ${count(sequence.maxTokens)} generated` : "";
    return `Call ${sequence.call} is in ${sequence.phase}: ${many(item.tokens, "token")} that are not in the tree yet${done}.`;
  }
  const parts = [`${many(item.tokens, "token")} at ${count(item.begin)}–${count(item.end)}, ${many(item.pages, "page")}`];
  if (item.locks) parts.push(`${many(item.locks, "running call")} on it`);
  else parts.push(`last used ${duration(item.age)} ago`);
  if (item.pins) parts.push(`held by ${many(item.pins, "open branch", "open branches")}`);
  if (item.leftOut) parts.push(`${many(item.leftOut, "continuation")} not shown`);
  if (item.salt) parts.push(`cache of its own: ${item.salt}`);
  return `${parts.join(" · ")}.`;
}

function nice(step) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, step)));
  return [1, 2, 5, 10].map((by) => by * power).find((by) => by >= step);
}

const round = (value) => Math.round(value * 10) / 10;

/** One line on the whole. */
export function treeNote(snapshot) {
  const { figures } = snapshot;
  const hidden = snapshot.nodesLeftOut ? `, the largest ${count(snapshot.nodes.length)} shown` : "";
  const share = figures.pages ? percent(figures.pages_cached / figures.pages) : "0%";
  return `${many(figures.tree_nodes, "node")} in ${many(figures.pages_cached, "page")}, ${share} of the memory${hidden}`;
}
