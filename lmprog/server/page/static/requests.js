// Requests and programs, one row each: who asked for what, how far it is; its texts while they come; a way to cancel it.

import { brief, byId, count, duration, el, many, say, set } from "./dom.js";
import { value } from "./stream.js";

const MOST_ENDED = 12;
const MOST_SESSIONS = 16;
const READ_EVERY = 400; // milliseconds
const SURE_FOR = 4000; // milliseconds in which a second click cancels

export class Requests {
  /** `onMark` gets the numbers of the blocks that the row uses at which somebody points. */
  constructor(onMark) {
    this.onMark = onMark;
    this.seen = { open: [], ended: [], openLeftOut: 0 };
    this.snapshot = null;
    this.rows = new Map(); // key -> RequestRow
    this.list = el("ol", {});
    this.endedRows = new Map();
    this.endedList = el("ol", {});
    byId("open-rows").append(this.list, el("p", { class: "empty", id: "requests-empty" }, "Nothing runs just now."));
    byId("ended-rows").append(this.endedList);
  }

  take(seen) {
    this.seen = seen;
  }

  draw(snapshot) {
    this.snapshot = snapshot;
    const { open, ended, openLeftOut } = this.seen;
    const waiting = snapshot.waiting.length + snapshot.waitingLeftOut;
    const parts = [open.length && many(open.length + openLeftOut, "under way", "under way"), waiting && `${many(waiting, "sequence")} waiting`];
    say(byId("requests-note"), parts.filter(Boolean).join(", "));
    keyed(this.list, this.rows, open, keyOf, (row) => new RequestRow(row, this), (drawn, row) => drawn.draw(row, this.sequencesOf(row)));
    byId("requests-empty").hidden = this.rows.size > 0;
    drawSessions(this.seen.sessions ?? [], this.seen.sessionsLeftOut ?? 0);
    byId("ended").hidden = !ended.length;
    keyed(this.endedList, this.endedRows, ended.slice(0, MOST_ENDED), keyOf, (row) => new EndedRow(row), (drawn, row) => drawn.draw(row));
  }

  sequencesOf(row) {
    const isOwn = row.number > 0 || row.own;
    const { running, waiting } = this.snapshot;
    return [...running, ...waiting].filter((one) => one.own === isOwn && row.live.includes(one.call));
  }

  /** The rows whose sequences stand on one of these blocks. */
  usersOf(blocks) {
    return this.seen.open.filter((row) => this.sequencesOf(row).some((one) => one.node !== null && blocks.has(one.node)));
  }

  show(row) {
    const drawn = this.rows.get(keyOf(row));
    drawn?.open(true);
    drawn?.item.scrollIntoView({ block: "nearest" });
  }

  /** An ended row that nobody reads any longer. */
  leave(row) {
    this.rows.get(keyOf(row)).item.remove();
    this.rows.delete(keyOf(row));
    byId("requests-empty").hidden = this.rows.size > 0;
  }

  closeAll() {
    for (const drawn of [...this.rows.values()]) drawn.open(false);
  }

  failed(text) {
    say(byId("requests-error"), text);
    byId("requests-error").hidden = !text;
  }
}

const keyOf = (row) => (row.number ? `request-${row.number}` : `program-${row.own}-${row.program}`);
export const nameOf = (row) => (row.number ? row.route || "request" : `program ${row.program}`);
const whose = (row) => (row.number ? row.key : row.route === "wire" ? "not by HTTP" : row.route);

/** Keeps the elements of rows that stay, so that focus and opened texts stay too: a row that somebody reads stays until it is closed. */
function keyed(list, known, rows, key, make, draw) {
  const keys = new Set(rows.map(key));
  for (const [name, drawn] of known) {
    if (keys.has(name)) continue;
    if (drawn.isOpen) {
      drawn.end();
      continue;
    }
    drawn.close?.();
    drawn.item.remove();
    known.delete(name);
  }
  rows.forEach((row, index) => {
    const name = key(row);
    if (!known.has(name)) known.set(name, make(row));
    const { item } = known.get(name);
    if (list.children[index] !== item) list.insertBefore(item, list.children[index] ?? null);
    draw(known.get(name), row);
  });
}

