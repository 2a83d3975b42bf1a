// What the page knows and what it does. Components draw `state`, and call the functions here.

import { ApiError, follow, get, noteTime, post, randomId, serverNow, token } from "./api.js";
import { RunView, historyView, textOf } from "./fold.js";
import { duration } from "./text.js";

const saved = (name, fallback) => {
	try {
		return JSON.parse(localStorage.getItem(`aswarm.${name}`)) ?? fallback;
	} catch {
		return fallback;
	}
};
const save = (name, value) => localStorage.setItem(`aswarm.${name}`, JSON.stringify(value));

const saveLast = (name) => save(name, Object.fromEntries(Object.entries(state[name]).slice(-300)));

const LIVE = 2500; // milliseconds: what is older was there when the page came, and is not said
const LOGS = 30; // older runs of a conversation are drawn from its messages

export const state = {
	theme: saved("theme", "auto"),
	titles: saved("titles", {}),
	forks: saved("forks", {}),
	agents: [], graphs: {}, prices: {},
	conversations: [], runs: [],
	id: null, // of the conversation; null for a new one
	only: null, // the id of a run that has no conversation
	stored: null, // the conversation as the service has it
	views: new Map(), // the runs of the conversation by id, in order
	selected: null, // the run that the panels show
	panel: saved("panel", "timeline"),
	place: "chat", // on narrow screens: chats, chat or panels
	connection: "live", notice: null, dialog: null, agent: null, draft: "", sending: false, stopping: null, decisions: {},
	isLoading: false, needsToken: false, said: "", jump: 0,
};

let draw = () => {};
let isDue = false;
export const onDraw = (function_) => (draw = function_);

export function update(changes = {}) {
	Object.assign(state, changes);
	if (isDue) return;
	isDue = true;
	const now = () => ((isDue = false), draw());
	document.hidden ? setTimeout(now, 100) : requestAnimationFrame(now);
}

export const dialog = (kind, more) => update({ dialog: { kind, ...more } });
const announce = (text) => update({ said: text });
export const runsInOrder = () => [...state.views.values()];
export const lastRun = () => runsInOrder().at(-1);
export const activeRun = () => runsInOrder().find((view) => view.isRunning);
export const shownRun = () => state.views.get(state.selected) || lastRun();

export function setTheme(theme) {
	save("theme", theme);
	document.documentElement.dataset.theme = theme;
	update({ theme });
}

// Show the panels, which are elsewhere on narrow screens.
export const inspect = (changes) => update({ ...changes, place: matchMedia("(max-width: 1080px)").matches ? "panels" : state.place });

export function setPanel(panel) {
	save("panel", panel);
	inspect({ panel });
}

function notify(text, kind = "bad") {
	update({ notice: text && { text, kind } });
}

function failed(error) {
	if (error instanceof ApiError && error.status === 401) update({ needsToken: true });
	else notify(error instanceof ApiError ? error.message : "The service cannot be reached. Is it running?");
}

// --- the conversation ---

const inPath = encodeURIComponent;
const chat = (id) => `conversations/${inPath(id)}`;

let opened = new AbortController();

export function href(id, run) {
	return run ? `#/r/${inPath(run)}` : id === null ? "#/" : `#/c/${inPath(id)}`;
}

export function go(id) {
	if (location.hash === href(id)) return open();
	location.hash = href(id);
}

// Show what the address says.
export async function open() {
	opened.abort();
	opened = new AbortController();
	const [, kind, encoded] = /^#\/([cr])\/(.+)$/.exec(location.hash) || [];
	const name = encoded === undefined ? null : decodeURIComponent(encoded);
	const isRun = kind === "r";
	update({
		id: isRun ? null : name, only: isRun ? name : null, stored: null, views: new Map(), selected: null, notice: null, decisions: {},
		dialog: null, stopping: null, isLoading: name !== null, place: "chat", connection: "live",
	});
	if (name === null) return update({ agent: state.agent || state.agents[0] });
	try {
		await (isRun ? openRun(name) : openConversation(name));
	} catch (error) {
		update({ isLoading: false });
		if (error.name !== "AbortError") failed(error);
	}
}

async function openRun(id) {
	const { signal } = opened;
	const record = await get(`runs/${inPath(id)}`);
	if (signal.aborted) return;
	if (record.conversation) {
		update({ id: record.conversation, only: null, selected: id });
		return openConversation(record.conversation);
	}
	update({ isLoading: false });
	attach(record.id);
}

async function openConversation(id) {
	const { signal } = opened;
	const [stored, listed] = await Promise.all([
		get(chat(id)),
		get(`runs?conversation=${inPath(id)}`),
	]);
	if (signal.aborted) return;
	keepTitle(id, stored.messages);
	update({ stored, isLoading: false });
	listed.runs.slice(0, LOGS).reverse().forEach((record) => attach(record.id));
}

