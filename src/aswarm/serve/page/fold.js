// The log of a run as data to draw.

// Only data: another server would learn about the reader.
const isImage = (part) => /^data:image\//.test(part.image_url?.url);
const named = (part) => part.text || `[${part.file?.filename || part.image_url?.url || part.type}]`;
export const partsOf = (content) => (Array.isArray(content) ? content : content ? [{ type: "text", text: content }] : []);
export const imagesOf = (content) => partsOf(content).filter(isImage);
export const textOf = (content) => partsOf(content).filter((part) => !isImage(part)).map(named).join("\n");

export const ENDINGS = { RunFinished: "finished", RunFailed: "failed", RunStopped: "stopped" };
const newTurn = (fields) => ({ requests: [], reasoning: "", text: "", refusal: "", calls: [], ...fields });
const newCall = (fields) => ({ id: "", name: "", args: "", progress: [], ...fields });
const PIECES = { ReasoningDelta: "reasoning", TextDelta: "text", RefusalDelta: "refusal" };

export class RunView {
	constructor(id) {
		Object.assign(this, {
			id, version: 0, status: "loading", before: 0, asked: [], edited: [], turns: [], changes: [], context: {}, first: {}, tools: [],
			usage: null, error: null, reason: null, response: null, started: null, ended: null, agent: null, length: 0,
		});
	}

	get turn() {
		return this.turns.at(-1);
	}

	get isRunning() {
		return this.status === "running";
	}

	get waiting() {
		return this.response?.stop === "waiting" || this.response?.stop === "tool_calls" ? this.response.waiting : [];
	}

	// The number of messages in the conversation after this run.
	get end() {
		return this.before + this.asked.length + this.length;
	}

	call(entry) {
		const calls = this.turn.calls;
		let call = calls.find((each) => each.index === entry.index);
		if (!call) calls.push((call = newCall({ index: entry.index, state: "writing" })));
		if (entry.id) call.id = entry.call_id || entry.id;
		return call;
	}

	add(entry) {
		this.version++;
		const turn = this.turn;
		switch (entry.type) {
			case "RunStarted":
				this.status = "running";
				Object.assign(this, { started: entry.at, agent: entry.agent, asked: entry.messages, before: entry.before, edited: entry.edited || [], model: entry.model });
				this.first = this.context = entry.context_variables || {};
				if (entry.calls.length) {
					this.addTurn(entry, 0);
					Object.assign(this.turn, { resumed: true, done: true, decisions: entry.resume === true || Object.keys(entry.resume).length > 0 });
					this.turn.calls = entry.calls.map((each) => newCall({ ...each, id: each.call_id || each.id, args: each.arguments, state: "ready" }));
				}
				break;
			case "TurnStarted":
				this.addTurn(entry, entry.turn);
				break;
			case "RequestSent":
				if (entry.tools) this.tools = entry.tools;
				turn.requests.push({ ...entry, tools: this.tools });
				break;
			case "ToolCallDelta": {
				turn.firstAt ??= entry.at;
				const call = this.call(entry);
				call.name += entry.name || "";
				call.args += entry.arguments || "";
				break;
			}
			case "CompletionFinished":
				this.completed(entry);
				break;
			case "ToolCallStarted":
				Object.assign(this.call(entry), { name: entry.name, args: entry.arguments, state: "running", started: entry.at });
				break;
			case "ToolProgress":
				this.call(entry).progress.push(entry.value);
				break;
			case "ToolCallFinished": {
				const { name, content, error, handoff, still_running: stillRunning } = entry;
				Object.assign(this.call(entry), { name, content, error, handoff, stillRunning, ended: entry.at, state: error ? "error" : "done" });
				break;
			}
			case "CallWaiting": {
				const { name, kind, reason, data } = entry;
				Object.assign(this.call(entry), { name, kind, reason, data, args: entry.arguments, state: "waiting" });
				break;
			}
			case "TurnFinished":
				this.turnFinished(entry);
				break;
			case "ContextChanged":
				this.changed(entry);
				break;
			case "HandedOff":
				turn.handoff = { source: entry.source, target: entry.target };
				this.agent = entry.target;
				break;
			default:
				if (entry.type in ENDINGS) this.finish(entry);
				else if (entry.type in PIECES) {
					turn.firstAt ??= entry.at;
					turn[PIECES[entry.type]] += entry.text;
				}
		}
	}

	addTurn(entry, number) {
		this.agent = entry.agent;
		this.turns.push(newTurn({ number, agent: entry.agent, at: entry.at, run: this.id }));
	}