/** A request under way. */
class RequestRow {
  constructor(row, all) {
    this.all = all;
    this.row = row;
    this.isOpen = false;
    this.hasEnded = false;
    this.reading = null;
    this.state = el("span", { class: "phase" });
    this.name = el("span", { class: "name" });
    this.opener = el("button", { type: "button", class: "opener", "aria-expanded": "false" }, this.state, this.name);
    this.parts = ["cached", "computed", "generated"].map((kind) => el("span", { class: `part ${kind}` }));
    this.counts = el("span", { class: "counts" });
    this.age = el("span", { class: "age" });
    this.cancel = el("button", { type: "button", class: "quiet cancel", hidden: row.mayCancel ? null : "" }, "Cancel");
    this.body = el("div", { class: "branches", hidden: "" });
    this.item = el("li", {}, this.opener, el("span", { class: "bar thin" }, ...this.parts), this.counts, this.age, this.cancel, this.body);
    this.opener.addEventListener("click", () => this.open(!this.isOpen));
    this.cancel.addEventListener("click", () => this.stop());
    const mark = (is) => all.onMark(is ? new Set(all.sequencesOf(this.row).map((one) => one.node)) : new Set());
    this.item.addEventListener("pointerenter", () => mark(true));
    this.item.addEventListener("pointerleave", () => mark(false));
  }

  /** The request is over: what was read of it stays to be read. */
  end() {
    if (this.hasEnded) return;
    this.hasEnded = true;
    this.reading?.abort();
    this.reading = null;
    this.state.className = "phase done";
    say(this.state, "ended");
    this.cancel.hidden = true;
    if (!this.texts) this.body.replaceChildren(el("p", { class: "note" }, "It has ended; nothing of its texts was read here."));
  }

  draw(row, sequences) {
    this.row = row;
    this.state.className = `phase ${row.state}`;
    say(this.state, row.state);
    const small = [whose(row), many(row.branches, "branch", "branches")].filter(Boolean).join(" · ");
    const shown = `${nameOf(row)}|${small}`;
    if (this.shown !== shown) this.name.replaceChildren(nameOf(row), el("small", {}, ` ${small}`));
    this.shown = shown;
    const whole = Math.max(1, row.prompt + Math.max(row.maxTokens, row.generated));
    const cached = Math.min(row.cached, row.prompt);
    const sizes = [cached, row.prompt - cached, row.generated];
    this.parts.forEach((part, index) => (part.style.width = `${(100 * sizes[index]) / whole}%`));
    say(this.counts, counts(row));
    say(this.age, duration(row.seconds));
    set(this.opener, { "aria-label": `${row.state}: ${nameOf(row)}, ${small}, ${counts(row)}` });
    if (this.isOpen) this.drawBranches(sequences);
  }

  /** What is known without texts; where these may be read they are asked for. */
  drawBranches(sequences) {
    if (this.texts && this.row.mayRead) return;
    const lines = sequences.map((one) => el("li", {}, progress(one)));
    const hint = this.row.mayRead ? [] : [el("p", { class: "note" }, this.row.number ? "Texts are hidden here: --ui-show-text shows them to the administrator." : "Texts of programs that do not come by HTTP are not shown.")];
    const about = this.row.requestId ? [el("p", { class: "note" }, `x-request-id ${this.row.requestId}`)] : [];
    this.body.replaceChildren(...about, el("ol", {}, ...lines), ...hint);
  }

  open(is) {
    this.isOpen = is;
    this.opener.setAttribute("aria-expanded", is);
    this.body.hidden = !is;
    this.close();
    if (!is && this.hasEnded) this.all.leave(this.row);
    if (is) {
      this.drawBranches(this.all.sequencesOf(this.row));
      if (this.row.mayRead) this.read();
    }
  }

