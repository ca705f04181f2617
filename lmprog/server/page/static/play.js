// The playground: four questions to the model, and what became of each token of the answer.

import { spansOf } from "./branches.js";
import { byId, count, duration, el, many, percent } from "./dom.js";
import { events } from "./stream.js";

const EXAMPLES = {
  chat: "Is this positive or negative: What a lovely hotel! I enjoyed every minute.",
  "json-prompt":
    "Text: Mia is 31 years old. Mia lives in Oslo. Mia has a dog.\nExtract name, age, town, animal as JSON.\nJSON: ",
  "json-schema": JSON.stringify(
    {
      type: "object",
      properties: {
        name: { type: "string", maxLength: 20 },
        age: { type: "integer", minimum: 0, maximum: 120 },
        town: { type: "string", maxLength: 20 },
        animal: { enum: ["dog", "cat", "bird"] },
      },
      required: ["name", "age", "town", "animal"],
      additionalProperties: false,
    },
    null,
    2,
  ),
  "select-prompt":
    "Review: I think the movie is excellent. I loved it.\nSentiment: positive\n\nReview: The room was dirty. I will not come " +
    "back.\nSentiment: negative\n\nReview: The concert was boring. I want my money back.\nSentiment:",
  "select-choices": " positive\n negative",
  "fork-prompt": "Give a tip for saving money.\nTip:",
};

/** Brings the playground to life. `onRefused` is told of refusals that are about the whole page. */
export function startPlayground(onRefused) {
  for (const [id, text] of Object.entries(EXAMPLES)) {
    const field = byId(id === "chat" ? "chat-input" : id);
    field.value = text;
  }
  tabs();
  const turns = [];
  const log = byId("chat-log");
  const nothing = () =>
    log.replaceChildren(el("p", { class: "empty" }, "Send a message. The conversation stays in the tree between turns."));
  nothing();
  byId("chat-clear").addEventListener("click", () => {
    turns.length = 0;
    nothing();
  });
  byId("chat-input").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!byId("panel-chat").noValidate) byId("panel-chat").requestSubmit(); // while an answer is written, Stop ends it
  });
  bind("panel-chat", onRefused, (form) => {
    const content = byId("chat-input").value;
    const messages = [...turns, { role: "user", content }];
    if (!turns.length) log.replaceChildren();
    const answer = new Result("Assistant");
    const asked = el("div", { class: "turn user" }, el("p", {}, content));
    log.append(asked, answer.card);
    log.scrollTop = log.scrollHeight;
    answer.moved = () => (log.scrollTop = log.scrollHeight);
    byId("chat-input").value = "";
    const done = () => turns.push({ role: "user", content }, { role: "assistant", content: answer.text });
    return { body: { messages, ...settings(form) }, results: [answer], done };
  });
  bind("panel-json", onRefused, (form) => {
    const schema = parsed(byId("json-schema").value);
    return { body: { prompt: byId("json-prompt").value, schema, ...settings(form) }, results: shown(form, ["Result"]) };
  });
  bind("panel-select", onRefused, (form) => {
    const choices = byId("select-choices").value.split("\n").filter((line) => line !== "");
    return { body: { prompt: byId("select-prompt").value, choices }, results: shown(form, ["Choices"]) };
  });
  bind("panel-fork", onRefused, (form) => {
    const asked = settings(form);
    const names = Array.from({ length: asked.forks }, (_, index) => `Continuation ${index + 1}`);
    return { body: { prompt: byId("fork-prompt").value, ...asked }, results: shown(form, names) };
  });
}

function settings(form) {
  const fields = [...form.querySelectorAll("input[type=number]")];
  return Object.fromEntries(fields.map((field) => [field.name, field.valueAsNumber]));
}

