// The panels beside the conversation.

import { serverNow } from "./api.js";
import { Handoff } from "./chat.js";
import { endOf, Pill, STATES, time } from "./calls.js";
import { Content, difference, count, duration, Json, plural } from "./text.js";
import { textOf } from "./fold.js";
import { activeRun, dialog, hue, lastRun, runsInOrder, setPanel, shownRun, state, update } from "./state.js";
import { html, useState } from "./vendor/htm-preact.js";

export const PANELS = { timeline: "Timeline", context: "Context", requests: "Requests", tokens: "Tokens", graph: "Agents", messages: "History" };

const sum = (list, of) => list.reduce((all, each) => all + of(each), 0);
const Empty = ({ children }) => html`<p class=empty>${children}</p>`;
const Rows = ({ rows }) => html`<dl class=facts>${rows.map(([name, value]) => html`<div><dt>${name}<//><dd class=mono>${value}<//><//>`)}<//>`;

function show(selector) {
	update({ place: "chat" });
	requestAnimationFrame(() => {
		const target = document.querySelector(selector);
		target?.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
		target?.focus?.({ preventScroll: true });
	});
}

const showCall = (call) => show(`[data-call="${CSS.escape(call.id)}"]`);

function Timeline() {
	const view = shownRun();
	if (!view?.started) return html`<${Empty}>Turns, calls and handoffs over time.<//>`;
	const stop = Math.max(view.ended ?? serverNow(), view.started + 1);
	const whole = stop - view.started;
	const place = (from, to) => ({ left: `${((from - view.started) / whole) * 100}%`, width: `${Math.max(((to - from) / whole) * 100, 0.6)}%` });
	const ticks = [0, 0.25, 0.5, 0.75, 1];
	return html`<div class=timeline>
		<div class=axis aria-hidden=true>${ticks.map((at) => html`<span style=${{ left: `${at * 100}%` }}>${at ? duration(whole * at) : "0"}<//>`)}<//>
		<ol>${view.turns.map((turn) => html`<${TimelineTurn} turn=${turn} place=${place} view=${view} />`)}<//>
		<p class=sum>${view.isRunning ? "Running for" : "Took"} ${duration(whole)} · ${plural(view.turns.filter((turn) => turn.number).length, "turn")} · ${plural(
			sum(view.turns, (turn) => turn.calls.length), "call")}</p>
	<//>`;
}

function TimelineTurn({ turn, place, view }) {
	const until = turn.doneAt ?? view.ended ?? serverNow();
	const first = turn.firstAt ? turn.firstAt - turn.at : null;
	const go = () => show(`[data-turn="${turn.run}-${turn.number}"]`);
	return html`<li class=${hue(turn.agent)}>
		${!turn.resumed && html`<button class=bar-row onClick=${go} title=${first === null ? "" : `first token after ${duration(first)}`}>
			<span class=name><b>${turn.agent}</b> <i>turn ${turn.number}</i><//><span class=time>${duration(until - turn.at)}<//>
			<span class=lane aria-hidden=true><i class="bar model" style=${place(turn.at, until)}></i>
				${first !== null && html`<i class=tick style=${{ left: place(turn.firstAt, turn.firstAt).left }}></i>`}<//><//>`}
		${turn.calls.map((call) => html`<button class=${`bar-row call-row is-${call.state}`} onClick=${() => showCall(call)}>
			<span class=name>${call.name}${call.state !== "done" ? html` <i>${STATES[call.state]}</i>` : ""}<//>
			<span class=time>${time(call)}<//>
			<span class=lane aria-hidden=true>${call.started && html`<i class="bar act" style=${place(call.started, endOf(call, view.ended ?? call.started))}></i>`}<//>
		<//>`)}
	<//>
		${turn.handoff && html`<li><${Handoff} ...${turn.handoff} /><//>`}`;
}

function Difference({ row: { key, before, after } }) {
	const lines = difference(...[before, after].map((value) => JSON.stringify(value, null, 2)?.split("\n") ?? []));
	return html`<div class=diff><b>${key}</b>${before === undefined && html` <i>new</i>`}${after === undefined && html` <i>removed</i>`}
		<pre tabindex=0>${lines.map(([mark, line]) => html`<span class=${{ "+": "plus", "-": "minus" }[mark]}>${`${mark} ${line}\n`}<//>`)}<//><//>`;
}

// The change of an operator before a run.
function edits({ edited, first }, before) {
	const rows = edited.map((key) => ({ key, before: before[key], after: first[key] }));
	return rows.length ? [{ agent: "Operator", when: "before the run", by: [], rows }] : [];
}

