// The agents and their handoffs, drawn in rows by their distance from the first agent; the active agent is lit.

import { hue, lastRun, state, update } from "./state.js";
import { html } from "./vendor/htm-preact.js";

const WIDTH = 360;
const GAP = 64;
const LINE = 16;

function rows(graph) {
  const depth = new Map([[graph.agents[0].id, 0]]);
  for (const queue = [graph.agents[0].id]; queue.length; ) {
    const id = queue.shift();
    for (const { source, target } of graph.handoffs)
      if (source === id && target && !depth.has(target)) depth.set(target, depth.get(id) + 1), queue.push(target);
  }
  const found = [];
  for (const node of graph.agents) {
    const at = depth.get(node.id) ?? 0;
    // No more than two nodes side by side, so that names can be read.
    (found[at] ||= []).push(node);
  }
  return found.flatMap((row) => Array.from({ length: Math.ceil(row.length / 2) }, (_, at) => row.slice(at * 2, at * 2 + 2)));
}

function layout(graph) {
  const boxes = new Map();
  let top = 12;
  for (const row of rows(graph)) {
    const width = row.length === 1 ? 190 : 160;
    const gap = (WIDTH - 20 - row.length * width) / (row.length + 1);
    const height = Math.max(...row.map((node) => 44 + Math.min(node.functions.length, 6) * LINE));
    row.forEach((node, at) => boxes.set(node.id, { node, x: 10 + gap * (at + 1) + width * at, y: top, width, height }));
    top += height + GAP;
  }
  return { boxes, height: top - GAP + 40 };
}

// The point at the border of a box in the direction of another point.
function border(box, to) {
  const x = box.x + box.width / 2;
  const y = box.y + box.height / 2;
  const dx = to.x - x;
  const dy = to.y - y;
  const scale = 1 / Math.max(Math.abs(dx) / (box.width / 2 + 4), Math.abs(dy) / (box.height / 2 + 4), 0.001);
  return [x + dx * scale, y + dy * scale];
}

function path(from, to, both) {
  if (from.y === to.y) {
    // Beside each other: a bow below both.
    const shift = from.x < to.x ? 14 : -14;
    const low = (box) => [box.x + box.width / 2 + shift * (box === from ? 1 : -1) * 0.5 + shift, box.y + box.height + 4];
    const [x1, y1] = low(from);
    const [x2, y2] = low(to);
    const depth = Math.max(y1, y2) + (shift > 0 ? 26 : 40);
    return `M${x1} ${y1}C${x1} ${depth} ${x2} ${depth} ${x2} ${y2}`;
  }
  const centre = (box) => ({ x: box.x + box.width / 2, y: box.y + box.height / 2 });
  const a = centre(from);
  const b = centre(to);
  const length = Math.hypot(b.x - a.x, b.y - a.y) || 1;
  const bend = both ? 26 : 0; // two handoffs between the same agents stand beside each other
  const middle = { x: (a.x + b.x) / 2 - ((b.y - a.y) / length) * bend, y: (a.y + b.y) / 2 + ((b.x - a.x) / length) * bend };
  const [x1, y1] = border(from, middle);
  const [x2, y2] = border(to, middle);
  return `M${x1} ${y1}Q${middle.x} ${middle.y} ${x2} ${y2}`;
}

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

export function Graph() {
  const names = Object.keys(state.graphs);
  const view = lastRun();
  const active = view?.agent || state.stored?.agent || (state.id === null ? state.agent : null);
  const start = names.find((name) => name === state.graphRoot) || names.find((name) => state.graphs[name].agents.some((node) => node.name === active)) || names[0];
  const graph = state.graphs[start];
  if (!graph) return html`<p class="empty">No agents.</p>`;
  const { boxes, height } = layout(graph);
  const running = new Set((view?.isRunning ? view.turns.flatMap((turn) => turn.calls) : []).filter((call) => call.state === "running").map((call) => call.name));
  const taken = new Set((view?.turns || []).flatMap((turn) => (turn.handoff ? [`${turn.handoff.source}>${turn.handoff.target}`] : [])));
  const name = (id) => boxes.get(id)?.node.name ?? "an agent that only a call shows";
  const pairs = new Map();
  graph.handoffs.forEach((each) => {
    const key = `${each.source}>${each.target}`;
    const known = pairs.get(key);
    pairs.set(key, known ? { ...known, certain: known.certain || each.certain, functions: [...known.functions, each.function] } : { ...each, functions: [each.function] });
  });
  return html`${names.length > 1 && html`<label class="scope">Begins with <select onChange=${(event) => update({ graphRoot: event.target.value })}>
      ${names.map((each) => html`<option selected=${each === start}>${each}</option>`)}</select></label>`}
    <svg class="graph" viewBox=${`0 0 ${WIDTH} ${height}`} role="img" aria-label=${`${boxes.size} agents. ${active ? `${active} is active.` : ""}`}>
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerUnits="userSpaceOnUse" markerWidth="8" markerHeight="8" orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" /></marker></defs>
      ${[...pairs.values()].filter((each) => each.target && boxes.has(each.target) && each.source !== each.target).map((each) => html`<path
        class=${`edge ${each.certain ? "" : "maybe"} ${taken.has(`${name(each.source)}>${name(each.target)}`) ? "taken" : ""}`} marker-end="url(#tip)"
        d=${path(boxes.get(each.source), boxes.get(each.target), pairs.has(`${each.target}>${each.source}`))}><title>${each.functions.join(", ")}</title></path>`)}
      ${[...boxes.values()].map(({ node, x, y, width, height: tall }) => html`<g class=${`node hue-${hue(node.name)} ${node.name === active ? "active" : ""} ${node.name === active && view?.isRunning ? "working" : ""}`}>
        <rect x=${x} y=${y} width=${width} height=${tall} rx="10" />
        <text class="title" x=${x + 12} y=${y + 20}>${short(node.label, width > 170 ? 22 : 18)}</text>
        <text class="model" x=${x + 12} y=${y + 35}>${short(node.model || "", width > 170 ? 26 : 21)}</text>
        ${node.functions.slice(0, 6).map((each, at) => html`<text class=${`function ${running.has(each) && node.name === active ? "running" : ""}`} x=${x + 12} y=${y + 52 + at * LINE}>
          ${at === 5 && node.functions.length > 6 ? `and ${node.functions.length - 5} more` : short(each, width > 170 ? 24 : 20)}</text>`)}</g>`)}
    </svg>
    <details class="tool"><summary>Handoffs (${graph.handoffs.length})</summary><ul class="plain">${graph.handoffs.map((each) => html`<li><b>${name(each.source)}</b> to <b>${name(each.target)}</b>
      by <code>${each.function}</code>${each.certain ? "" : " (maybe)"}</li>`)}</ul></details>`;
}
