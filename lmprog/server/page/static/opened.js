// One block of the tree, opened: what stands before it, all its text, who uses it.

import { byId, count, el, many, say } from "./dom.js";
import { nameOf } from "./requests.js";
import { value } from "./stream.js";
import { sentence, shorten } from "./words.js";

export class OpenedBlock {
  constructor(requests, zoomInto) {
    this.requests = requests;
    this.zoomInto = zoomInto;
    this.showsText = false;
    this.place = byId("opened");
    this.number = null;
    this.place.addEventListener("keydown", (event) => event.key === "Escape" && this.close());
  }

  /** `item` is a block of `forest`. */
  async open(item, forest) {
    this.number = item.number;
    this.below = familyOf(item);
    const zoom = el("button", { type: "button", class: "quiet" }, "Zoom in");
    const close = el("button", { type: "button", class: "quiet" }, "Close");
    zoom.addEventListener("click", () => this.zoomInto(item.number, item.text));
    close.addEventListener("click", () => this.close());
    const above = [];
    for (let node = item.parent; node; node = node.parent) above.unshift(node);
    const path = above.map((node) => {
      const step = el("button", { type: "button" }, shorten(node.text) || many(node.tokens, "token"));
      step.addEventListener("click", () => this.open(node, forest));
      return step;
    });
    const before = path.length ? [el("p", { class: "note" }, "After: "), el("div", { class: "crumbs" }, ...path)] : [];
    this.text = el("div", { class: "text", tabindex: "0", "aria-label": "Text of the block" });
    this.users = el("ul", { class: "users" });
    this.used = el("p", { class: "note" });
    const head = el("div", { class: "head" }, el("h3", {}, `Block ${item.number}`), el("span", { class: "buttons" }, zoom, close));
    this.place.replaceChildren(head, el("p", { class: "about" }, sentence(item)), ...before, this.text, this.used, this.users);
    this.place.hidden = false;
    this.drawUsers(item);
    await this.read(item.number);
  }

  async read(number) {
    if (!this.showsText) {
      this.text.replaceChildren(el("em", {}, "Texts are hidden: lmprog serve --ui-show-text shows them to the administrator."));
      return;
    }
    try {
      const { text, tokens } = await value(`/ui/blocks/${number}`);
      if (this.number !== number) return;
      say(this.text, text);
      this.place.dataset.tokens = tokens;
    } catch (error) {
      if (this.number === number) this.text.replaceChildren(el("em", {}, error.message));
    }
  }

  /** New figures of the whole tree. */
  refresh() {
    if (this.number !== null) this.drawUsers();
  }

  drawUsers(item = null) {
    if (item) this.pins = item.pins;
    const rows = this.requests.snapshot ? this.requests.usersOf(this.below) : [];
    const held = this.pins ? `; ${many(this.pins, "open branch", "open branches")} held it when it was opened` : "";
    say(this.used, `Used by ${rows.length ? many(rows.length, "request or program", "requests and programs") : "nobody just now"}${held}.`);
    const known = rows.map((row) => `${row.number}-${row.program}`).join();
    if (known === this.known && !item) return;
    this.known = known;
    this.users.replaceChildren(
      ...rows.map((row) => {
        const show = el("button", { type: "button", class: "quiet" }, [nameOf(row), row.key, row.number && `no. ${count(row.number)}`].filter(Boolean).join(" · "));
        show.addEventListener("click", () => this.requests.show(row));
        return el("li", {}, show);
      }),
    );
  }

  close() {
    this.number = null;
    this.place.hidden = true;
    byId("plot").focus();
  }
}

/** The block's number and those of all blocks below it. */
function familyOf(item) {
  const found = new Set([item.number]);
  for (const kid of item.kids) for (const number of familyOf(kid)) found.add(number);
  return found;
}
