// The agents and their handoffs, in rows by their distance from the first agent.

import { hue, lastRun, state } from "./state.js";
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
	const levels = [];
	for (const node of graph.agents) (levels[depth.get(node.id) ?? 0] ||= []).push(node);
	// At most two nodes side by side, so that names are readable.
	return levels.flatMap((row) => Array.from({ length: Math.ceil(row.length / 2) }, (_, at) => row.slice(at * 2, at * 2 + 2)));
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

// Beside the middle of a box, so that the arrow back is next to it.
function path(from, to) {
	const down = from.y < to.y;
	const [side, level] = [from.x < to.x || down ? -14 : 14, from.y === to.y];
	const x1 = from.x + from.width / 2 + side;
	const x2 = to.x + to.width / 2 + side;
	const y1 = down || level ? from.y + from.height + 3 : from.y - 3;
	const y2 = down ? to.y - 3 : to.y + to.height + 3;
	const bend = (y) => (level ? y + 34 : (y1 + y2) / 2);
	return `M${x1} ${y1}C${x1} ${bend(y1)} ${x2} ${bend(y2)} ${x2} ${y2}`;
}

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

export function Graph() {
	const names = Object.keys(state.graphs);
	const view = lastRun();
	const active = view?.agent || state.stored?.agent || (state.id === null ? state.agent : null);
	const start = names.find((name) => state.graphs[name].agents.some((node) => node.name === active)) || names[0];
	const graph = state.graphs[start];
	if (!graph) return html`<p class=empty>No agents.</p>`;
	const { boxes, height } = layout(graph);
	const running = new Set((view?.isRunning ? view.turns.flatMap((turn) => turn.calls) : []).filter((call) => call.state === "running").map((call) => call.name));
	const taken = new Set((view?.turns || []).flatMap((turn) => (turn.handoff ? [`${turn.handoff.source}>${turn.handoff.target}`] : [])));
	const name = (id) => boxes.get(id)?.node.name ?? "an agent known only at a call";
	const pairs = new Map();
	graph.handoffs.forEach((each) => {
		const key = `${each.source}>${each.target}`;
		const { certain, functions } = pairs.get(key) || { functions: [] };
		pairs.set(key, { ...each, certain: certain || each.certain, functions: [...functions, each.function] });
	});
	return html`<svg class=graph viewBox=${`0 0 ${WIDTH} ${height}`} role=img aria-label=${`${boxes.size} agents. ${active ? `${active} is active.` : ""}`}>
			<defs><marker id=tip viewBox="0 0 8 8" refX="7" refY="4" markerUnits="userSpaceOnUse" markerWidth="8" markerHeight="8" orient=auto-start-reverse><path d="M0 0 8 4 0 8z" /><//><//>
			${[...pairs.values()].filter((each) => each.target && boxes.has(each.target) && each.source !== each.target).map((each) => html`<path
				class=${`edge ${each.certain ? "" : "maybe"} ${taken.has(`${name(each.source)}>${name(each.target)}`) ? "taken" : ""}`} marker-end="url(#tip)"
				d=${path(boxes.get(each.source), boxes.get(each.target))}><title>${each.functions.join(", ")}<//><//>`)}
			${[...boxes.values()].map(({ node, x, y, width, height: tall }) => html`<g transform=${`translate(${x} ${y})`} class=${`node ${hue(node.name)} ${node.name === active ? `active ${view?.isRunning ? "working" : ""}` : ""}`}>
				<rect width=${width} height=${tall} rx=10 />
				<text class=title x=12 y=20>${short(node.label, width > 170 ? 22 : 18)}<//>
				<text class=model x=12 y=35>${short(node.model || "", width > 170 ? 26 : 21)}<//>
				${node.functions.slice(0, 6).map((each, at) => html`<text class=${`function ${running.has(each) && node.name === active ? "running" : ""}`} x=12 y=${52 + at * LINE}>
					${at === 5 && node.functions.length > 6 ? `and ${node.functions.length - 5} more` : short(each, width > 170 ? 24 : 20)}<//>`)}</g>`)}
		<//>
		<details class=tool><summary>Handoffs (${graph.handoffs.length})<//><ul class=plain>${graph.handoffs.map((each) => html`<li><b>${name(each.source)}</b> to <b>${name(each.target)}</b>
			by <code>${each.function}<//>${each.certain ? "" : " (maybe)"}<//>`)}<//><//>`;
}
