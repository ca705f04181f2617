// Who runs and who waits, one row each.

import { count, duration, el, many, say } from "./dom.js";

const MOST_ROWS = 24;

export function drawRunning(place, note, lanes, leftOut) {
  say(note, lanes.length ? many(lanes.length + leftOut, "sequence") : "");
  rows(place, lanes, leftOut, "Nothing runs just now.", (lane) => [
    name(lane),
    el("span", { class: `phase ${lane.phase}` }, lane.phase),
    progress(lane),
    el("span", { class: "counts" }, counts(lane)),
    el("span", { class: "age" }, duration(lane.age)),
  ]);
}

export function drawWaiting(place, note, lanes, leftOut) {
  say(note, lanes.length ? many(lanes.length + leftOut, "sequence") : "");
  rows(place, lanes, leftOut, "Nobody waits: there is room for everything that was asked.", (lane) => [
    name(lane),
    el("span", { class: "phase waiting" }, `${many(lane.passes, "step")} waited`),
    el("span", { class: "counts" }, `${many(lane.tokens, "token")}, ${count(lane.computed)} of them in the tree`),
    el("span", { class: "age" }, duration(lane.age)),
  ]);
}

function rows(place, lanes, leftOut, nothing, cells) {
  if (!lanes.length) {
    place.replaceChildren(el("p", { class: "empty" }, nothing));
    return;
  }
  const shown = lanes.slice(0, MOST_ROWS);
  const more = lanes.length - shown.length + leftOut;
  const list = el("ol", {}, ...shown.map((lane) => el("li", {}, ...cells(lane))));
  place.replaceChildren(list, ...(more ? [el("p", { class: "note" }, `and ${count(more)} more`)] : []));
}

function name(lane) {
  const which = lane.kind === "select" ? "select" : "gen";
  const extra = lane.priority ? `, priority ${lane.priority}` : "";
  return el("span", { class: "name" }, `${which} `, el("small", {}, `program ${lane.program}, call ${lane.call}${extra}`));
}

/** Cached, computed and generated as parts of what the sequence may become. */
function progress(lane) {
  const whole = Math.max(1, lane.prompt + Math.max(lane.maxTokens, lane.generated), lane.tokens);
  const cached = Math.min(lane.cached, lane.prompt);
  const computed = Math.max(0, Math.min(lane.computed, lane.prompt) - cached);
  const bar = el("span", { class: "bar thin" });
  for (const [kind, tokens] of [["cached", cached], ["computed", computed], ["generated", lane.generated]]) {
    const part = el("span", { class: `part ${kind}` });
    part.style.width = `${(100 * tokens) / whole}%`;
    bar.append(part);
  }
  return bar;
}

function counts(lane) {
  const parts = [`prompt ${count(lane.prompt)}, ${count(Math.min(lane.cached, lane.prompt))} cached`];
  if (lane.kind === "gen") parts.push(`${count(lane.generated)} of ${count(lane.maxTokens)}`);
  if (lane.forced) parts.push(`${count(lane.forced)} forced`);
  if (lane.preemptions) parts.push(`preempted ${many(lane.preemptions, "time")}`);
  return parts.join(", ");
}
