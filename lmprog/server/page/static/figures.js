// The figures at the head of the page, and their charts.

import { asPercent, History, TimeChart } from "./charts.js";
import { brief, byId, count, duration, el, many, percent, say } from "./dom.js";

const KINDS = ["cached", "computed", "generated", "forced"];
const COUNTERS = {
  cached: (one) => one.cached_tokens,
  computed: (one) => one.prefill_tokens,
  generated: (one) => one.generated_tokens - one.forced_tokens,
  forced: (one) => one.forced_tokens,
};
const RECENT = 120; // seconds

export class Figures {
  constructor() {
    this.history = new History();
    this.span = RECENT;
    this.tokens = new TimeChart(byId("tokens-chart"), { classes: KINDS.map((kind) => `s-${kind}`) });
    this.hits = new TimeChart(byId("hits-chart"), { classes: ["plain"], most: 1, format: asPercent, joins: true });
    this.busy = new TimeChart(byId("busy-chart"), { classes: ["s-running", "s-waiting"] });
    this.memory = new TimeChart(byId("memory-chart"), { classes: ["plain"], most: 1, format: asPercent });
    this.first = new TimeChart(byId("first-chart"), { classes: ["s-queued", "s-after"], format: duration, least: 0.002 });
    this.between = new TimeChart(byId("between-chart"), { classes: ["plain"], format: duration, least: 0.002 });
    this.refused = new TimeChart(byId("refused-chart"), { classes: ["s-waiting", "s-failed"] });
    const buttons = [...document.querySelectorAll("[data-range]")];
    for (const button of buttons) {
      button.addEventListener("click", () => {
        this.span = Number(button.dataset.range);
        for (const one of buttons) one.setAttribute("aria-pressed", one === button);
        this.lines();
      });
    }
  }

  draw(snapshot) {
    const { figures, served, running, waiting } = snapshot;
    this.history.add(snapshot.clock, { ...figures, ...served });
    this.waits(served);
    this.numbers(figures, running.length + snapshot.runningLeftOut, waiting.length + snapshot.waitingLeftOut);
    this.lines();
  }

  numbers(figures, running, waiting) {
    const speed = this.history.speed((one) => one.generated_tokens);
    say(byId("speed"), brief(speed));
    say(byId("speed-note"), `generated per second; ${brief(figures.generated_tokens)} in all`);
    KINDS.forEach((kind, index) => {
      say(byId("tokens-legend").children[index].lastChild, brief(COUNTERS[kind](figures)));
    });
    const asked = figures.cached_tokens + figures.prefill_tokens;
    const shares = this.history.shares(RECENT, COUNTERS.cached, promptTokens);
    const recent = shares.findLast(([, share]) => share !== null)?.[1];
    const shown = recent ?? (asked ? figures.cached_tokens / asked : null);
    say(byId("hits"), shown === null ? "–" : percent(shown));
    const whole = asked && `${percent(figures.cached_tokens / asked)} since the start: ${brief(figures.cached_tokens)} of ${brief(asked)}`;
    say(byId("hits-note"), whole || "no prompt yet");
    const failed = figures.calls_failed ? `, ${brief(figures.calls_failed)} failed` : "";
    say(byId("busy"), count(running));
    say(byId("queue"), waiting ? `and ${count(waiting)} waiting` : "none waiting");
    say(byId("busy-note"), `${many(figures.open_branches, "open branch", "open branches")}; ${brief(figures.calls_done)} calls done${failed}`);
    drawMemory(figures);
  }

  /** What clients waited for of late, on average; before that since the server's start. */
  waits(served) {
    const mean = (name) => {
      const recent = this.history.means(RECENT, name).findLast(([, value]) => value !== null)?.[1];
      const all = served[`${name}_count`] ? served[`${name}_seconds`] / served[`${name}_count`] : null;
      return recent ?? all;
    };
    const shown = (value) => (value === null ? "–" : duration(value));
    say(byId("first"), shown(mean("first")));
    say(byId("first-note"), `on average, ${shown(mean("queued"))} of it in the queue`);
    say(byId("between"), shown(mean("between")));
    say(byId("refused"), `${brief(served.refused)} and ${brief(served.failed)}`);
    say(byId("served-note"), `${bytes(served.bytes_held)} held for clients`);
  }

  lines() {
    const { history, span } = this;
    if (!history.samples.length) return;
    const rates = KINDS.map((kind) => history.rates(span, COUNTERS[kind]));
    const sums = KINDS.map((kind, index) => `${kind} ${brief(Math.max(0, ...rates[index].map(([, value]) => value ?? 0)))}`);
    const words = `over ${span / 60} minutes`;
    this.tokens.draw(span, rates, KINDS, `Tokens per second ${words}, at most: ${sums.join(", ")}`);
    const shares = history.shares(span, COUNTERS.cached, promptTokens);
    this.hits.draw(span, [shares], ["found"], `Share of prompt tokens found in the cache ${words}`);
    const busy = [history.values(span, (one) => one.running), history.values(span, (one) => one.waiting)];
    this.busy.draw(span, busy, ["running", "waiting"], `Sequences that run and wait ${words}`);
    const used = history.values(span, (one) => (one.pages ? 1 - one.pages_free / one.pages : null));
    this.memory.draw(span, [used], ["used"], `Share of the memory that is used ${words}`);
    const queued = history.means(span, "queued");
    const after = history.means(span, "first").map(([ago, value], at) => [ago, value === null ? null : Math.max(0, value - (queued[at][1] ?? 0))]);
    this.first.draw(span, [queued, after], ["queue", "after it"], `Mean time to the first token ${words}`);
    this.between.draw(span, [history.means(span, "between")], ["between"], `Mean time between tokens ${words}`);
    const lost = [history.rates(span, (one) => one.refused), history.rates(span, (one) => one.failed)];
    this.refused.draw(span, lost, ["refused", "failed"], `Refused requests and failed calls per second ${words}`);
  }
}

