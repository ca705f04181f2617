// The radix tree as an icicle: from left to right positions in tokens, one row for each leaf, so that what is shared is
// tall. Sequences that run are drawn behind the node that they stand on, as far as they have come. One may zoom into a
// block, open it, and search.

import { arranged, forest } from "./arrange.js";
import { byId, count, el, many, percent, say, set, svg } from "./dom.js";
import { OpenedBlock } from "./opened.js";
import { Refused, value } from "./stream.js";
import { label, sentence, shorten } from "./words.js";

const ROW = { least: 16, most: 30 }; // a word fits into the lowest one
const HEIGHT = { wide: 400, narrow: 320 };
const AXIS = 22;
const GAP = 8; // between cache partitions (salts)
const AGES = [5, 10, 60, 600]; // seconds: the borders of the shades
const REFRESH = 1000; // milliseconds between two pictures of the part that is zoomed into
const MOST_FOUND = 12;

export class TreePlot {
  constructor(requests) {
    this.frame = byId("plot-frame");
    this.plot = byId("plot");
    this.details = byId("details");
    this.empty = byId("tree-empty");
    this.crumbs = byId("crumbs");
    this.blocks = svg("g");
    this.axis = svg("g", { class: "axis", "aria-hidden": "true" });
    this.plot.append(this.blocks, this.axis);
    this.drawn = new Map(); // key -> {group, rect, held, label}
    this.items = [];
    this.focused = null;
    this.hint = this.details.textContent;
    this.whole = null; // the newest picture of the whole tree
    this.zoom = []; // blocks that were zoomed into, the innermost last
    this.part = null; // the newest picture of the innermost
    this.extra = 0; // more rows than fit, where somebody asked for them
    this.hits = new Set();
    this.marked = new Set();
    this.opened = new OpenedBlock(requests, (number) => this.zoomInto(number));
    const { plot } = this;
    plot.addEventListener("pointermove", (event) => this.show(this.keyAt(event) ?? this.focused));
    plot.addEventListener("pointerleave", () => this.show(this.focused));
    plot.addEventListener("click", (event) => this.click(this.keyAt(event)));
    plot.addEventListener("dblclick", (event) => this.zoomTo(this.keyAt(event)));
    plot.addEventListener("keydown", (event) => this.walk(event));
    plot.addEventListener("focus", () => this.focus(this.focused ?? this.items[0]?.key ?? null));
    plot.addEventListener("blur", () => this.focus(null));
    byId("search").addEventListener("submit", (event) => this.search(event));
    byId("search-text").addEventListener("input", (event) => event.target.value || this.forget());
    new ResizeObserver(() => this.redraw()).observe(this.frame);
  }

  /** Whether texts are shown here, and what to say where nothing is pointed at. */
  introduce(showsText, hint) {
    this.hint = hint;
    this.opened.showsText = showsText;
    const field = byId("search-text");
    field.disabled = !showsText;
    field.placeholder = showsText ? "Search the texts of the blocks" : "Texts are hidden: lmprog serve --ui-show-text";
    byId("search").querySelector("button").disabled = !showsText;
  }

  draw(snapshot) {
    this.whole = snapshot;
    if (!this.zoom.length) this.redraw();
    this.opened.refresh(snapshot);
  }