function shown(form, names) {
  const results = names.map((name) => new Result(name));
  form.querySelector(".results").replaceChildren(...results.map((result) => result.card));
  return results;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The schema is no JSON: ${error.message}`);
  }
}

/** A form that runs: its button becomes Stop, its failures stand below it. */
function bind(id, onRefused, prepare) {
  const form = byId(id);
  const button = form.querySelector("button[type=submit]");
  const name = button.textContent;
  const failure = form.querySelector(".error");
  let running = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) {
      running.abort();
      return;
    }
    failure.hidden = true;
    running = new AbortController();
    button.textContent = "Stop";
    button.classList.add("stops");
    form.noValidate = true; // Stop needs no fields
    let results = [];
    try {
      const asked = prepare(form);
      results = asked.results;
      await run(asked, running.signal);
      asked.done?.();
    } catch (error) {
      const stopped = error.name === "AbortError";
      for (const result of results) result.end(stopped ? "stopped" : null);
      if (!stopped && !onRefused(error)) {
        failure.textContent = error.message;
        failure.hidden = false;
      }
    } finally {
      running = null;
      button.textContent = name;
      button.classList.remove("stops");
      form.noValidate = false;
    }
  });
}

async function run({ body, results }, signal) {
  let failed = null;
  for await (const [name, value] of events("/ui/play", { body, signal })) {
    const result = results[value.index ?? 0];
    if (name === "prompt") for (const one of results) one.prompt = value;
    else if (name === "delta") result.add(value.text);
    else if (name === "done") result.finish(value);
    else if (name === "chosen") result.choose(value);
    else if (name === "failed") {
      result.end(null);
      failed = value.message;
    }
  }
  if (failed) throw new Error(failed);
}

/** One result: text as it comes, then with what is known of each part. */
class Result {
  constructor(title) {
    this.text = "";
    this.prompt = null;
    this.moved = () => undefined;
    this.body = el("div", { class: "text" }, el("span", { class: "wait" }, "…"));
    this.work = el("p", { class: "note" });
    this.card = el("article", { class: "result" }, el("h3", {}, title), this.body, this.work);
  }

  add(text) {
    if (!this.text) this.body.replaceChildren(el("span", { class: "t-generated" }));
    this.text += text;
    this.body.firstChild.textContent = this.text;
    this.moved();
  }

  finish({ text, forced, usage, cachedText, finish }) {
    this.text = text;
    this.body.replaceChildren(...spansOf({ text, forced }));
    if (!text) this.body.replaceChildren(el("em", {}, "empty: the model ended at once"));
    this.work.textContent = work(usage, finish);
    this.below(usage, cachedText);
    this.moved();
  }

  choose({ chosen, options, usage }) {
    const list = el("ol", { class: "options" });
    for (const [index, option] of options.entries()) {
      const fill = el("span", { class: "fill" });
      fill.style.width = `${100 * option.probability}%`;
      const row = el("li", index === chosen ? { class: "chosen" } : {});
      row.append(el("span", { class: "choice" }, option.text), el("span", { class: "share" }, percent(option.probability)));
      row.append(el("span", { class: "track" }, fill));
      list.append(row);
    }
    this.body.replaceChildren(list);
    this.work.textContent = `${many(usage.prompt, "prompt token")}; ${many(usage.computed, "token")} computed, ${count(usage.cached)} found in the cache, over all choices; ${time(usage)}`;
  }

  /** The prompt as the runtime saw it, its cached part shaded. */
  below(usage, cachedText) {
    const letters = [...this.prompt.text]; // the server counts characters, JavaScript counts UTF-16
    const cut = cachedText ?? 0;
    const parts = [el("span", { class: "t-cached" }, letters.slice(0, cut).join(""))];
    parts.push(el("span", { class: "t-computed" }, letters.slice(cut).join("")));
    const title = `Prompt: ${count(Math.min(usage.cached, usage.prompt))} of ${many(usage.prompt, "token")} cached`;
    this.card.append(el("details", {}, el("summary", {}, title), el("div", { class: "text" }, ...parts)));
  }

  end(word) {
    this.body.querySelector(".wait")?.remove();
    if (word) this.work.textContent = word;
    if (!this.text && !word) this.card.remove();
  }
}

function work(usage, finish) {
  const parts = [`${count(usage.generated)} generated${usage.forced ? `, ${count(usage.forced)} of them forced` : ""}`, time(usage)];
  if (finish === "length") parts.push("cut at its most tokens");
  return parts.join("; ");
}

const time = (usage) => duration((usage.queued_ms + usage.prefill_ms + usage.decode_ms) / 1000);

function tabs() {
  const all = [...document.querySelectorAll("[role=tab]")];
  const pick = (tab) => {
    for (const one of all) {
      const chosen = one === tab;
      one.setAttribute("aria-selected", chosen);
      one.tabIndex = chosen ? 0 : -1;
      byId(one.getAttribute("aria-controls")).hidden = !chosen;
    }
  };
  for (const [index, tab] of all.entries()) {
    tab.addEventListener("click", () => pick(tab));
    tab.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      const next = all[(index + by + all.length) % all.length];
      pick(next);
      next.focus();
    });
  }
}
