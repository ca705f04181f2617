// Which nodes of the tree are drawn, and in which rows: as many as can be read, the others together in one block for each parent.

const FIELDS = ["number", "parent", "begin", "tokens", "pages", "age", "locks", "pins", "leftOut", "salt", "text"];
const IN_USE = 20; // what is in use weighs so much more
const WANTED = 1e9; // what was searched for comes first

/** The picture's nodes as a forest: `key`, `parent` (a node or null), `kids`, `end`. Sequences that run are leaves. */
export function forest(snapshot, isPart) {
  const nodes = snapshot.nodes.map((values) => Object.fromEntries(FIELDS.map((name, at) => [name, values[at]])));
  for (const node of nodes) {
    node.key = String(node.number);
    node.parent = node.parent < 0 ? null : nodes[node.parent];
    node.end = node.begin + node.tokens;
    node.order = [node.salt, node.number];
    node.kids = [];
    node.parent?.kids.push(node);
  }
  const tops = nodes.filter((node) => node.parent === null);
  const byNumber = new Map(nodes.map((node) => [node.number, node]));
  for (const sequence of snapshot.running) {
    const on = sequence.node === null ? null : byNumber.get(sequence.node);
    if (!on && (isPart || sequence.node !== null)) continue;
    const begin = on?.end ?? 0;
    if (sequence.tokens <= begin) continue;
    const ghost = {
      key: `sequence-${sequence.own}-${sequence.call}-${sequence.branch}-${sequence.index}`,
      parent: on ?? null,
      kids: [],
      begin,
      end: sequence.tokens,
      tokens: sequence.tokens - begin,
      salt: on?.salt ?? "",
      order: [on?.salt ?? "", Infinity],
      age: 0,
      locks: 1,
      pins: 0,
      leftOut: 0,
      sequence,
    };
    (on?.kids ?? tops).push(ghost);
  }
  return { nodes, tops };
}

/** What is drawn, in the order of rows: at most `most` rows. Items have `row`, `rows`, `depth`, `group` (of the salt). */
export function arranged({ tops }, most, wanted = new Set()) {
  const all = [];
  const weigh = (node) => {
    all.push(node);
    node.size = node.tokens;
    node.count = 1;
    node.last = node.end;
    let weight = node.tokens * (node.locks ? IN_USE : 1) + (wanted.has(node.number) ? WANTED : 0);
    for (const kid of node.kids) {
      weight += weigh(kid);
      node.size += kid.size;
      node.count += kid.count;
      node.last = Math.max(node.last, kid.last);
    }
    node.weight = weight;
    return weight;
  };
  tops.forEach(weigh);
  const chosen = choose(tops, all, most);
  return placed(tops, chosen);
}

/** The heaviest nodes whose parents are chosen, as long as there are rows. */
function choose(tops, all, most) {
  const chosen = new Set();
  const shownKids = new Map(); // parent -> how many of its kids are chosen
  let rows = 0;
  for (const node of [...all].sort((a, b) => b.weight - a.weight)) {
    if (node.parent && !chosen.has(node.parent)) continue;
    const kids = node.parent ? node.parent.kids.length + (node.parent.leftOut ? 1 : 0) : tops.length;
    const shown = shownKids.get(node.parent) ?? 0;
    const isFirst = shown === 0 && node.parent !== null; // it stands in its parent's row
    const before = isFirst || (shown > 0 && shown < kids) ? 1 : 0;
    const after = 1 + (shown + 1 < kids ? 1 : 0);
    if (rows + after - before > most) continue;
    rows += after - before;
    chosen.add(node);
    shownKids.set(node.parent, shown + 1);
  }
  return chosen;
}

function placed(tops, chosen) {
  const items = [];
  let row = 0;
  let group = -1;
  let salt = null;
  const put = (item, depth, inside) => {
    const first = row;
    Object.assign(item, { row, depth, group });
    items.push(item);
    inside();
    if (row === first) row += 1;
    item.rows = row - first;
  };
  const rest = (parent, hidden, depth) => {
    const left = parent?.leftOut ?? 0;
    if (!hidden.length && !left) return;
    const begin = parent?.end ?? 0;
    const end = Math.max(begin + 1, ...hidden.map((node) => node.last));
    const tokens = hidden.reduce((sum, node) => sum + node.size, 0);
    const number = hidden.reduce((sum, node) => sum + node.count, left);
    const locks = hidden.reduce((sum, node) => sum + node.locks, 0);
    const age = Math.min(Infinity, ...hidden.map((node) => node.age));
    const key = `more-${parent?.key ?? "top"}`;
    const more = { key, parent, kids: [], begin, end, tokens, count: number, locks, pins: 0, leftOut: 0, salt: parent?.salt ?? "", age, isMore: true };
    put(more, depth, () => undefined);
  };
  const place = (node, depth) =>
    put(node, depth, () => {
      const kids = sorted(node.kids);
      for (const kid of kids) if (chosen.has(kid)) place(kid, depth + 1);
      rest(node, kids.filter((kid) => !chosen.has(kid)), depth + 1);
    });
  for (const top of sorted(tops)) {
    if (!chosen.has(top)) continue;
    if (top.salt !== salt) {
      group += 1;
      salt = top.salt;
    }
    place(top, 0);
  }
  group = Math.max(0, group);
  rest(null, tops.filter((top) => !chosen.has(top)), 0);
  return items;
}

function sorted(nodes) {
  return [...nodes].sort((a, b) => (a.order[0] < b.order[0] ? -1 : a.order[0] > b.order[0] ? 1 : a.order[1] - b.order[1] || 0));
}