function Context() {
	const view = shownRun();
	const now = view?.status === "loading" || !view ? state.stored?.context_variables : view.context;
	const changes = runsInOrder().flatMap((run, at, all) => [...edits(run, all[at - 1]?.context || {}), ...run.changes]);
	const edit = state.context_edits && html`<button class=edit disabled=${Boolean(activeRun()) || (state.id !== null && !state.stored)} onClick=${() => dialog("context")}>Edit the context<//>`;
	if (!now || (!Object.keys(now).length && !changes.length))
		return html`<${Empty}>No context variables yet. Each change by a tool is shown here.<//>${edit}`;
	return html`<h2 class=label>Now<//>
		${Object.keys(now).length ? html`<${Json} value=${now} />` : html`<p class=dim>No variable is set.</p>`}
		${edit}
		<h2 class=label>Changes<//>
		${changes.length === 0 && html`<p class=dim>None in these runs.</p>`}
		${[...changes].reverse().map((change) => html`<section class=${`change ${hue(change.agent)}`}>
			<header><${Pill} name=${change.agent} /> <span>${change.when ?? (change.turn ? `turn ${change.turn}` : "resumed")}<//><span class=grow><//>
				${change.by.length ? change.by.map((call) => html`<button class="link mono" onClick=${() => showCall(call)}>${call.name}<//>`) : !change.when && html`<span class=dim>by the run<//>`}<//>
			${change.rows.map((row) => html`<${Difference} row=${row} />`)}<//>`)}`;
}

function Tool({ tool }) {
	const made = tool.function || tool.custom || tool;
	const properties = made.parameters?.properties || {};
	const required = made.parameters?.required || [];
	return html`<details class=tool><summary><code>${made.name || tool.type}<//>
			<span>${Object.keys(properties).map((name) => (required.includes(name) ? name : `${name}?`)).join(", ")}<//><//>
		${made.description && html`<p>${made.description}</p>`}<${Json} value=${made.parameters ?? made} /><//>`;
}

