// Figures over the last two minutes: what the runtime counts becomes rates, rates become small lines.

import { set, svg } from "./dom.js";

const SPAN = 120; // seconds
const LEAST = 0.9; // seconds over which a rate is taken at least
const SIZE = { width: 240, height: 44 };

/** Counters with their times. */
export class History {
  constructor() {
    this.samples = [];
  }

  add(clock, figures) {
    const last = this.samples.at(-1);
    if (last && (clock < last.clock || figures.steps < last.figures.steps)) this.samples = []; // another runtime
    this.samples.push({ clock, figures });
    while (this.samples[0].clock < clock - SPAN) this.samples.shift();
  }

  /** [seconds ago, value] of what `value(figures)` is. */
  values(value) {
    const now = this.samples.at(-1)?.clock ?? 0;
    return this.samples.map((sample) => [now - sample.clock, value(sample.figures)]);
  }

  /** [seconds ago, gain of `value` per second] over about a second each. */
  rates(value) {
    return this.windows(LEAST, (from, to, seconds) => (value(to) - value(from)) / seconds);
  }

  /** [seconds ago, gain of `part` as a share of the gain of `whole`] over `seconds` each; null where nothing came. */
  shares(part, whole, seconds) {
    return this.windows(seconds, (from, to) => {
      const all = whole(to) - whole(from);
      return all > 0 ? (part(to) - part(from)) / all : null;
    });
  }

  windows(seconds, value) {
    const { samples } = this;
    const now = samples.at(-1)?.clock ?? 0;
    const found = [];
    let from = 0;
    for (const to of samples) {
      while (from + 1 < samples.length && samples[from + 1].clock <= to.clock - seconds) from += 1;
      const first = samples[from];
      if (first.clock < to.clock) found.push([now - to.clock, value(first.figures, to.figures, to.clock - first.clock)]);
    }
    return found;
  }
}

/** Draws [seconds ago, value] as a line; `most` is the top of the scale, or what the values need. */
export function sparkline(chart, points, { most = null, words }) {
  const { width, height } = SIZE;
  const known = points.filter(([, value]) => value !== null);
  const top = most ?? Math.max(1, ...known.map(([, value]) => value)) * 1.1;
  const at = ([ago, value]) =>
    `${(width * (1 - ago / SPAN)).toFixed(1)},${(height - 2 - (height - 6) * Math.min(1, value / top)).toFixed(1)}`;
  set(chart, { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-label": words });
  if (!chart.firstChild) {
    chart.append(svg("line", { class: "floor", x1: 0, x2: width, y1: height - 1.5, y2: height - 1.5 }));
    chart.append(svg("path", { class: "area" }), svg("path", { class: "curve" }));
  }
  const line = known.map(at).join(" L");
  const [, area, curve] = chart.children;
  const x = ([ago]) => (width * (1 - ago / SPAN)).toFixed(1);
  set(curve, { d: line ? `M${line}` : null });
  set(area, { d: line ? `M${x(known[0])},${height - 2} L${line} L${x(known.at(-1))},${height - 2} Z` : null });
}
