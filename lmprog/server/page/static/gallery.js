// Programs to run: each as Python, and its branches drawn while they grow.

import { Drawing } from "./branches.js";
import { byId, count, el, say } from "./dom.js";
import { events, value } from "./stream.js";

const STEP_TOKENS = 48; // of one call of a tool

let running = null;
let chosen = null;

/** Brings the gallery to life. `onRefused` is told of refusals that are about the whole page. */
export async function startGallery(onRefused) {
  let programs = [];
  try {
    programs = await value("/ui/programs.json");
  } catch (error) {
    fail(error.message);
    return;
  }
  const buttons = programs.map((program) => {
    const button = el("button", { type: "button", "data-program": program.id, "aria-pressed": "false" }, program.title);
    button.addEventListener("click", () => choose(program, buttons));
    return button;
  });
  byId("programs").replaceChildren(...buttons);
  byId("program-run").addEventListener("click", () => run(onRefused));
  choose(programs[0], buttons);
}

function choose(program, buttons) {
  running?.abort();
  chosen = program;
  for (const button of buttons) button.setAttribute("aria-pressed", button.dataset.program === program.id);
  say(byId("program-about"), program.about);
  say(byId("program-source"), program.source.trim());
  say(byId("gallery-note"), "");
  fail("");
  draw(program);
}

function draw(program) {
  const drawing = new Drawing(byId("program-drawn"));
  if (program.ops) drawing.plan(program.ops);
  else drawing.turn("user", program.chat.question);
  return drawing;
}

function fail(text) {
  say(byId("program-error"), text);
  byId("program-error").hidden = !text;
}

async function run(onRefused) {
  if (running) {
    running.abort();
    return;
  }
  const program = chosen;
  const controller = (running = new AbortController());
  const button = byId("program-run");
  fail("");
  say(byId("gallery-note"), "");
  say(button, "Stop");
  byId("gallery").dataset.state = "running";
  const drawing = draw(program);
  try {
    const usage = program.ops ? await runOps(program.ops, drawing, controller.signal) : await runTools(program.chat, drawing, controller.signal);
    say(byId("gallery-note"), work(usage));
    byId("gallery").dataset.state = "done";
  } catch (error) {
    byId("gallery").dataset.state = "stopped";
    if (error.name !== "AbortError" && !onRefused(error)) fail(error.message);
  } finally {
    if (running === controller) running = null;
    say(button, "Run");
  }
}

function work({ prompt, cached, computed, generated, forced }) {
  const parts = [`${count(prompt)} prompt tokens in all calls, ${count(cached)} of them found in the tree`];
  if (computed) parts.push(`${count(computed)} computed`);
  if (generated) parts.push(`${count(generated)} generated`);
  if (forced) parts.push(`${count(forced)} of them forced`);
  return parts.join(", ");
}

/** A program in one request. */
async function runOps(ops, drawing, signal) {
  let usage = {};
  for await (const [name, event] of events("/v1/programs", { body: { ops, stream: true }, signal })) {
    if (name === "delta") drawing.grow(event.call, event.index, event.text);
    else if (name === "result") drawing.finish(event.call, event);
    else if (name === "done") {
      const { prompt_tokens: prompt, cached_tokens: cached, computed_tokens: computed, generated_tokens: generated, forced_tokens: forced } = event.usage;
      usage = { prompt, cached, computed, generated, forced };
      if (event.status === "failed") throw new Error("A call failed; its branch says why.");
    }
  }
  return usage;
}

/** All functions are told, so that requests begin alike; this one is called. */
const only = (name) => ({ type: "allowed_tools", allowed_tools: { mode: "required", tools: [{ type: "function", function: { name } }] } });

/** A chat in which the model calls functions, which run here. */
async function runTools({ question, steps, tools, notes }, drawing, signal) {
  const functions = { look_up: ({ name }) => notes[name] ?? "Nothing is known.", answer: ({ town }) => town };
  const messages = [{ role: "user", content: question }];
  const usage = { prompt: 0, cached: 0, generated: 0 };
  for (const name of steps) {
    const turn = drawing.turn("assistant", `${name}(`);
    const body = { messages, tools, tool_choice: only(name), parallel_tool_calls: false, temperature: 0, max_tokens: STEP_TOKENS, stream: true, stream_options: { include_usage: true } };
    const call = { id: "", type: "function", function: { name, arguments: "" } };
    for await (const [, event] of events("/v1/chat/completions", { body, signal })) {
      for (const part of event.choices?.[0]?.delta?.tool_calls ?? []) {
        call.id ||= part.id ?? "";
        call.function.arguments += part.function?.arguments ?? "";
        turn.add(part.function?.arguments ?? "");
      }
      if (!event.usage) continue;
      usage.prompt += event.usage.prompt_tokens;
      usage.cached += event.usage.prompt_tokens_details.cached_tokens;
      usage.generated += event.usage.completion_tokens;
      turn.note(`${count(event.usage.prompt_tokens_details.cached_tokens)} of ${count(event.usage.prompt_tokens)} cached`);
    }
    turn.end(")");
    const result = String(functions[name](JSON.parse(call.function.arguments)));
    drawing.turn("tool", result);
    messages.push({ role: "assistant", content: null, tool_calls: [call] }, { role: "tool", tool_call_id: call.id, content: result });
  }
  return usage;
}