  redraw() {
    const snapshot = this.zoom.length ? this.part : this.whole;
    if (!snapshot) return;
    this.forest = forest(snapshot, this.zoom.length > 0);
    const width = Math.max(200, this.frame.clientWidth);
    const tall = width < 560 ? HEIGHT.narrow : HEIGHT.wide;
    const items = arranged(this.forest, Math.floor(tall / ROW.least) + this.extra, this.hits);
    this.items = items;
    this.empty.hidden = items.length > 0;
    this.plot.toggleAttribute("hidden", !items.length); // SVG elements have no `hidden` property
    if (!items.length) {
      this.clear();
      return;
    }
    const begin = this.zoom.length ? items[0].begin : 0;
    const longest = begin + Math.max(16, reach(items.map((item) => item.end - begin)));
    const rows = Math.max(...items.map((item) => item.row + item.rows));
    const groups = Math.max(...items.map((item) => item.group));
    const row = Math.min(ROW.most, Math.max(ROW.least, Math.floor((tall - groups * GAP) / rows)));
    const height = rows * row + groups * GAP + AXIS;
    const scale = (width - 2) / (longest - begin);
    set(this.plot, { viewBox: `0 0 ${width} ${height}`, width, height });
    const seen = new Set();
    for (const item of items) {
      seen.add(item.key);
      this.place(item, begin, scale, row);
    }
    for (const [key, parts] of this.drawn) {
      if (seen.has(key)) continue;
      parts.group.remove();
      this.drawn.delete(key);
    }
    this.drawAxis(begin, longest, scale, width, height - AXIS);
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

  place(item, begin, scale, row) {
    let parts = this.drawn.get(item.key);
    if (!parts) {
      parts = { group: svg("g", { role: "treeitem", id: `node-${item.key}` }), rect: svg("rect"), label: svg("text") };
      parts.held = svg("rect", { class: "held" });
      parts.beyond = svg("text", { class: "beyond", "text-anchor": "end" }, "»");
      parts.group.append(parts.rect, parts.held, parts.label, parts.beyond);
      this.drawn.set(item.key, parts);
      this.blocks.append(parts.group);
    }
    const x = 1 + (item.begin - begin) * scale;
    const y = item.row * row + item.group * GAP;
    const edge = this.frame.clientWidth - 1;
    const isCut = x + (item.end - item.begin) * scale > edge + 1;
    const wide = Math.max(2, Math.min((item.end - item.begin) * scale, edge - x));
    const tall = item.rows * row;
    set(parts.group, {
      class: `node ${this.look(item)}${isCut ? " cut" : ""}${item.key === this.focused ? " focused" : ""}`,
      "aria-level": item.depth + 1,
      "aria-label": sentence(item),
      "data-key": item.key,
    });
    set(parts.rect, { x: round(x), y: round(y), width: round(wide), height: round(tall), rx: 2 });
    const holds = item.pins > 0 && !item.sequence;
    const thick = holds ? Math.min(3, tall / 3) : 0;
    set(parts.held, { x: round(x), y: round(y + tall - thick), width: holds ? round(wide) : 0, height: round(thick) });
    const text = wide > 24 ? label(item, wide - (isCut ? 16 : 0)) : "";
    set(parts.label, { x: round(x + 5), y: round(y + tall / 2 + 4) });
    say(parts.label, text);
    set(parts.beyond, { x: round(x + wide - 5), y: round(y + tall / 2 + 4), visibility: isCut ? "visible" : "hidden" });
  }

  look(item) {
    const state = item.isMore ? (item.locks ? "more hot-more" : "more") : look(item);
    if (this.marked.has(item.number)) return `${state} marked`;
    if (!this.hits.size) return state;
    return this.hits.has(item.number) ? `${state} hit` : `${state} dim`;
  }

  drawAxis(begin, longest, scale, width, top) {
    const step = nice((longest - begin) / Math.max(2, Math.floor(width / 90)));
    const marks = [svg("line", { x1: 0, x2: width, y1: top + 3.5, y2: top + 3.5 })];
    for (let at = Math.ceil(begin / step) * step; (at - begin) * scale < width - 60; at += step) {
      const x = round(1 + (at - begin) * scale);
      marks.push(svg("line", { x1: x, x2: x, y1: top + 3.5, y2: top + 7.5 }));
      marks.push(svg("text", { x, y: top + 19, "text-anchor": at > begin ? "middle" : "start" }, count(at)));
    }
    marks.push(svg("text", { x: width, y: top + 19, "text-anchor": "end" }, "tokens"));
    this.axis.replaceChildren(...marks);
  }

  // --- pointing and walking -------------------------------------------------------------------------------------------

  keyAt(event) {
    return event.target.closest("[data-key]")?.dataset.key ?? null;
  }

  itemOf(key) {
    return this.items.find((one) => one.key === key) ?? null;
  }

  click(key) {
    const item = this.itemOf(key);
    if (!item) return;
    this.focus(key);
    if (item.isMore) this.zoomTo(key);
    else if (item.number) this.opened.open(item, this.forest);
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

  /** Arrow keys: to the parent, the first child, the neighbours. Enter opens, + and - zoom. */
  walk(event) {
    const at = this.itemOf(this.focused);
    const parent = at?.parent?.key;
    const to = {
      ArrowLeft: () => at && this.items.find((item) => item.key === parent),
      ArrowRight: () => at && this.items.find((item) => item.parent?.key === at.key),
      ArrowUp: () => at && beside(this.items, at, -1),
      ArrowDown: () => (at ? beside(this.items, at, 1) : this.items[0]),
      Home: () => this.items[0],
      End: () => this.items.at(-1),
    }[event.key];
    const act = { Enter: () => this.click(this.focused), "+": () => this.zoomTo(this.focused), "-": () => this.zoomOut() }[event.key];
    if (!to && !act) return;
    event.preventDefault();
    act?.();
    const found = to?.();
    if (found) this.focus(found.key);
  }

  show(key) {
    const item = this.itemOf(key);
    this.shown = item ? key : null;
    if (!item) {
      say(this.details, this.hint);
      return;
    }
    say(this.details, sentence(item));
    if (item.text) this.details.append(" ", el("q", {}, item.text));
  }

  /** Blocks that a request uses, while somebody points at it. */
  mark(numbers) {
    this.marked = numbers;
    this.redraw();
  }

  // --- zooming --------------------------------------------------------------------------------------------------------

  /** Into the block; where small blocks stand together, into the one before them, or to more rows. */
  zoomTo(key) {
    const item = this.itemOf(key);
    if (!item) return;
    const block = item.isMore || item.sequence ? item.parent : item;
    if (!block || block.number === this.zoom.at(-1)?.number) {
      this.extra += 24;
      this.redraw();
    } else this.zoomInto(block.number, block.text);
  }

  zoomInto(number, text = "") {
    this.zoom.push({ number, name: shorten(text) || `block ${number}` });
    this.follow();
  }

  zoomOut(depth = this.zoom.length - 1) {
    this.zoom.length = Math.max(0, depth);
    this.follow();
  }

  /** Shows the part that is zoomed into, and what becomes of it. */
  async follow() {
    this.extra = 0;
    this.part = null;
    this.drawCrumbs();
    if (!this.zoom.length) this.redraw();
    const now = (this.following = {});
    while (this.zoom.length && this.following === now) {
      const { number } = this.zoom.at(-1);
      try {
        const part = document.hidden ? this.part : await value(`/ui/blocks/${number}/below`);
        if (this.following !== now) return;
        this.part = part;
        this.redraw();
      } catch (error) {
        if (error instanceof Refused && error.status === 404 && this.following === now) {
          this.zoomOut(); // it was evicted, or has another shape now
          return;
        }
      }
      await new Promise((wake) => setTimeout(wake, REFRESH));
    }
  }

  drawCrumbs() {
    this.crumbs.hidden = !this.zoom.length;
    const steps = [{ name: "Whole tree" }, ...this.zoom];
    this.crumbs.replaceChildren(
      ...steps.map((step, depth) => {
        const isHere = depth === this.zoom.length;
        const button = el("button", { type: "button", "aria-current": isHere ? "true" : null }, step.name);
        button.addEventListener("click", () => this.zoomOut(depth));
        return button;
      }),
    );
  }

  // --- searching ------------------------------------------------------------------------------------------------------

  async search(event) {
    event.preventDefault();
    const text = byId("search-text").value;
    if (!text) return this.forget();
    try {
      const { found, searched, leftOut } = await value("/ui/search", { body: { text } });
      this.hits = new Set(found.map((one) => one.number));
      const among = `${count(searched)} ${leftOut ? "largest " : ""}blocks`;
      const rows = found.slice(0, MOST_FOUND).map((one) => this.hit(one));
      const more = found.length > MOST_FOUND ? ` The first ${MOST_FOUND}:` : "";
      byId("found").replaceChildren(el("p", { class: "note" }, `${many(found.length, "block")} of the ${among} ${found.length === 1 ? "has" : "have"} it.${more}`), el("ol", {}, ...rows));
    } catch (error) {
      byId("found").replaceChildren(el("p", { class: "error" }, error.message));
    }
    if (this.zoom.length) this.zoomOut(0);
    else this.redraw();
    return undefined;
  }

  hit({ number, before, match, after }) {
    const button = el("button", { type: "button" }, before, el("mark", {}, match), after);
    button.addEventListener("click", () => {
      const item = this.forest.nodes.find((one) => one.number === number);
      if (item) this.opened.open(item, this.forest);
    });
    return el("li", {}, button);
  }

  forget() {
    this.hits = new Set();
    byId("found").replaceChildren();
    this.redraw();
  }
}

/** How far the picture reaches, in tokens: a few that are very long run off its edge, so that the others can be seen. */
function reach(ends) {
  const sorted = [...ends].sort((a, b) => a - b);
  const most = sorted.at(-1);
  const usual = sorted[Math.floor(0.8 * (sorted.length - 1))];
  return most > 2 * usual ? 1.4 * usual : most;
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

function nice(step) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, step)));
  return [1, 2, 5, 10].map((by) => by * power).find((by) => by >= step);
}

const round = (number) => Math.round(number * 10) / 10;

/** One line on the whole. */
export function treeNote(snapshot) {
  const { figures } = snapshot;
  const hidden = snapshot.nodesLeftOut ? `, the largest ${count(snapshot.nodes.length)} looked at` : "";
  const share = figures.pages ? percent(figures.pages_cached / figures.pages) : "0%";
  return `${many(figures.tree_nodes, "node")} in ${many(figures.pages_cached, "page")}, ${share} of the memory${hidden}`;
}
