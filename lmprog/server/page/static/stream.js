// Asking the server: the key as a header, answers as events, failures as sentences.

const KEY = "lmprog-key";
let kept = null; // where storage is switched off, the key lives as long as the page

export function key() {
  try {
    return sessionStorage.getItem(KEY) ?? kept;
  } catch {
    return kept;
  }
}

export function setKey(value) {
  kept = value;
  try {
    if (value === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, value);
  } catch {
    // kept in this page alone
  }
}

/** What the server refused, with its own words. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The answer's events as they come: [name, value]. Ends with the stream; `signal` ends it sooner. */
export async function* events(path, { body, signal } = {}) {
  const response = await ask(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const found = parse(block);
        if (found) yield found;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined); // it may have failed already, which was told above
  }
}

/** An answer as a value; `method` where it is neither GET nor has a body. */
export async function value(path, { body, method, signal } = {}) {
  return (await ask(path, body, signal, method)).json();
}

async function ask(path, body, signal, method = body === undefined ? "GET" : "POST") {
  const headers = {};
  const own = key();
  if (own) headers.authorization = `Bearer ${own}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(path, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
    cache: "no-store",
    credentials: "omit",
  });
  if (response.ok) return response;
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // no answer of lmprog's own: a proxy's, say
  }
  throw new Refused(response.status, message);
}

function parse(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  const text = data.join("\n");
  if (!text || text === "[DONE]") return null;
  const value = JSON.parse(text);
  if ((name === "message" || name === "error") && value.error) throw new Refused(500, value.error.message);
  return [name, value];
}