  async read() {
    const controller = (this.reading = new AbortController());
    while (this.reading === controller) {
      try {
        const { ended, sequences } = await value(`/ui/requests/${this.row.number}/texts`, { signal: controller.signal });
        if (ended || this.reading !== controller) return;
        this.texts = true;
        this.drawTexts(sequences);
      } catch {
        return; // the server is away, which is said elsewhere
      }
      await new Promise((wake) => setTimeout(wake, READ_EVERY));
    }
  }

  drawTexts(sequences) {
    let list = this.body.querySelector("ol.texts");
    if (!list) {
      list = el("ol", { class: "texts" });
      this.body.replaceChildren(el("p", { class: "note" }, `x-request-id ${this.row.requestId}`), list);
    }
    sequences.forEach((one, index) => {
      const item = list.children[index] ?? list.appendChild(el("li", {}, el("p", { class: "note" }), el("div", { class: "text", tabindex: "0" }, el("span", { class: "t-computed" }), el("span", { class: "t-generated" }))));
      const letters = [...one.text]; // the server counts characters, JavaScript counts UTF-16
      const [note, box] = item.children;
      say(note, progress(one));
      const stood = box.scrollHeight - box.scrollTop - box.clientHeight < 8;
      say(box.children[0], letters.slice(0, one.promptChars).join(""));
      say(box.children[1], letters.slice(one.promptChars).join(""));
      if (stood) box.scrollTop = box.scrollHeight;
    });
    while (list.children.length > sequences.length) list.lastChild.remove();
  }

  close() {
    this.reading?.abort();
    this.reading = null;
    this.texts = false;
  }

  async stop() {
    if (!this.sure) {
      this.sure = setTimeout(() => this.calm(), SURE_FOR);
      say(this.cancel, "Really?");
      return;
    }
    this.calm();
    try {
      await value(`/ui/requests/${this.row.number}/cancel`, { method: "POST" });
      this.all.failed("");
    } catch (error) {
      this.all.failed(error.message);
    }
  }

  calm() {
    clearTimeout(this.sure);
    this.sure = null;
    say(this.cancel, "Cancel");
  }
}

/** A request that has ended; its answers are asked for when it is opened, where they are kept. */
class EndedRow {
  constructor(row) {
    const kind = row.state === "done" ? "done" : row.state === "left" || row.state === "cancelled" ? "stopped" : "failed";
    this.ago = el("span", { class: "age" });
    const small = [row.key, many(row.branches, "branch", "branches")].filter(Boolean).join(" · ");
    const name = el("span", { class: "name" }, nameOf(row), el("small", {}, ` ${small}`));
    this.opener = el("button", { type: "button", class: "opener", "aria-expanded": "false" }, el("span", { class: `phase ${kind}` }, row.state), name);
    this.row = row;
    this.body = el("div", { class: "branches", hidden: "" }, ...about(row).map((line) => el("p", { class: "note" }, line)));
    this.item = el("li", {}, this.opener, el("span", { class: "counts" }, `${counts(row)}, in ${duration(row.seconds)}`), this.ago, this.body);
    this.isOpen = false;
    this.opener.addEventListener("click", () => {
      this.isOpen = !this.isOpen;
      this.opener.setAttribute("aria-expanded", this.isOpen);
      this.body.hidden = !this.isOpen;
      if (this.isOpen && row.texts && row.mayRead) this.read();
    });
  }

  async read() {
    if (this.texts) return;
    this.texts = el("ol", { class: "texts" });
    this.body.append(this.texts);
    try {
      const { answers = [] } = await value(`/ui/requests/${this.row.number}/texts`);
      this.texts.replaceChildren(...answers.map((text) => el("li", {}, el("div", { class: "text", tabindex: "0" }, el("span", { class: "t-generated" }, text)))));
      if (!answers.length) this.texts.replaceChildren(el("li", { class: "note" }, "Its answers are kept no longer."));
    } catch (error) {
      this.texts.replaceChildren(el("li", { class: "note" }, error.message));
    }
  }