function keepTitle(id, messages) {
	const first = messages.find((message) => message.role === "user");
	if (!first || state.titles[id]) return;
	state.titles[id] = textOf(first.content).slice(0, 80);
	saveLast("titles");
}

async function reload() {
	const { id } = state;
	if (id === null) return;
	const stored = await get(chat(id)).catch(() => null);
	if (stored && id === state.id) {
		keepTitle(id, stored.messages);
		update({ stored });
	}
}

function attach(id) {
	if (state.views.has(id)) return;
	const view = new RunView(id);
	const { signal } = opened;
	state.views.set(id, view);
	update();
	const onEntry = (entry) => {
		noteTime(entry.at);
		view.add(entry);
		if (entry.type === "RunStarted") settleEarlier(view);
		if (serverNow() - entry.at < LIVE) tell(view, entry);
		if (!view.isRunning && view.ended) onEnd(view);
		update();
	};
	const onState = (connection) => connection !== state.connection && update({ connection });
	follow(id, { onEntry, onState, signal }).catch((error) => {
		if (error instanceof ApiError && error.status === 404) {
			view.status = "gone"; // its log was deleted; the messages are drawn in its place
			state.views.delete(id);
			update();
		} else failed(error);
	});
}

// What a run has decided about the calls that earlier runs left open.
function settleEarlier(view) {
	const resumed = new Set((view.turns[0]?.calls || []).map((call) => call.id));
	for (const earlier of runsInOrder().slice(0, runsInOrder().indexOf(view))) {
		for (const call of earlier.turns.flatMap((turn) => turn.calls)) {
			if (["waiting", "open"].includes(call.state)) call.state = resumed.has(call.id) ? "decided" : "skipped";
		}
		earlier.version++;
	}
}

function onEnd(view) {
	if (state.stopping === view.id) state.stopping = null;
	reload();
	refresh();
	if (lastRun() === view) update({ decisions: {} });
}

// What a screen reader says of a run that goes on: what has happened, not each word of it.
const SAID = {
	HandedOff: ({ source, target }) => `${source} handed off to ${target}.`,
	ToolCallStarted: ({ name }) => `${name} is running.`,
	ToolCallFinished({ name, error, index, at }, view) {
		const { started } = view.turn.calls.find((each) => each.index === index) || {};
		return `${name} ${error ? "failed" : "answered"}${started ? ` after ${duration(at - started)}` : ""}.`;
	},
	CallWaiting: ({ name }) => `${name} waits for your decision.`,
	CompletionFinished: ({ message }, { agent }) => message.content && `${agent}: ${textOf(message.content)}`,
	RunFailed: ({ error }) => `The run failed: ${error.message || error.public_message}`,
	RunStopped: () => "The run was stopped.",
};

function tell(view, entry) {
	const text = SAID[entry.type]?.(entry, view);
	if (text) announce(text);
}

// --- what a user does ---

// Start a run of this conversation, or of a new one. Returns whether the service has taken it.
async function start(body, id = state.id) {
	const isNew = id === null;
	const name = isNew ? randomId() : id;
	update({ sending: true, notice: null });
	try {
		const { run } = await post(`${chat(name)}/runs`, body);
		if (isNew) {
			history.pushState(null, "", href(name));
			update({ id: name });
			keepTitle(name, [{ role: "user", content: body.text }]);
		}
		update({ selected: null, jump: state.jump + 1 });
		attach(run);
		refresh();
		return true;
	} catch (error) {
		if (error.code === "run_active" && error.run) {
			attach(error.run);
			notify("Another run of this conversation is active. You see it here; send again when it has ended.", "warn");
		} else failed(error);
		return false;
	} finally {
		update({ sending: false });
	}
}

export const say = (text) => start({ text, ...(state.id === null && state.agent ? { agent: state.agent } : {}) });

// The calls of this conversation that wait for a decision: `{call, run?}` by public id.
export function openCalls() {
	if (activeRun() || state.only) return [];
	const last = lastRun();
	const open = (calls, more) => calls.map((call) => ({ ...call, call: call.call_id || call.id, ...more }));
	if (last?.waiting.length) return open(last.waiting, { run: last.id });
	if (last && last.status !== "loading" && state.stored && last.end >= state.stored.messages.length) return [];
	return open(state.stored?.waiting || []);
}

export function decide(call, decision) {
	state.decisions = { ...state.decisions, [call]: decision };
	if (!decision) delete state.decisions[call];
	update();
	if (decision && openCalls().length === 1) sendDecisions();
}

