// Figures over time: samples become rates, rates become lines and stacked areas with axes.

import { brief, duration, percent, set, svg } from "./dom.js";

const KEPT = 3600; // seconds
const FINE = 150; // seconds in which every sample is kept; before that one in ten seconds
const COARSE = 10;
const BINS = 60; // points of a line
const MARGIN = { left: 42, right: 8, top: 8, bottom: 20 };
const TIMES = [15, 30, 60, 120, 300, 600, 900, 1200]; // seconds between two marks of the axis

/** Counters with their times, the oldest first. */
export class History {
  constructor() {
    this.samples = [];
    this.past = null;
  }

  /** What the server remembers from before: rows of seconds ago and figures, by `names`. */
  remember({ names, rows }) {
    this.past = rows.map(([ago, ...values]) => ({
      ago,
      figures: Object.fromEntries(names.map((name, index) => [name, values[index]])),
    }));
    this.samples = [];
  }

  add(clock, figures) {
    if (this.past) {
      this.samples = this.past.map((one) => ({ clock: clock - one.ago, figures: one.figures }));
      this.past = null;
    }
    const last = this.samples.at(-1);
    if (last && clock < last.clock) this.samples = []; // another runtime
    this.samples.push({ clock, figures });
    while (this.samples[0].clock < clock - KEPT) this.samples.shift();
    this.thin(clock);
  }

  /** Of what is older than a while, one sample in ten seconds is enough. */
  thin(now) {
    const old = this.samples.findIndex((one) => one.clock > now - FINE);
    for (let at = old - 1; at > 1 && at > old - 4; at -= 1) {
      if (this.samples[at].clock - this.samples[at - 2].clock < COARSE) this.samples.splice(at - 1, 1);
    }
  }

  /** [seconds ago, value] in equal steps over `span`; null where nothing is known. `value` gets the figures at both ends. */
  steps(span, value) {
    const { samples } = this;
    if (samples.length < 2) return [];
    const now = samples.at(-1).clock;
    const bin = span / BINS;
    const found = [];
    let at = 0;
    const upTo = (clock) => {
      while (at + 1 < samples.length && samples[at + 1].clock <= clock) at += 1;
      return samples[at];
    };
    const end = Math.floor(now / bin) * bin; // bins keep their places while time goes on
    let from = upTo(end - span);
    for (let clock = end - span + bin; clock <= end + 1e-6; clock += bin) {
      const to = upTo(clock);
      const known = to.clock > from.clock && from.clock >= clock - 2 * bin - COARSE;
      found.push([now - clock, known ? value(from.figures, to.figures, to.clock - from.clock) : null]);
      from = to;
    }
    return found;
  }

  /** Gains of `value` per second. */
  rates(span, value) {
    return this.steps(span, (from, to, seconds) => {
      const gain = value(to) - value(from);
      return gain < 0 ? null : gain / seconds; // a new runtime counts from 0
    });
  }

  /** The gain of `value` per second over the last second or so. */
  speed(value) {
    const now = this.samples.at(-1);
    const from = this.samples.findLast((one) => one.clock <= now.clock - 0.9) ?? this.samples[0];
    const gain = value(now.figures) - value(from.figures);
    return now.clock > from.clock && gain > 0 ? gain / (now.clock - from.clock) : 0;
  }

  /** Gains of `part` as shares of those of `whole`. */
  shares(span, part, whole) {
    return this.steps(span, (from, to) => {
      const all = whole(to) - whole(from);
      return all > 0 ? (part(to) - part(from)) / all : null;
    });
  }

  /** What a wait took on average, of those that ended in a step. */
  means(span, name) {
    return this.steps(span, (from, to) => {
      const times = to[`${name}_count`] - from[`${name}_count`];
      return times > 0 ? (to[`${name}_seconds`] - from[`${name}_seconds`]) / times : null;
    });
  }

  values(span, value) {
    return this.steps(span, (_, to) => value(to));
  }
}

/** One chart: `series` of points [seconds ago, value | null], stacked where there are several. */
export class TimeChart {
  constructor(plot, { classes, format = brief, most = null, least = 2, joins = false }) {
    this.plot = plot;
    this.least = least; // that the axis reaches to
    this.format = format;
    this.most = most;
    this.joins = joins; // lines go on over steps in which nothing came
    this.axes = svg("g", { class: "axes" });
    this.areas = classes.map((name) => svg("path", { class: `area ${name}` }));
    this.curves = classes.map((name) => svg("path", { class: `curve ${name}` }));
    this.cross = svg("g", { class: "cross", visibility: "hidden" });
    plot.append(this.axes, ...this.areas, ...this.curves, this.cross);
    this.last = null;
    plot.addEventListener("pointermove", (event) => this.point(event));
    plot.addEventListener("pointerleave", () => set(this.cross, { visibility: "hidden" }));
    new ResizeObserver(() => this.last && this.draw(...this.last)).observe(plot);
  }