  end() {} // what is known of it stays for as long as it is open

  draw(row) {
    say(this.ago, row.ago < 1 ? "just now" : `${duration(row.ago)} ago`);
  }
}

/** All that is kept of a request that has ended. */
function about(row) {
  const parts = [["in the queue", row.queued], ["until the first token", row.prefill], ["from there on", row.decode]];
  const ends = Object.entries(row.finishes).map(([name, times]) => (times > 1 ? `${name} (${count(times)})` : name)).join(", ");
  return [
    `Request ${row.number}, x-request-id ${row.requestId || "–"}${row.key ? `, of the key ${row.key}` : ""}.`,
    `${count(row.done)} of ${many(row.calls, "call")} on ${many(row.branches, "branch", "branches")} ended with a result.`,
    `Prompt ${many(row.prompt, "token")}: ${count(Math.min(row.cached, row.prompt))} found in the cache. ${many(row.generated, "token")} generated, ${count(row.forced)} of them forced. It cost ${many(row.computed, "token")} computed.`,
    `It took ${duration(row.seconds)}${row.calls > 1 ? "; its calls together" : ""}: ${parts.map(([name, seconds]) => `${duration(seconds)} ${name}`).join(", ")}.`,
    [ends && `Ended by: ${ends}.`, row.texts ? row.mayRead && "What was answered, at most its beginning:" : row.generated > 0 && "Texts are kept with --ui-show-text only."].filter(Boolean).join(" "),
  ];
}

/** Sessions and programs that pause and are expected back. */
function drawSessions(rows, leftOut) {
  const shown = rows.slice(0, MOST_SESSIONS);
  byId("sessions").hidden = !rows.length;
  const cells = (row) => {
    const small = [row.key, `program ${row.program}`, row.branches > 1 && many(row.branches, "branch", "branches")];
    const expected = row.expected < 0 ? `${duration(-row.expected)} late` : `in ${duration(row.expected)}`;
    const name = el("th", { scope: "row" }, row.tool ? `in ${row.tool}` : row.state, el("small", {}, ` ${small.filter(Boolean).join(" · ")}`));
    return [name, ...[duration(row.waited), expected, brief(row.tokens), pagesOf(row)].map((text) => el("td", {}, text))];
  };
  byId("session-rows").replaceChildren(...shown.map((row) => el("tr", {}, ...cells(row))));
  const more = rows.length - shown.length + leftOut;
  say(byId("sessions-note"), more ? `and ${count(more)} more` : "");
}

/** Where what it goes on from is; how much of it, where that is a part. */
function pagesOf(row) {
  const left = Math.max(row.inMemory, row.stored);
  return row.pages === "evicted" && left ? `evicted, ${brief(left)} left` : row.pages;
}

function counts(row) {
  const parts = [`prompt ${brief(row.prompt)}, ${brief(Math.min(row.cached, row.prompt))} cached`];
  if (row.generated) parts.push(`${brief(row.generated)} generated`);
  if (row.forced) parts.push(`${brief(row.forced)} forced`);
  return parts.join(", ");
}

function progress(one) {
  const parts = [`branch ${one.branch}${one.index ? `, result ${one.index + 1}` : ""}: ${one.kind}`, one.phase ?? one.state];
  if (one.kind === "gen") parts.push(`${count(one.generated)} of at most ${count(one.maxTokens)}`);
  if (one.forced) parts.push(`${count(one.forced)} forced`);
  if (one.priority) parts.push(`priority ${one.priority}`);
  if (one.preemptions) parts.push(`preempted ${many(one.preemptions, "time")}`);
  return parts.join(" · ");
}