export async function sendDecisions() {
	const answers = openCalls().map(({ call, run }) => ({ call, ...(run ? { run } : {}), ...state.decisions[call] }));
	if (await start({ answers })) update({ decisions: {} });
}

export const resume = () => start({ continue: true });

export async function stop() {
	const run = activeRun();
	if (!run || state.stopping) return;
	update({ stopping: run.id });
	announce("Stopping the run.");
	try {
		await post(`runs/${inPath(run.id)}/cancel`);
	} catch (error) {
		update({ stopping: null });
		failed(error);
	}
}

// Copy the first `keep` messages to a new conversation, and say `text` there, if there is one.
export const fork = (keep, text = null) => fromDialog(async () => {
	const from = state.id;
	const { conversation: id } = await post(`${chat(from)}/fork`, { after: keep });
	state.forks[id] = { from, keep };
	saveLast("forks");
	if (state.titles[from]) state.titles[id] = state.titles[from];
	update({ dialog: null });
	if (text !== null) await post(`${chat(id)}/runs`, { text });
	go(id);
	announce("This is the fork.");
	refresh();
});

export const remove = (id) => fromDialog(async () => {
	await post(chat(id), {}, "DELETE");
	update({ dialog: null });
	if (id === state.id) go(null);
	await refresh();
});

async function fromDialog(act) {
	try {
		await act();
	} catch (error) {
		update({ dialog: null });
		failed(error);
	}
}

// What the fork keeps and leaves, of the messages of this conversation.
export function forkFacts(keep) {
	const calls = (messages) => historyView(messages, 0).flatMap((block) => block.turn?.calls || []).filter((call) => call.content !== undefined);
	const messages = state.stored?.messages || [];
	const all = calls(messages);
	const reused = calls(messages.slice(0, keep));
	return { reused, left: all.slice(reused.length), messages: Math.max(0, messages.length - keep) };
}

// --- what others do ---

async function refresh() {
	try {
		const [{ conversations }, { runs }] = await Promise.all([get("conversations?limit=200"), get("runs")]);
		update({ conversations, runs });
		nameConversations();
		for (const record of runs) {
			if (record.conversation === state.id && state.id !== null && record.status === "running" && state.stored) attach(record.id);
		}
	} catch (error) {
		if (error instanceof ApiError) failed(error);
	}
}

// The first message of conversations that were begun elsewhere.
let isNaming = false;
async function nameConversations() {
	if (isNaming) return;
	isNaming = true;
	for (const { id } of state.conversations.slice(0, 25)) {
		if (state.titles[id]) continue;
		const stored = await get(chat(id)).catch(() => null);
		if (stored) keepTitle(id, stored.messages), update();
	}
	isNaming = false;
}

let known = "";
async function look() {
	if (state.needsToken) return;
	try {
		const { runs } = await get("runs");
		const now = runs.map((run) => run.id + run.status).join();
		if (now === known) return;
		known = now;
		await refresh();
		const missing = runs.filter((run) => run.conversation === state.id && !state.views.has(run.id) && run.started > (lastRun()?.started || 0));
		if (state.id !== null && state.stored) missing.reverse().forEach((run) => attach(run.id));
	} catch {
		// the readers of runs say so
	}
}

export async function begin() {
	setTheme(state.theme);
	addEventListener("hashchange", open);
	const watch = () => setTimeout(() => look().finally(watch), document.hidden ? 8000 : 1500);
	watch();
	await connect();
}

async function connect() {
	try {
		const { agents, graphs, prices } = await get("graph");
		update({ agents, graphs, prices, agent: agents[0], needsToken: false });
		await Promise.all([refresh(), open()]);
	} catch (error) {
		failed(error);
	}
}

export const useToken = (value) => (token.set(value), connect());

// --- figures ---

export function cost(model, usage) {
	const price = state.prices[model];
	if (!price || !usage) return null;
	const cached = Math.min(usage.details?.prompt_tokens_details?.cached_tokens || 0, usage.prompt_tokens);
	const fresh = usage.prompt_tokens - cached;
	return (fresh * price.input + cached * price.cached + usage.completion_tokens * price.output) / 1e6;
}

export const modelOf = (turn) => turn.requests.at(-1)?.model || nodeOf(turn.agent)?.model;
const nodeOf = (name) => Object.values(state.graphs).flatMap((graph) => graph.agents).find((node) => node.name === name);

// The class of an agent's colour.
export function hue(agent) {
	const names = [...new Set(Object.values(state.graphs).flatMap((graph) => graph.agents.map((node) => node.name)))];
	const at = names.indexOf(agent);
	return `hue-${at < 0 ? "none" : at % 8}`;
}

