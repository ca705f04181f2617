// Asks a server through the vendors' JavaScript clients. A line of JSON on the standard input is a
// request (`id`, `dialect`, `url`, `key`, `more`), a line on the standard output an event of its
// stream (`id`, `event`), what the client threw (`id`, `raised`), or its end (`id`, `done`).
import readline from "node:readline";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const HELLO = [{ role: "user", content: "Hello" }];
const given = (url, key) => ({ baseURL: url, apiKey: key, maxRetries: 0, timeout: 60_000 });
const openai = (url, key) => new OpenAI(given(`${url}/v1`, key));
const anthropic = (url, key) => new Anthropic(given(url, key));

const DIALECTS = {
  async *chat({ url, key, more }) {
    const body = { model: "m", messages: HELLO, stream: true, ...more };
    yield* await openai(url, key).chat.completions.create(body);
  },
  async *completion({ url, key, more }) {
    const body = { model: "m", prompt: "x", stream: true, ...more };
    yield* await openai(url, key).completions.create(body);
  },
  async *response({ url, key, more }) {
    const body = { model: "m", input: "x", stream: true, ...more };
    yield* await openai(url, key).responses.create(body);
  },
  async *"response helper"({ url, key, more }) {
    const stream = openai(url, key).responses.stream({ model: "m", input: "x", ...more });
    yield* stream;
    await stream.finalResponse();
  },
  async *message({ url, key, more }) {
    const body = { model: "m", messages: HELLO, max_tokens: 9, stream: true, ...more };
    yield* await anthropic(url, key).messages.create(body);
  },
  async *"message helper"({ url, key, more }) {
    const body = { model: "m", messages: HELLO, max_tokens: 9, ...more };
    const stream = anthropic(url, key).messages.stream(body);
    yield* stream;
    await stream.finalMessage();
  },
};

const say = (id, said) => process.stdout.write(JSON.stringify({ id, ...said }) + "\n");

async function ask(request) {
  const { id, dialect } = request;
  try {
    for await (const event of DIALECTS[dialect](request)) say(id, { event });
    say(id, { done: true });
  } catch (thrown) {
    const { status, code, type, error, message } = thrown;
    const name = thrown.constructor.name;
    say(id, { raised: { name, status, code, type, error, message, request: thrown.requestID } });
  }
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  ask(JSON.parse(line));
}
