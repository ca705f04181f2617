// The page: one stream of pictures while somebody looks, and everything that is drawn from it.

import { drawRunning, drawWaiting } from "./batch.js";
import { History, sparkline } from "./charts.js";
import { brief, byId, count, el, many, percent, say } from "./dom.js";
import { drawFleet } from "./fleet.js";
import { startPlayground } from "./play.js";
import { Refused, events, key, setKey } from "./stream.js";
import { TreePlot, treeNote } from "./tree.js";

const HINT = byId("details").textContent;
const RETRY = [1, 2, 4, 8, 15]; // seconds
const SHARE_SECONDS = 15;

const history = new History();
const plot = new TreePlot(byId("plot-frame"), byId("plot"), byId("details"), byId("tree-empty"));
let about = {};
let watching = null;

function state(kind, text) {
  byId("state").dataset.kind = kind;
  say(byId("state-text"), text);
}

// --- the stream ---------------------------------------------------------------------------------------------------------

async function watch() {
  const controller = new AbortController();
  watching = controller;
  for (let failures = 0; watching === controller; failures += 1) {
    let why = "the server ended the stream";
    try {
      for await (const [name, value] of events("/ui/events", { signal: controller.signal })) {
        failures = 0;
        if (name === "about") introduce(value);
        else if (name === "snapshot") draw(value);
        else if (name === "away") away(value.message);
      }
    } catch (error) {
      if (controller.signal.aborted) return;
      if (refuse(error)) return;
      why = error instanceof Refused ? error.message : "the server cannot be reached";
    }
    if (watching !== controller) return;
    const seconds = RETRY[Math.min(failures, RETRY.length - 1)];
    state("away", "no connection");
    tell(`${capital(why)}; trying again in ${many(seconds, "second")}.`);
    await new Promise((wake) => setTimeout(wake, 1000 * seconds));
  }
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1).replace(/\.$/, "");

function stop() {
  watching?.abort();
  watching = null;
}

function tell(text) {
  say(byId("away"), text);
  byId("away").hidden = !text;
}

function away(message) {
  state("away", "runtime away");
  tell(message);
}

/** Whether the refusal is about the key, which is then asked for. */
function refuse(error) {
  if (!(error instanceof Refused) || error.status !== 401) return false;
  stop();
  state("away", "key needed");
  tell("");
  say(byId("key-error"), key() ? "The server does not know this key." : "");
  byId("key-error").hidden = !key();
  setKey(null);
  byId("key").hidden = false;
  byId("main").hidden = true;
  byId("key-forget").hidden = true;
  byId("key-input").focus();
  return true;
}

byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(byId("key-input").value.trim());
  byId("key-input").value = "";
  byId("key").hidden = true;
  byId("main").hidden = false;
  state("wait", "connecting");
  stop();
  watch();
});

byId("key-forget").addEventListener("click", () => {
  setKey(null);
  location.reload();
});

// Nobody looks at a page in the background, and a stream that nobody looks at costs the runtime work.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) stop();
  else if (!watching && byId("key").hidden) watch();
});

// --- what is drawn ------------------------------------------------------------------------------------------------------

function introduce(value) {
  about = value;
  byId("key-forget").hidden = !key();
  const parts = [about.model, about.context && `${count(about.context)} tokens of context`, about.version];
  say(byId("model"), parts.filter(Boolean).join(" · "));
  if (!about.showsText) plot.hint = `${HINT} Texts are hidden here.`;
  document.title = about.model ? `lmprog · ${about.model}` : "lmprog";
}

function draw(snapshot) {
  const { figures, running, waiting } = snapshot;
  state("live", "live");
  tell("");
  history.add(snapshot.clock, figures);
  drawSpeed(figures);
  drawHits(figures);
  drawBusy(figures, running.length + snapshot.runningLeftOut, waiting.length + snapshot.waitingLeftOut);
  drawMemory(figures);
  drawFleet(snapshot.fleet);
  plot.draw(snapshot);
  say(byId("tree-note"), treeNote(snapshot));
  drawRunning(byId("batch"), byId("batch-note"), running, snapshot.runningLeftOut);
  drawWaiting(byId("line"), byId("line-note"), waiting, snapshot.waitingLeftOut);
}

function drawSpeed(figures) {
  const rates = history.rates((one) => one.generated_tokens);
  const now = rates.at(-1)?.[1] ?? 0;
  const highest = Math.max(0, ...rates.map(([, value]) => value));
  say(byId("speed"), brief(now));
  const peak = highest >= 1 ? `; up to ${brief(highest)}/s` : "";
  say(byId("speed-note"), `${brief(figures.generated_tokens)} in all, ${brief(figures.forced_tokens)} forced${peak}`);
  sparkline(byId("speed-chart"), rates, {
    words: `Generated tokens per second over two minutes: now ${count(now)}, at most ${count(highest)}`,
  });
}

function drawHits(figures) {
  const found = (one) => one.cached_tokens;
  const asked = (one) => one.cached_tokens + one.prefill_tokens;
  const shares = history.shares(found, asked, SHARE_SECONDS);
  const recent = shares.findLast(([, share]) => share !== null)?.[1];
  const whole = asked(figures) ? found(figures) / asked(figures) : null;
  const shown = recent ?? whole;
  say(byId("hits"), shown === null ? "–" : percent(shown));
  say(byId("hits-note"), whole === null ? "no prompt yet" : `${percent(whole)} since the start: ${brief(found(figures))} of ${brief(asked(figures))}`);
  sparkline(byId("hits-chart"), shares, {
    most: 1,
    words: `Share of prompt tokens found in the cache over two minutes: now ${shown === null ? "none" : percent(shown)}`,
  });
}

function drawBusy(figures, running, waiting) {
  const failed = figures.calls_failed ? `, ${brief(figures.calls_failed)} failed` : "";
  say(byId("busy"), count(running));
  say(byId("queue"), waiting ? `and ${count(waiting)} waiting` : "none waiting");
  say(byId("busy-note"), `${many(figures.open_branches, "open branch", "open branches")}; ${brief(figures.calls_done)} calls done${failed}`);
  sparkline(byId("busy-chart"), history.values((one) => one.running), {
    words: `Sequences running over two minutes: now ${count(running)}`,
  });
}

function drawMemory(figures) {
  const { pages, pages_free: free, pages_cached: cached, pages_evictable: evictable, pages_pinned: pinned } = figures;
  const parts = [
    ["used", "in use now", pages - free - evictable],
    ["held", "held by open programs", pinned],
    ["kept", "kept for later", evictable - pinned],
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

// --- the theme ----------------------------------------------------------------------------------------------------------

byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("lmprog-theme", root.dataset.theme);
  } catch {
    // then the choice lasts as long as the page
  }
});

startPlayground(refuse);
state("wait", "connecting");
if (!document.hidden) watch();