function Requests() {
	const view = shownRun();
	const sent = (view?.turns || []).flatMap((turn) => turn.requests.map((request) => ({ request, turn })));
	const [chosen, choose] = useState(null);
	if (!sent.length)
		return html`<${Empty}>${view && view.turns.length ? "The service hides requests." : "Each request to a model: instructions, settings, tools."}<//>`;
	const at = sent.findIndex(({ request }) => request.seq === chosen);
	const { request, turn } = sent[at < 0 ? sent.length - 1 : at];
	return html`<div class=picker role=group aria-label=Request>${sent.map((each) => html`<button aria-pressed=${each.request === request} class=${hue(each.turn.agent)}
			onClick=${() => choose(each.request.seq)}>${each.turn.agent} <i>${each.turn.number}</i><//>`)}<//>
		<${Rows} rows=${[["Model", request.model],
			["Messages", `${plural(request.message_count ?? 0, "message")}${request.message_count < turn.start ? ` of ${turn.start} in the history` : ""}`],
			...Object.entries(request.settings).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)])]} />
		<h2 class=label>Instructions<//>
		${request.instructions ? html`<div class=instructions tabindex=0>${textOf(request.instructions)}<//>` : html`<p class=dim>None.</p>`}
		<h2 class=label>Tools (${request.tools.length})<//>
		${request.tools.map((tool) => html`<${Tool} tool=${tool} />`)}`;
}

// The cost in dollars; NaN without a price of the model.
function costOf({ turn, usage }) {
	const node = Object.values(state.graphs).flatMap((graph) => graph.agents).find((each) => each.name === turn.agent);
	const table = state.prices?.[turn.requests.at(-1)?.model ?? state.views.get(turn.run)?.model ?? node?.model] || [];
	const rates = table.findLast((each) => usage.prompt_tokens > each.above) || table[0] || {};
	const parts = usage.details?.prompt_tokens_details || {};
	const cached = Math.min(parts.cached_tokens || 0, usage.prompt_tokens);
	const written = Math.min(parts.cache_write_tokens || parts.cache_creation_tokens || 0, usage.prompt_tokens - cached);
	return rates.requests + (usage.prompt_tokens - cached - written) * rates.input_tokens + cached * rates.cache_read_tokens
		+ written * rates.cache_write_tokens + usage.completion_tokens * rates.output_tokens;
}

const dollars = (cost) => `$${cost.toFixed(cost < 1 ? 4 : 2)}`;
const missText = ({ kind, where, lost_tokens: lost }) => `${count(lost)} tokens again, ${kind}${where ? `: ${where}` : ""}`;

function Tokens() {
	const turns = runsInOrder().flatMap((view) => view.turns).filter((turn) => turn.usage);
	if (!turns.length) return html`<${Empty}>The tokens of turns and agents, after the first answer.<//>`;
	const rows = turns.map((turn) => ({ agent: turn.agent, number: turn.number, turn, usage: turn.usage }));
	const total = (list) => ({
		input: sum(list, (row) => row.usage.prompt_tokens),
		cached: sum(list, (row) => row.usage.details?.prompt_tokens_details?.cached_tokens || 0),
		output: sum(list, (row) => row.usage.completion_tokens),
		cost: sum(list, costOf),
	});
	const agents = [...new Set(rows.map((row) => row.agent))];
	const all = total(rows);
	const missed = rows.filter((row) => row.turn.cacheMiss);
	const most = Math.max(...rows.map((row) => row.usage.total_tokens), 1);
	return html`<${Rows} rows=${[["Tokens", count(all.input + all.output)], ["Input cached", `${all.input ? Math.round((all.cached / all.input) * 100) : 0} %`],
		...(all.cost >= 0 ? [["Cost", dollars(all.cost)]] : [])]} />
		<h2 class=label>By agent<//>
		<${Rows} rows=${agents.map((agent) => {
			const { input, cached, output, cost } = total(rows.filter((row) => row.agent === agent));
			return [html`<b class=${hue(agent)}>${agent}<//>`, `${count(input)} in, ${count(cached)} cached, ${count(output)} out${cost >= 0 ? `, ${dollars(cost)}` : ""}`];
		})} />
		${missed.length > 0 && html`<h2 class=label>Cache misses<//><${Rows} rows=${missed.map((row) => [
			html`<b class=${hue(row.agent)}>${row.agent} <i>turn ${row.number}</i><//>`, missText(row.turn.cacheMiss)])} />`}
		<h2 class=label>By turn<//>
		<ol>${rows.map((row) => html`<li class=${`bar-row ${hue(row.agent)}`}><span class=name>${row.agent} <i>turn ${row.number}</i><//>
			<span class=time>${count(row.usage.total_tokens)}<//>
			<span class=lane aria-hidden=true><i class="bar model" style=${{ left: 0, width: `${(row.usage.prompt_tokens / most) * 100}%` }}></i>
			<i class="bar out" style=${{ left: `${(row.usage.prompt_tokens / most) * 100}%`, width: `${(row.usage.completion_tokens / most) * 100}%` }}></i><//><//>`)}<//>
		<p class=sum>The second part of a bar is output.</p>`;
}

const [WIDTH, HEIGHT, GAP] = [160, 46, 58];

// In rows by their distance from the first agent.
function layout({ agents, handoffs }) {
	const depth = new Map([[agents[0].id, 0]]);
	for (const [id, level] of depth) // and over those that are added meanwhile
		for (const { source, target } of handoffs) if (source === id && target && !depth.has(target)) depth.set(target, level + 1);
	const levels = [];
	for (const node of agents) (levels[depth.get(node.id) ?? 0] ||= []).push(node);
	// At most two nodes side by side, so that names are readable.
	const rows = levels.flatMap((row) => Array.from({ length: Math.ceil(row.length / 2) }, (_, at) => row.slice(at * 2, at * 2 + 2)));
	const boxes = new Map();
	rows.forEach((row, line) => row.forEach((node, at) => boxes.set(node.id, { node, x: row[1] ? 10 + 180 * at : 100, y: 12 + line * (HEIGHT + GAP) })));
	return { boxes, height: rows.length * (HEIGHT + GAP) - 10 };
}

// Beside the middle of a box, so that the arrow back is next to it.
function path(from, to) {
	const [down, level] = [from.y < to.y, from.y === to.y];
	const [x1, x2] = [from, to].map(({ x }) => x + WIDTH / 2 + (from.x < to.x || down ? -14 : 14));
	const y1 = down || level ? from.y + HEIGHT + 3 : from.y - 3;
	const y2 = down ? to.y - 3 : to.y + HEIGHT + 3;
	const bend = (y) => (level ? y + 34 : (y1 + y2) / 2);
	return `M${x1} ${y1}C${x1} ${bend(y1)} ${x2} ${bend(y2)} ${x2} ${y2}`;
}

const short = (text) => (text.length > 18 ? `${text.slice(0, 17)}…` : text);

function Agent({ node, handoffs }) {
	return html`<details class=tool><summary><b class=${hue(node.name)}>${node.label}</b> <span>${node.model}<//><//>
		<${Rows} rows=${[...Object.entries(node.settings || {}),
			["functions", node.functions.join(", ") || "none"],
			...handoffs.map((each) => [each.function, `hands off to ${each.to}${each.certain ? "" : " (maybe)"}`]),
		]} /><//>`;
}