	completed(entry) {
		const turn = this.turn;
		const message = entry.message;
		Object.assign(turn, { done: true, doneAt: entry.at, usage: entry.usage, cacheMiss: entry.cache_miss, message });
		turn.text = textOf(message.content) || turn.text;
		turn.refusal = message.refusal || turn.refusal;
		(message.tool_calls || []).forEach((each, index) => {
			const call = this.call({ index, id: each.id, call_id: entry.call_ids?.[index], at: entry.at });
			const made = each.function || each.custom || {};
			Object.assign(call, { name: made.name || call.name, args: made.arguments ?? made.input ?? call.args });
			if (call.state === "writing") call.state = "ready";
		});
	}

	// States, and texts that only the history has.
	turnFinished({ answers, open = [], unknown = [] }) {
		for (const call of this.turn.calls) {
			const { index, state, content } = call;
			if (unknown.includes(index)) call.state = "unknown";
			else if (!open.includes(index) && /ready|waiting/.test(state)) call.state = "skipped";
			const answer = answers.find((each) => each.index === index);
			if (answer && content !== undefined) call.content = answer.content;
		}
	}

	changed(entry) {
		const rows = [...Object.keys(entry.changes), ...entry.removed].map((key) => ({ key, before: this.context[key], after: entry.changes[key] }));
		const by = this.turns.flatMap((turn) => turn.calls).filter((call) => entry.by.includes(call.id));
		this.changes.push({ agent: entry.agent, turn: this.turn?.number ?? 0, by, rows });
		this.context = { ...this.context, ...entry.changes };
		entry.removed.forEach((key) => delete this.context[key]);
	}

	finish(entry) {
		const response = entry.response || null;
		this.status = ENDINGS[entry.type];
		Object.assign(this, { ended: entry.at, response, error: entry.error || null, reason: entry.reason, message: entry.message });
		if (response) {
			this.agent = response.agent || this.agent;
			this.context = response.context_variables || this.context;
			this.usage = response.usage;
			this.length = response.messages.length;
			this.place(response.messages);
		}
		this.settle();
	}

	// A log may lack the end of its last turn.
	settle() {
		const states = { running: "unknown", writing: "cut", ready: "skipped", waiting: "skipped" };
		for (const turn of this.turns) {
			turn.done = true;
			for (const call of turn.calls) call.state = states[call.state] || call.state;
		}
		const last = this.turns.findLast((turn) => turn.calls.length);
		for (const open of this.waiting) {
			const call = last?.calls.find((each) => each.index === open.index);
			if (call) Object.assign(call, { state: "waiting", kind: open.kind, reason: open.reason ?? call.reason, data: open.data ?? call.data });
		}
	}

	// The positions of each turn: a fork may keep the messages before `stop`.
	place(messages) {
		const base = this.before + this.asked.length;
		let turn = this.turns[0]?.resumed ? this.turns[0] : null;
		if (turn) turn.start = turn.stop = base;
		const rest = this.turns.filter((each) => !each.resumed && each.message);
		messages.forEach((message, at) => {
			if (message.role === "assistant") {
				turn = rest.shift() || turn;
				if (turn) turn.start ??= base + at;
			}
			if (turn) turn.stop = base + at + 1;
			const call = Array.isArray(message.content) && turn?.calls.find((each) => each.id === message.tool_call_id);
			if (call) call.content = message.content; // with its images
		});
	}
}

// Messages without a log, in the same form.
export function historyView(messages, start) {
	const blocks = [];
	let turn = null;
	messages.forEach((message, at) => {
		const index = start + at;
		if (message.role === "assistant") {
			turn = newTurn({
				number: 0, agent: message.sender || "", reasoning: message.reasoning_content || "", text: textOf(message.content), past: true,
				refusal: message.refusal || "", done: true, message, start: index, stop: index + 1,
			});
			turn.calls = (message.tool_calls || []).map(({ id, function: made }, number) =>
				newCall({ index: number, id, name: made?.name || "", args: made?.arguments || "", state: "open", past: true }));
			blocks.push({ turn });
		} else if (message.role === "tool") {
			const call = turn?.calls.find((each) => each.id === message.tool_call_id && each.content === undefined);
			if (call) Object.assign(call, { content: message.content, state: "done", message: index });
			if (turn) turn.stop = index + 1;
		} else if (message.role === "user") {
			blocks.push({ user: message, index });
		}
	});
	return blocks;
}

// Calls in groups: calls whose times overlap ran together.
export function together(calls) {
	const groups = [];
	for (const call of calls) {
		const group = groups.at(-1);
		const overlaps = group && call.started && group.some((each) => each.started && call.started < (each.ended ?? Infinity));
		if (overlaps || (group && !call.started && !group[0].started)) group.push(call);
		else groups.push([call]);
	}
	return groups;
}