  draw(span, series, names, words) {
    this.last = [span, series, names, words];
    const width = this.plot.clientWidth;
    const height = this.plot.clientHeight;
    if (!width || !height) return;
    set(this.plot, { viewBox: `0 0 ${width} ${height}`, "aria-label": words });
    const stacked = stack(series);
    const highest = Math.max(0, ...stacked.flatMap((line) => line.map(([, , upper]) => upper ?? 0)));
    const top = this.most ?? ceiling(highest, this.least);
    const x = (ago) => MARGIN.left + (width - MARGIN.left - MARGIN.right) * (1 - ago / span);
    const y = (value) => height - MARGIN.bottom - (height - MARGIN.top - MARGIN.bottom) * Math.min(1, value / top);
    this.scale = { x, y, width, height, span, top };
    this.drawAxes(x, y, top, span, width, height);
    stacked.forEach((line, index) => {
      const runs = this.joins ? [line.filter(([, , upper]) => upper !== null)] : pieces(line);
      const points = (run, place) => run.map((one) => `${fixed(x(one[0]))},${fixed(y(one[place]))}`);
      const known = runs.filter((run) => run.length > 0);
      set(this.curves[index], { d: known.map((run) => `M${points(run, 2).join("L")}`).join("") || null });
      const areas = known.map((run) => `M${points(run, 2).join("L")}L${points(run, 1).reverse().join("L")}Z`);
      set(this.areas[index], { d: areas.join("") || null });
    });
  }

  drawAxes(x, y, top, span, width, height) {
    const marks = [];
    for (const value of [0, top / 2, top]) {
      const at = fixed(y(value));
      marks.push(svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }));
      marks.push(svg("text", { x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end" }, this.format(value)));
    }
    const step = TIMES.find((one) => span / one <= Math.max(2, width / 110)) ?? TIMES.at(-1);
    for (let ago = 0; ago <= span; ago += step) {
      const anchor = ago === 0 ? "end" : ago === span ? "start" : "middle";
      marks.push(svg("text", { x: fixed(x(ago)), y: height - 5, "text-anchor": anchor }, ago ? `−${duration(ago)}` : "now"));
    }
    this.axes.replaceChildren(...marks);
  }

  /** A line and the values where the pointer is. */
  point(event) {
    if (!this.last || !this.scale) return;
    const [span, series, names] = this.last;
    const { x, width, height } = this.scale;
    const left = event.clientX - this.plot.getBoundingClientRect().left;
    const times = series[0].map(([ago]) => ago);
    if (!times.length || left < MARGIN.left) return;
    const ago = times.reduce((best, one) => (Math.abs(x(one) - left) < Math.abs(x(best) - left) ? one : best));
    const at = times.indexOf(ago);
    const values = series.map((line, index) => `${names[index]} ${line[at][1] === null ? "–" : this.format(line[at][1])}`);
    const rightHalf = x(ago) > width / 2;
    const texts = [`−${duration(Math.min(span, ago))}`, ...values].map((text, row) =>
      svg("text", { x: x(ago) + (rightHalf ? -8 : 8), y: MARGIN.top + 12 + 14 * row, "text-anchor": rightHalf ? "end" : "start" }, text),
    );
    const line = svg("line", { x1: x(ago), x2: x(ago), y1: MARGIN.top, y2: height - MARGIN.bottom });
    this.cross.replaceChildren(line, ...texts);
    set(this.cross, { visibility: "visible" });
  }
}

/** Lines on top of each other: [seconds ago, lower, upper | null]. */
function stack(series) {
  const base = series[0].map(() => 0);
  return series.map((line) =>
    line.map(([ago, value], index) => {
      const lower = base[index];
      if (value !== null) base[index] += value;
      return [ago, lower, value === null ? null : base[index]];
    }),
  );
}

/** The stretches of a line in which something is known. */
function pieces(line) {
  const found = [[]];
  for (const one of line) {
    if (one[2] === null) found.push([]);
    else found.at(-1).push(one);
  }
  return found;
}

/** The end of an axis: a number that is easily read, and so is its half. */
function ceiling(highest, least) {
  if (highest <= least) return least;
  const power = 10 ** Math.floor(Math.log10(highest));
  return [1, 2, 4, 6, 8, 10].map((by) => by * power).find((one) => one >= highest) ?? 10 * power;
}

const fixed = (value) => value.toFixed(1);
export const asPercent = (value) => percent(value).replace(".0%", "%");
