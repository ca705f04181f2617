// Branches as boxes: what a program appends, what its calls write there, and below each box what was forked from it.

import { count, el, percent, say } from "./dom.js";

export class Drawing {
  constructor(place) {
    this.place = place;
    this.boxes = new Map(); // branch -> the box in which it goes on
    this.calls = new Map(); // call -> {box, spans}
    this.refs = new Map(); // call -> places where its text is put in
    place.replaceChildren();
  }

  /** Draws all that is known before anything runs. */
  plan(ops) {
    for (const op of ops) {
      if (op.op === "open") this.boxes.set(op.branch, this.box(this.place, op.branch));
      else if (op.op === "append") this.append(op);
      else if (op.op === "fork") this.fork(op);
      else if (op.op === "gen") this.gen(op);
      else if (op.op === "select") this.select(op);
    }
  }

  box(place, name) {
    const box = { note: el("span", { class: "note" }), text: el("div", { class: "text" }), name };
    box.card = el("div", { class: "box" }, el("p", { class: "boxhead" }, el("b", {}, name), box.note), box.text);
    box.item = el("div", { class: "branch", "data-branch": name }, box.card);
    place.append(box.item);
    return box;
  }

  /** The box in which the branch goes on: after a fork a new one below. */
  at(branch) {
    const box = this.boxes.get(branch);
    if (!box.forks) return box;
    const next = this.box(box.item, branch);
    this.boxes.set(branch, next);
    return next;
  }

  append({ branch, pieces }) {
    const { text } = this.at(branch);
    for (const piece of Array.isArray(pieces) ? pieces : [pieces]) {
      if (typeof piece === "string") text.append(el("span", { class: "t-computed" }, piece));
      else if (piece.ref !== undefined) {
        const span = el("span", { class: "t-computed ref" }, "…");
        this.refs.set(piece.ref, [...(this.refs.get(piece.ref) ?? []), span]);
        text.append(span);
      }
    }
  }

  fork({ branch, into }) {
    const box = this.at(branch);
    box.forks = this.forksOf(box);
    for (const name of into) this.boxes.set(name, this.box(box.forks, name));
  }

  forksOf(box) {
    const forks = el("div", { class: "forks" });
    box.item.append(forks);
    return forks;
  }

  gen({ branch, call, n = 1 }) {
    const box = this.at(branch);
    const wait = () => el("span", { class: "t-generated wait" }, "…");
    if (n === 1) {
      const span = wait();
      box.text.append(span);
      this.calls.set(call, { box, spans: [span] });
      return;
    }
    const forks = this.forksOf(box);
    box.forks = forks;
    const spans = Array.from({ length: n }, (_, index) => {
      const span = wait();
      this.box(forks, `result ${index + 1}`).text.append(span);
      return span;
    });
    this.calls.set(call, { box, spans });
  }

  select({ branch, call, choices }) {
    const box = this.at(branch);
    const list = el("ol", { class: "options" }, ...choices.map((choice) => option(choice, 0, false)));
    box.card.append(list);
    this.calls.set(call, { box, spans: [], list });
  }

  /** More text of a call. */
  grow(call, index, text) {
    const span = this.calls.get(call)?.spans[index];
    if (!span) return;
    if (span.classList.contains("wait")) {
      span.classList.remove("wait");
      span.textContent = "";
    }
    span.textContent += text;
  }

  /** The result of a call. */
  finish(call, result) {
    const known = this.calls.get(call);
    if (!known) return;
    for (const ref of this.refs.get(call) ?? []) say(ref, result.text ?? "");
    if (result.type === "error") {
      known.box.card.append(el("p", { class: "error" }, result.error.message));
      return;
    }
    const { prompt_tokens: prompt, cached_tokens: cached } = result.usage;
    if (result.type === "gen") {
      if (result.outputs.length === known.spans.length) {
        result.outputs.forEach((output, index) => known.spans[index].replaceWith(...spansOf(output)));
      } else {
        // It was decided before all had ended.
        for (const span of known.spans) if (span.classList.contains("wait")) span.replaceWith(el("em", {}, "not needed any more"));
      }
      say(known.box.note, `${count(Math.min(cached, prompt))} of ${count(prompt)} cached`);
    } else {
      const best = result.index;
      known.list.replaceChildren(...result.options.map((one, index) => option(one.text, one.probability, index === best)));
      say(known.box.note, `${count(result.usage.computed_tokens)} tokens computed`);
    }
  }

  /** One more turn of a chat, below the last one. */
  turn(role, text) {
    const box = this.box(this.last?.item ?? this.place, role);
    this.last = box;
    const said = el("span", { class: "t-computed" }, text);
    const made = el("span", { class: "t-generated" });
    box.text.append(said, made);
    return {
      add: (more) => (made.textContent += more),
      end: (more) => box.text.append(el("span", { class: "t-computed" }, more)),
      note: (words) => say(box.note, words),
    };
  }
}

function option(text, share, isBest) {
  const fill = el("span", { class: "fill" });
  fill.style.width = `${100 * share}%`;
  const row = el("li", isBest ? { class: "chosen" } : {});
  row.append(el("span", { class: "choice" }, text), el("span", { class: "share" }, share ? percent(share) : ""));
  row.append(el("span", { class: "track" }, fill));
  return row;
}

/** The text of an output in stretches, generated and forced. Offsets count characters, and JavaScript counts UTF-16. */
export function spansOf({ text, forced = [] }) {
  const letters = [...text];
  const parts = [];
  let at = 0;
  const push = (kind, end) => {
    if (end > at) parts.push(el("span", { class: kind }, letters.slice(at, end).join("")));
    at = Math.max(at, end);
  };
  for (const [begin, end] of forced) {
    push("t-generated", begin);
    push("t-forced", end);
  }
  push("t-generated", letters.length);
  return parts.length ? parts : [el("em", {}, "empty")];
}
