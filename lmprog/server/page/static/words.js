// What is said of a block of the tree: in it, and beside it.

import { count, duration, many } from "./dom.js";

/** In the block, which is so many pixels wide. */
export function label(item, wide) {
  const letters = Math.floor((wide - 10) / 6.6);
  const words = item.isMore ? `${count(item.count)} more` : item.text ? item.text.replaceAll(/\s+/g, " ").trim() : "";
  if (item.isMore) return words.length <= letters ? words : "";
  if (words && letters > 5) return words.length > letters ? `${words.slice(0, letters - 1)}…` : words;
  const number = count(item.tokens);
  return number.length <= letters ? number : "";
}

/** The whole of what the figures say. */
export function sentence(item) {
  if (item.isMore) return `${many(item.count, "smaller block")}${item.tokens ? `, ${many(item.tokens, "token")} in all` : ""}. Click to see them.`;
  if (item.sequence) {
    const { sequence } = item;
    const done = sequence.maxTokens ? `, ${count(sequence.generated)} of at most ${count(sequence.maxTokens)} generated` : "";
    return `Call ${sequence.call} is in ${sequence.phase}: ${many(item.tokens, "token")} that are not in the tree yet${done}.`;
  }
  const parts = [`${many(item.tokens, "token")} at ${count(item.begin)}–${count(item.end)}, ${many(item.pages, "page")}`];
  if (item.locks) parts.push(`${many(item.locks, "running call")} on it`);
  else parts.push(`last used ${duration(item.age)} ago`);
  if (item.pins) parts.push(`held by ${many(item.pins, "open branch", "open branches")}`);
  if (item.salt) parts.push(`cache of its own: ${item.salt}`);
  return `${parts.join(" · ")}.`;
}

/** The beginning, on one line. */
export function shorten(text, most = 28) {
  const words = (text ?? "").replaceAll(/\s+/g, " ").trim();
  return words.length > most ? `${words.slice(0, most - 1)}…` : words;
}