const bytes = (value) => (value < 1024 ? `${count(value)} B` : value < 1 << 20 ? `${brief(value / 1024)} KiB` : `${brief(value / (1 << 20))} MiB`);

const NAMED = 3; // others for whose work a key waited
const LITTLE = 0.0005; // seconds: less is shown as nothing

/** The accounts that may be seen: what each costs the others, and what it waits for, of late. */
export class Accounts {
  constructor() {
    this.samples = []; // [milliseconds, rows by name], the oldest first
  }

  draw(rows, now = performance.now()) {
    this.samples.push([now, new Map(rows.map((one) => [one.name, one]))]);
    while (this.samples.length > 2 && this.samples[1][0] < now - 1000 * RECENT) this.samples.shift();
    const [since, old] = this.samples[0];
    const isRecent = now - since > 5000; // before that: since the server's start
    const recent = rows.map((one) => (isRecent ? gained(one, old.get(one.name)) : one));
    say(byId("keys-note"), isRecent ? `in the last ${duration((now - since) / 1000)}` : "since the start");
    const all = recent.reduce((sum, one) => sum + one.cost, 0);
    const shown = recent.filter((one) => one.isKey || one.cost >= LITTLE || one.held >= 1024);
    byId("keys").hidden = !shown.length;
    byId("key-rows").replaceChildren(...shown.map((one) => account(one, all)));
  }
}

/** What has come since; the state of now stays. */
function gained(one, before) {
  if (!before || one.cost < before.cost) return one; // it is new, or the runtime is
  const less = (now, then) => Object.fromEntries(Object.entries(now).map(([name, value]) => [name, Math.max(0, value - (then[name] ?? 0))]));
  return {
    ...one,
    cost: one.cost - before.cost,
    generated: one.generated - before.generated,
    refused: one.refused - before.refused,
    waited: less(one.waited, before.waited),
    waitedFor: less(one.waitedFor, before.waitedFor),
  };
}

function account(one, all) {
  const share = all ? one.cost / all : 0;
  const fill = el("span", { class: "fill" });
  fill.style.width = `${100 * share}%`;
  const state = [one.results && `${count(one.results)} open`, one.generated && `${brief(one.generated)} generated`, one.refused && `${brief(one.refused)} refused`];
  const lines = [
    `${duration(one.cost)} of work${one.cost ? `, ${percent(share)}` : ""}`,
    waits(one),
    one.held > 0 && `holds ${bytes(one.held)}: ${most(one.heldBy, bytes)}`,
  ];
  return el(
    "li",
    {},
    el("p", { class: "head" }, el("b", {}, one.name || "no key"), el("small", {}, state.filter(Boolean).join(", "))),
    el("span", { class: "track" }, fill),
    ...lines.filter(Boolean).map((line) => el("p", { class: "note" }, line)),
  );
}

/** For what, and while for whom was worked. */
function waits({ waited, waitedFor }) {
  const sum = Object.values(waited).reduce((all, seconds) => all + seconds, 0);
  const others = Object.fromEntries(Object.entries(waitedFor).map(([name, seconds]) => [name || "others", seconds]));
  const known = most(others, duration);
  if (sum < LITTLE && !known) return "";
  return `its calls waited ${duration(sum)}: ${most(waited, duration) || "–"}${known ? `; while the work was for ${known}` : ""}`;
}

/** The largest parts in words; none that shows as nothing. */
function most(parts, format) {
  const found = Object.entries(parts).filter(([, value]) => value >= LITTLE);
  return found.sort((a, b) => b[1] - a[1]).slice(0, NAMED).map(([name, value]) => `${name} ${format(value)}`).join(", ");
}

const promptTokens = (one) => one.cached_tokens + one.prefill_tokens;

function drawMemory(figures) {
  const { pages, pages_free: free, pages_evictable: evictable, pages_pinned: pinned } = figures;
  const parts = [
    ["used", "in use", pages - free - evictable],
    ["held", "held", pinned],
    ["kept", "kept", evictable - pinned],
    ["free", "free", free],
  ];
  say(byId("memory"), percent((pages - free) / pages));
  say(byId("memory-unit"), `of ${brief(pages * figures.page_size)} tokens`);
  const bar = byId("memory-bar");
  bar.setAttribute("aria-label", parts.map(([, words, size]) => `${words}: ${percent(size / pages)}`).join(", "));
  if (!bar.children.length) bar.append(...parts.map(([kind]) => el("span", { class: `part ${kind}` })));
  parts.forEach(([, , size], index) => (bar.children[index].style.width = `${(100 * size) / pages}%`));
  const legend = byId("memory-legend");
  if (!legend.children.length) {
    legend.append(...parts.map(([kind, words]) => el("li", {}, el("span", { class: `swatch ${kind}` }), words, el("b", {}))));
  }
  parts.forEach(([, , size], index) => say(legend.children[index].lastChild, ` ${brief(size)}`));
}
