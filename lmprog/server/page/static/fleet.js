// The replicas of a server that has several; hidden where there is one runtime.

import { byId, count, el, many, percent, say } from "./dom.js";

export function drawFleet(fleet) {
  byId("fleet").hidden = !fleet;
  if (!fleet) return;
  const missing = fleet.size - fleet.replicas.length;
  const notes = [
    fleet.shown && `the tree below is that of ${fleet.shown}`,
    fleet.moved && `${many(fleet.moved, "program")} moved`,
    missing > 0 && `${count(missing)} not there`,
  ];
  say(byId("fleet-note"), notes.filter(Boolean).join("; "));
  const rows = byId("fleet-rows");
  while (rows.children.length > fleet.replicas.length) rows.lastChild.remove();
  fleet.replicas.forEach((one, index) => {
    const row = rows.children[index] ?? rows.appendChild(el("tr", {}, ...cells().map((tag) => el(tag))));
    row.firstChild.setAttribute("scope", "row");
    values(one).forEach((value, place) => say(row.children[place], value));
  });
}

const cells = () => ["th", "td", "td", "td", "td", "td", "td"];

function values(one) {
  const state = one.draining ? "draining" : one.responsive ? "serves" : "does not answer";
  return [
    one.model ? `${one.name} · ${one.model}` : one.name,
    count(one.programs),
    count(one.running),
    count(one.waiting),
    one.pages ? percent(one.pagesFree / one.pages) : "–",
    one.lookedUpTokens ? percent(one.cachedTokens / one.lookedUpTokens) : "–",
    state,
  ];
}