function Agents() {
	const names = Object.keys(state.graphs);
	const view = lastRun();
	const active = view?.agent || state.stored?.agent || (state.id === null ? state.agent : null);
	const graph = state.graphs[names.find((name) => state.graphs[name].agents.some((node) => node.name === active)) || names[0]];
	if (!graph) return html`<${Empty}>No agents.<//>`;
	const { boxes, height } = layout(graph);
	const taken = new Set((view?.turns || []).map(({ handoff }) => handoff && `${handoff.source}>${handoff.target}`));
	const name = (id) => boxes.get(id)?.node.name ?? "an agent known only at a call";
	const of = ({ id }) => graph.handoffs.filter((each) => each.source === id).map((each) => ({ ...each, to: name(each.target) }));
	return html`<svg class=graph viewBox=${`0 0 360 ${height}`} role=img aria-label=${`${boxes.size} agents. ${active ? `${active} is active.` : ""}`}>
			<defs><marker id=tip viewBox="0 0 8 8" refX="7" refY="4" markerUnits="userSpaceOnUse" markerWidth="8" markerHeight="8" orient=auto-start-reverse><path d="M0 0 8 4 0 8z" /><//><//>
			${graph.handoffs.filter(({ source, target }) => boxes.has(target) && source !== target).map(({ source, target, certain, function: by }) => html`<path
				class=${`edge ${certain ? "" : "maybe"} ${taken.has(`${name(source)}>${name(target)}`) ? "taken" : ""}`} marker-end="url(#tip)"
				d=${path(boxes.get(source), boxes.get(target))}><title>${by}<//><//>`)}
			${[...boxes.values()].map(({ node, x, y }) => html`<g transform=${`translate(${x} ${y})`} class=${`node ${hue(node.name)} ${node.name === active ? `active ${view?.isRunning ? "working" : ""}` : ""}`}>
				<rect width=${WIDTH} height=${HEIGHT} rx=10 /><text class=title x=12 y=20>${short(node.label)}<//><text class=model x=12 y=36>${short(node.model || "")}<//><//>`)}
		<//>
		${graph.agents.map((node) => html`<${Agent} node=${node} handoffs=${of(node)} />`)}`;
}

function Messages() {
	const messages = state.stored?.messages || [];
	if (!messages.length) return html`<${Empty}>The history in the service. You can fork it after any message.<//>`;
	const busy = Boolean(activeRun());
	return html`<ol class=messages>${messages.map((message, at) => html`<li class=${`role-${message.role}`}>
		<header><b>${message.role}</b><span class=dim>${message.sender || message.tool_name || ""}<//><span class=grow><//><span class=dim>${at + 1}<//>
			<button disabled=${busy} aria-label=${`Fork after message ${at + 1}`} onClick=${() => dialog("fork", { keep: at + 1 })}>Fork<//><//>
		<${Content} content=${message.content} label=${`Message ${at + 1}`} />
		${(message.tool_calls || []).map((call) => html`<p class="mono callline">${call.function?.name}(${call.function?.arguments})</p>`)}<//>`)}<//>`;
}

const DRAWN = { timeline: Timeline, context: Context, requests: Requests, tokens: Tokens, graph: Agents, messages: Messages };

export function Panels() {
	const names = Object.keys(PANELS);
	const Panel = DRAWN[state.panel] || Timeline;
	const keys = (event) => {
		const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
		if (!step) return;
		const next = names[(names.indexOf(state.panel) + step + names.length) % names.length];
		setPanel(next);
		requestAnimationFrame(() => document.getElementById(`tab-${next}`)?.focus());
	};
	const runs = runsInOrder().filter((view) => view.started);
	const scoped = ["timeline", "requests"].includes(state.panel) && runs.length > 1;
	return html`<aside class=panels aria-label=Inspector>
		<div class=tabs role=tablist aria-label=Panels onKeyDown=${keys}>${names.map((name) => html`<button role=tab id=${`tab-${name}`} aria-selected=${state.panel === name}
			aria-controls=panel tabindex=${state.panel === name ? 0 : -1} onClick=${() => setPanel(name)}>${PANELS[name]}<//>`)}<//>
		<div class=panel id=panel role=tabpanel aria-labelledby=${`tab-${state.panel}`} tabindex=0>
			${scoped && html`<label class=scope>Run <select onChange=${(event) => update({ selected: event.target.value })}>
				${runs.map((view, at) => html`<option value=${view.id} selected=${view === shownRun()}>${at + 1}: ${(textOf(view.asked.find((each) => each.role === "user")?.content) || "decisions").slice(0, 40)}<//>`)}<//><//>`}
			<${Panel} />
		<//><//>`;
}
