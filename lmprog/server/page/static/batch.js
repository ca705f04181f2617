// Who runs and who waits, one row each.

import { count, duration, el, many, say } from "./dom.js";

const MOST_ROWS = 24;

export function drawRunning(place, note, sequences, leftOut) {
  say(note, sequences.length ? many(sequences.length + leftOut, "sequence") : "");
  rows(place, sequences, leftOut, "Nothing runs just now.", (sequence) => [
    name(sequence),
    el("span", { class: `phase ${sequence.phase}` }, sequence.phase),
    progress(sequence),
    el("span", { class: "counts" }, counts(sequence)),
    el("span", { class: "age" }, duration(sequence.age)),
  ]);
}

export function drawWaiting(place, note, sequences, leftOut) {
  say(note, sequences.length ? many(sequences.length + leftOut, "sequence") : "");
  rows(place, sequences, leftOut, "Nobody waits: there is room for everything that was asked.", (sequence) => [
    name(sequence),
    el("span", { class: "phase waiting" }, `${many(sequence.passes, "step")} waited`),
    el("span", { class: "counts" }, `${many(sequence.tokens, "token")}, ${count(sequence.computed)} of them in the tree`),
    el("span", { class: "age" }, duration(sequence.age)),
  ]);
}

function rows(place, sequences, leftOut, nothing, cells) {
  if (!sequences.length) {
    place.replaceChildren(el("p", { class: "empty" }, nothing));
    return;
  }
  const shown = sequences.slice(0, MOST_ROWS);
  const more = sequences.length - shown.length + leftOut;
  const list = el("ol", {}, ...shown.map((sequence) => el("li", {}, ...cells(sequence))));
  place.replaceChildren(list, ...(more ? [el("p", { class: "note" }, `and ${count(more)} more`)] : []));
}

function name(sequence) {
  const which = sequence.kind === "select" ? "select" : "gen";
  const extra = sequence.priority ? `, priority ${sequence.priority}` : "";
  return el("span", { class: "name" }, `${which} `, el("small", {}, `program ${sequence.program}, call ${sequence.call}${extra}`));
}

/** Cached, computed and generated as parts of what the sequence may become. */
function progress(sequence) {
  const whole = Math.max(1, sequence.prompt + Math.max(sequence.maxTokens, sequence.generated), sequence.tokens);
  const cached = Math.min(sequence.cached, sequence.prompt);
  const computed = Math.max(0, Math.min(sequence.computed, sequence.prompt) - cached);
  const bar = el("span", { class: "bar thin" });
  for (const [kind, tokens] of [["cached", cached], ["computed", computed], ["generated", sequence.generated]]) {
    const part = el("span", { class: `part ${kind}` });
    part.style.width = `${(100 * tokens) / whole}%`;
    bar.append(part);
  }
  return bar;
}

function counts(sequence) {
  const parts = [`prompt ${count(sequence.prompt)}, ${count(Math.min(sequence.cached, sequence.prompt))} cached`];
  if (sequence.kind === "gen") parts.push(`${count(sequence.generated)} of ${count(sequence.maxTokens)}`);
  if (sequence.forced) parts.push(`${count(sequence.forced)} forced`);
  if (sequence.preemptions) parts.push(`preempted ${many(sequence.preemptions, "time")}`);
  return parts.join(", ");
}
