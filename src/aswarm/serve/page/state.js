// The state and the actions of the page.

import { ApiError, follow, get, noteTime, pause, post, randomId, serverNow, token } from "./api.js";
import { RunView, historyView, textOf } from "./fold.js";
import { duration, isObject, parsed, tried } from "./text.js";

const saved = (name, fallback) => parsed(localStorage.getItem(`aswarm.${name}`)) ?? fallback;
const save = (name, value) => localStorage.setItem(`aswarm.${name}`, JSON.stringify(value));

const LIVE = 2500; // milliseconds: older entries are not announced
const LOGS = 30; // older runs of a conversation are drawn from its messages

export const state = {
	theme: saved("theme", "auto"),
	titles: {},
	forks: saved("forks", {}),
	agents: [], graphs: {}, models: [], questions: [],
	conversations: [], runs: [], search: "",
	id: null, // of the conversation; null for a new one
	only: null, // the id of a run that has no conversation
	stored: null, // the conversation as the service has it
	views: new Map(), // the runs of the conversation by id, in order
	selected: null, // the run that the panels show
	panel: saved("panel", "timeline"),
	place: "chat", // on narrow screens: chats, chat or panels
	connection: "live", notice: null, dialog: null, agent: null, model: "", edit: null, draft: "", files: [], sending: false, stopping: null, decisions: {},
	isLoading: false, needsToken: false, spoken: "", jump: 0,
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
const announce = (text) => update({ spoken: text });
export const runsInOrder = () => [...state.views.values()];
export const lastRun = () => runsInOrder().at(-1);
export const activeRun = () => runsInOrder().find((view) => view.isRunning);
export const shownRun = () => state.views.get(state.selected) || lastRun();

export function setTheme(theme) {
	save("theme", theme);
	document.documentElement.dataset.theme = theme;
	update({ theme });
}

// The panels are elsewhere on narrow screens.
export const inspect = (changes) => update({ ...changes, place: matchMedia("(max-width: 1080px)").matches ? "panels" : state.place });

export function setPanel(panel) {
	save("panel", panel);
	inspect({ panel });
}

const notify = (text, kind = "bad") => update({ notice: { text, kind } });

function failed(error) {
	if (error instanceof ApiError && error.status === 401) update({ needsToken: true, dialog: { kind: "token" } });
	else notify(error instanceof ApiError ? error.message : "The service cannot be reached. Is it running?");
}

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

// Show the run or conversation in the address.
export async function open() {
	opened.abort();
	opened = new AbortController();
	const [, kind, encoded] = /^#\/([cr])\/(.+)$/.exec(location.hash) || [];
	const name = encoded ? (tried(() => decodeURIComponent(encoded)) ?? encoded) : null;
	const isRun = kind === "r";
	update({
		id: isRun ? null : name, only: isRun ? name : null, stored: null, views: new Map(), selected: null, notice: null, decisions: {}, edit: null,
		dialog: null, stopping: null, isLoading: name !== null, place: "chat", connection: "live",
	});
	if (name === null) return update({ agent: state.agent || state.agents[0] });
	try {
		await (isRun ? openRun(name) : openConversation(name));
	} catch (error) {
		if (error.name === "AbortError") return;
		update({ isLoading: false, id: null, only: null });
		failed(error);
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
	const [stored, listed] = await Promise.all([get(chat(id)), get(`runs?conversation=${inPath(id)}`)]);
	if (signal.aborted) return;
	update({ stored, isLoading: false });
	listed.runs.slice(0, LOGS).reverse().forEach((record) => attach(record.id));
}

async function reload() {
	const { id } = state;
	if (id === null) return;
	const stored = await get(chat(id)).catch(() => null);
	if (stored && id === state.id) update({ stored });
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
		if (serverNow() - entry.at < LIVE) announceEntry(view, entry);
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

// Update the open calls of earlier runs.
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

// For screen readers: events of a running run, not each word.
const SPOKEN = {
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

function announceEntry(view, entry) {
	const text = SPOKEN[entry.type]?.(entry, view);
	if (text) announce(text);
}

// Start a run. Return whether it was accepted.
async function start(body, id = state.id) {
	const isNew = id === null;
	const name = isNew ? randomId() : id;
	const { edit } = state;
	update({ sending: true, notice: null });
	try {
		const { run } = await post(`${chat(name)}/runs`, withModel(edit ? { ...body, context: edit } : body));
		if (isNew) {
			history.pushState(null, "", href(name));
			update({ id: name });
			state.titles[name] = textOf(body.text || body.content).slice(0, 80);
		}
		update({ selected: null, edit: null, jump: state.jump + 1 });
		attach(run);
		refresh();
		return true;
	} catch (error) {
		if (error.code === "run_active" && error.run) {
			attach(error.run);
			notify("Another run of this conversation is active. Send again when it has finished.", "warn");
		} else {
			if (edit && error.code === "conflict") update({ edit: null }), reload();
			failed(error);
		}
		return false;
	} finally {
		update({ sending: false });
	}
}

// The body of a message with text, files, or both.
const bodyOf = (text, files) => (files.length ? { content: [...(text ? [{ type: "text", text }] : []), ...files] } : { text });

const withModel = (body) => (state.model.trim() ? { ...body, model: state.model.trim() } : body);

const isInexact = (value) => (Object(value) === value ? Object.values(value).some(isInexact) : typeof value === "number" && Math.abs(value) >= 2 ** 53);

// Keep a change of the context for the next run. Return the fault of the text. `stored`: the conversation that the user has seen.
export function editContext(text, stored) {
	const value = parsed(text);
	if (!isObject(value)) return "The context must be a JSON object.";
	const { revision = "", context_variables: before = {} } = stored || {};
	const [now, old] = [value, before].map((each) => new Map(Object.entries(each).map(([key, item]) => [key, JSON.stringify(item)])));
	const set = Object.fromEntries(Object.entries(value).filter(([key]) => now.get(key) !== old.get(key)));
	const remove = [...old.keys()].filter((key) => !now.has(key));
	if (isInexact(set)) return "A browser cannot keep such a large number exactly.";
	update({ edit: remove.length || Object.keys(set).length ? { set, remove, revision } : null, dialog: null });
	if (state.edit) announce(nextChange());
}

export const nextChange = () => `Your next message or decision changes the context: ${[...Object.keys(state.edit.set), ...state.edit.remove].join(", ")}.`;

export const say = (text, files = []) => start({ ...bodyOf(text, files), ...(state.id === null && state.agent ? { agent: state.agent } : {}) });

// The calls of this conversation that wait for a decision: `{call, run?}` with public ids.
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
	const answers = openCalls().map(({ call, run }) => ({ call, run: run ?? null, ...state.decisions[call] }));
	if (await start({ answers })) update({ decisions: {} });
}

export function addFiles(files) {
	for (const file of files) {
		const reader = new FileReader();
		reader.onload = () => {
			const url = reader.result;
			const part = file.type.startsWith("image/") ? { type: "image_url", image_url: { url } } : { type: "file", file: { filename: file.name, file_data: url } };
			update({ files: [...state.files, part] });
		};
		reader.readAsDataURL(file);
	}
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

// Fork the first `keep` messages, and send `text`.
export const fork = (keep, text = null, files = []) => fromDialog(async () => {
	const { id: from, edit } = state;
	const { conversation: id } = await post(`${chat(from)}/fork`, { after: keep });
	state.forks[id] = { from, keep };
	save("forks", Object.fromEntries(Object.entries(state.forks).slice(-300)));
	if (text !== null) {
		const context = edit && { ...edit, revision: (await get(chat(id))).revision };
		await post(`${chat(id)}/runs`, withModel({ ...bodyOf(text, files), ...(context && { context }) }));
	}
	go(id);
	announce("The fork is open.");
});

export const remove = (id) => fromDialog(async () => {
	await post(chat(id), {}, "DELETE");
	if (id === state.id) go(null);
});

export const rename = (id, title) => fromDialog(() => post(chat(id), { title }, "PATCH"));

async function fromDialog(act) {
	try {
		await act();
		refresh();
	} catch (error) {
		failed(error);
	}
	update({ dialog: null });
}

// What a fork reuses, and what it leaves out.
export function forkFacts(keep) {
	const calls = (messages) => historyView(messages, 0).flatMap((block) => block.turn?.calls || []).filter((call) => call.content !== undefined);
	const messages = state.stored?.messages || [];
	const all = calls(messages);
	const reused = calls(messages.slice(0, keep));
	return { reused, left: all.slice(reused.length), messages: Math.max(0, messages.length - keep) };
}

export async function refresh() {
	const { search } = state;
	try {
		const [{ conversations }, { runs }] = await Promise.all([get(`conversations?limit=200&search=${inPath(search)}`), get("runs")]);
		if (search !== state.search) return;
		conversations.forEach((each) => (state.titles[each.id] = each.title));
		update({ conversations, runs });
		const last = lastRun() ? lastRun().started ?? Infinity : 0;
		const missing = runs.filter((run) => run.conversation === state.id && run.started > last && !state.views.has(run.id));
		if (state.stored) missing.reverse().forEach((run) => attach(run.id));
	} catch (error) {
		if (error instanceof ApiError) failed(error);
	}
}

let lastRuns = "";
let failures = 0;
async function poll() {
	if (state.needsToken) return;
	try {
		const { runs } = await get("runs");
		failures = 0;
		if (!activeRun() && state.connection !== "live") update({ connection: "live" });
		const now = runs.map((run) => run.id + run.status).join();
		if (now === lastRuns) return;
		lastRuns = now;
		await refresh();
	} catch (error) {
		if (error instanceof ApiError) return;
		failures++;
		update({ connection: "reconnecting" });
	}
}

// Failed polls slow down: browsers log each failure.
async function watch() {
	for (;;) {
		await pause((document.hidden ? 8000 : 1500) * 2 ** Math.min(failures, 5));
		await poll();
	}
}

export async function init() {
	setTheme(state.theme);
	addEventListener("hashchange", open);
	watch();
	await connect();
}

async function connect() {
	try {
		const graph = await get("graph");
		update({ ...graph, agent: graph.agents[0], needsToken: false });
		await Promise.all([refresh(), open()]);
	} catch (error) {
		failed(error);
	}
}

export const useToken = (value) => (token.set(value), update({ dialog: null }), connect());

// The class of an agent's colour.
export function hue(agent) {
	const names = [...new Set(Object.values(state.graphs).flatMap((graph) => graph.agents.map((node) => node.name)))];
	const at = names.indexOf(agent);
	return `hue-${at < 0 ? "none" : at % 8}`;
}

