// The page: one stream of pictures while somebody looks, and everything that is drawn from it.

import { byId, count, many, say } from "./dom.js";
import { Accounts, Figures } from "./figures.js";
import { drawFleet } from "./fleet.js";
import { startGallery } from "./gallery.js";
import { startPlayground } from "./play.js";
import { Requests } from "./requests.js";
import { Refused, events, key, setKey } from "./stream.js";
import { TreePlot, treeNote } from "./tree.js";

const HINT = byId("details").textContent;
const RETRY = [1, 2, 4, 8, 15]; // seconds
const NARROW = matchMedia("(max-width: 1100px)");

const figures = new Figures();
const accounts = new Accounts();
const requests = new Requests((blocks) => plot.mark(blocks));
const plot = new TreePlot(requests);
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
        else if (name === "history") figures.history.remember(value);
        else if (name === "requests") {
          requests.take(value);
          accounts.draw(value.keys);
        }
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
  requests.closeAll(); // what another key read is not this one's
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
  plot.introduce(about.showsText, about.showsText ? HINT : `${HINT} Texts are hidden here.`);
  document.title = about.model ? `lmprog · ${about.model}` : "lmprog";
}

function draw(snapshot) {
  state("live", "live");
  tell("");
  figures.draw(snapshot);
  drawFleet(snapshot.fleet);
  plot.draw(snapshot);
  say(byId("tree-note"), treeNote(snapshot));
  requests.draw(snapshot);
}

// On a narrow screen the playground comes first, and then the charts, for eyes, fingers and screen readers alike.
function arrange() {
  const [main, playground, served] = [byId("main"), byId("playground"), byId("served")];
  if (NARROW.matches) {
    main.prepend(playground);
    main.querySelector(".figures").after(served);
  } else byId("right").prepend(playground, served);
}

NARROW.addEventListener("change", arrange);

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

arrange();
startPlayground(refuse);
startGallery(refuse);
state("wait", "connecting");
if (!document.hidden) watch();
