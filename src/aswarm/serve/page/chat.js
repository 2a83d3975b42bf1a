// The conversation, and the input box.

import { Call, endOf, Pill, took } from "./calls.js";
import { historyView, textOf, together } from "./fold.js";
import { activeRun, addFiles, dialog, forkFacts, href, hue, inspect, lastRun, nextChange, openCalls, resume, runsInOrder, say, state, stop, update } from "./state.js";
import { clock, count, duration, Images, Markdown, plural } from "./text.js";
import { Component, html, useEffect, useRef } from "./vendor/htm-preact.js";

const forkable = () => state.id !== null && !activeRun();

const Thinking = (text) => html`<p class=thinking><span class=sr>${text}<//><i></i><i></i><i></i></p>`;

function User({ content, index }) {
	return html`<div class="message user" tabindex=-1 data-item role=group aria-label=You>
		<div class=bubble>${textOf(content)}<${Images} content=${content} /><//>
		<div class=actions>
			${index !== undefined && html`<button disabled=${!forkable()} onClick=${() => dialog("edit", { keep: index, content })}>Edit and resend<//>`}
		<//>
	<//>`;
}

function Calls({ calls }) {
	return together(calls).map((group) => {
		if (group.length === 1) return html`<${Call} call=${group[0]} key=${group[0].index} />`;
		const started = group.filter((call) => call.started);
		const start = Math.min(...started.map((call) => call.started));
		const stops = started.map((call) => endOf(call, call.started));
		const whole = Math.max(Math.max(...stops) - start, 1);
		const span = (call) => ({ left: ((call.started - start) / whole) * 100, width: ((took(call) || 0) / whole) * 100 });
		return html`<section class=group aria-label=${plural(group.length, "call") + " that ran together"}>
			<p class=label>${plural(group.length, "call")} together${started.length ? html` <span class=time>${duration(whole)}<//>` : ""}</p>
			<div class=row>${group.map((call) => html`<${Call} key=${call.index} call=${call} span=${started.length > 1 && span(call)} />`)}<//>
		<//>`;
	});
}

export function figures(turn) {
	return [
		turn.doneAt && turn.at ? duration(turn.doneAt - turn.at) : null,
		turn.usage?.total_tokens ? `${count(turn.usage.prompt_tokens)} in, ${count(turn.usage.completion_tokens)} out` : null,
	].filter(Boolean);
}

function Turn({ turn }) {
	const isWriting = !turn.done;
	const decided = turn.resumed && (turn.decisions ? "continues with your decisions" : "continues");
	const canCopy = turn.message && turn.start !== undefined;
	return html`<section class=${`turn ${hue(turn.agent)}`} data-item tabindex=-1 aria-label=${`${turn.agent || "Assistant"}${turn.number ? `, turn ${turn.number}` : ""}`}
			data-turn=${`${turn.run}-${turn.number}`}>
		<header class=who>
			<span class=avatar aria-hidden=true>${(turn.agent || "A")[0]}<//>
			<h2>${turn.agent || "Assistant"}<//>
			<span class=meta>${decided || (turn.past ? "" : figures(turn).join(" · "))}<//>
			<span class=grow><//>
			<div class=actions>
				${turn.stop !== undefined && html`<button disabled=${!forkable()} onClick=${() => dialog("fork", { keep: turn.stop })}>Fork<//>`}
				${canCopy && html`<button onClick=${() => dialog("case", { turn })}>Eval case<//>`}
			<//>
		<//>
		${turn.reasoning && html`<details class=reasoning open=${isWriting && !turn.text}><summary>Reasoning<//><p>${turn.reasoning}</p><//>`}
		${turn.text && html`<${Markdown} text=${turn.text} />`}
		${turn.refusal && html`<p class=refusal><span class=label>Refusal<//> ${turn.refusal}</p>`}
		${isWriting && !turn.calls.length && Thinking("The model is working")}
		${turn.calls.length > 0 && html`<div class=calls><${Calls} calls=${turn.calls} /><//>`}
	<//>
	${turn.handoff && html`<${Handoff} ...${turn.handoff} />`}`;
}

export const Handoff = ({ source, target }) => html`<div class=handoff role=separator aria-label=${`${source} hands off to ${target}`}>
	<${Pill} name=${source} /><span class=arrow aria-hidden=true><//><${Pill} name=${target} /><//>`;

const STOPS = {
	max_turns: "The run reached its maximum of turns.",
	budget: "The budget of the run is used up.",
};

function Ending({ view }) {
	if (view.error)
		return html`<div class="ending bad" role=group aria-label=Error><h3>The run failed<//>
			<p><code>${view.error.type}<//>${view.error.status_code ? ` · status ${view.error.status_code}` : ""}</p>
			<p class=pre>${view.error.message || view.error.public_message}</p><//>`;
	if (view.status === "stopped") {
		const unknown = view.turns.flatMap((turn) => turn.calls).filter((call) => call.state === "unknown");
		return html`<div class="ending warn" role=group aria-label=Stopped><h3>Stopped<//>
			<p>${view.reason === "cancelled" ? "You stopped the run." : view.message}
			${unknown.length ? ` The outcome of ${plural(unknown.length, "call")} is unknown: ${unknown.map((call) => call.name).join(", ")}.` : " No call was interrupted."}</p><//>`;
	}
	const why = STOPS[view.response?.stop];
	return why ? html`<div class="ending warn"><p>${why}</p><//>` : null;
}

class Run extends Component {
	shouldComponentUpdate(next) {
		return next.view.isRunning || next.view.version !== this.drawn || next.mark !== this.props.mark;
	}

	render({ view }) {
		this.drawn = view.version;
		if (!view.turns.length && !view.asked.length && view.status === "loading") return Thinking();
		return html`<div class=${`run ${state.selected === view.id ? "selected" : ""}`} data-run=${view.id}>
			${view.asked.map((message, at) => message.role === "user" && html`<${User} content=${message.content} index=${view.before + at} />`)}
			${view.edited.length > 0 && html`<p class=hint>The context was edited: ${view.edited.join(", ")}</p>`}
			${view.turns.map((turn) => html`<${Turn} key=${turn.number} turn=${turn} />`)}
			<${Ending} view=${view} />
			<footer class=run-foot>
				<span>${view.started ? clock(view.started) : ""}<//>
				${view.ended && html`<span>${duration(view.ended - view.started)}<//>`}
				${view.usage?.total_tokens > 0 && html`<span>${count(view.usage.total_tokens)} tokens<//>`}
				<span class=grow><//>
				<a href=${href(null, view.id)} aria-label="This run alone">${view.id.slice(0, 8)}</a>
				${view.response && state.tests && html`<button onClick=${() => dialog("test", { view })}>Copy as test<//>`}
				<button onClick=${() => inspect({ selected: view.id })}>Inspect<//>
			<//>
		<//>`;
	}
}

function Past({ messages, start }) {
	const blocks = historyView(messages, start);
	let agent = null;
	return html`<div class=past>${blocks.map((block) => {
		if (!block.turn) return html`<${User} content=${block.user.content} index=${block.index} />`;
		const before = agent;
		agent = block.turn.agent;
		const handoff = before && agent && before !== agent && html`<${Handoff} source=${before} target=${agent} />`;
		return html`${handoff}<${Turn} turn=${block.turn} />`;
	})}<//>`;
}

// Runs in order, and the messages without a log.
function segments() {
	const parts = [];
	const messages = state.stored?.messages || [];
	let at = 0;
	const runs = runsInOrder();
	for (const [index, view] of runs.entries()) {
		if (view.status === "loading") {
			parts.push({ view });
			at = Infinity;
			continue;
		}
		if (view.before > at && messages.length) parts.push({ messages: messages.slice(at, view.before), start: at });
		parts.push({ view });
		at = view.isRunning ? Infinity : view.response ? view.end : (runs[index + 1]?.before ?? Infinity);
	}
	if (messages.length > at) parts.push({ messages: messages.slice(at), start: at });
	return parts;
}

function ForkNote() {
	const made = state.forks[state.id];
	if (!made || !state.stored) return null;
	const { reused } = forkFacts(made.keep);
	return html`<div class="ending note"><h3>A fork<//>
		<p>It has the first ${plural(made.keep, "message")} of <a href=${href(made.from)}>${state.titles[made.from] || made.from}</a>.
		${" "}${reused.length > 0 && `These tools did not run again: ${names(reused)}.`}</p><//>`;
}

export const names = (calls) => {
	const counted = new Map();
	calls.forEach((call) => counted.set(call.name, (counted.get(call.name) || 0) + 1));
	return [...counted].map(([name, number]) => (number > 1 ? `${name} (${number} times)` : name)).join(", ");
};

function Welcome() {
	return html`<div class=welcome>
		<h2>Talk to your agents<//>
		<div class=cards role=group aria-label="First agent">
			${state.agents.map((name) => {
				const { agents, handoffs } = state.graphs[name];
				const [node] = agents;
				const targets = new Set(handoffs.filter((each) => each.source === node.id).map((each) => agents.find(({ id }) => id === each.target)?.name));
				return html`<button aria-pressed=${state.agent === name} class=${`card ${hue(name)}`} onClick=${() => (update({ agent: name }), focusBox())}>
					<span class=avatar aria-hidden=true>${name[0]}<//><b>${name}</b>
					<small>${node.model}<//><span class=tools>${node.functions.join(", ") || "no functions"}<//>
					${targets.size > 0 && html`<span class=tools>Hands off to ${[...targets].map((each) => html`<${Pill} name=${each || "other agents"} /> `)}<//>`}<//>`;
			})}
		<//>
		${state.questions.length > 0 && html`<div class=picker role=group aria-label="First questions">${state.questions.map((text) => html`<button
			onClick=${() => state.sending || (say(text), focusBox())}>${text}<//>`)}<//>`}
	<//>`;
}

function Models() {
	const options = state.models.map((name) => html`<option value=${name} selected=${name === state.model}>${name}<//>`);
	const choose = (event) => update({ model: event.target.value });
	return html`<label class=scope>Model ${state.any_model
		? html`<input list=models value=${state.model} placeholder="of each agent" onInput=${choose} /><datalist id=models>${options}<//>`
		: html`<select onChange=${choose}><option value="">of each agent<//>${options}<//>`}<//>`;
}

export function Chat() {
	const log = useRef(null);
	const column = useRef(null);
	const follows = useRef(true);
	const last = useRef({});
	const parts = segments();
	const isEmpty = !parts.length && !state.isLoading;
	const follow = () => {
		if (follows.current && (state.id ?? state.only) !== null) log.current.scrollTop = log.current.scrollHeight;
		last.current = { top: log.current.scrollTop, height: log.current.scrollHeight };
	};
	useEffect(() => {
		const observer = new ResizeObserver(follow);
		[log, column].forEach(({ current }) => observer.observe(current));
		return () => observer.disconnect();
	}, []);
	useEffect(() => {
		follows.current = true;
		follow();
	}, [state.id, state.only, state.jump]);
	// Only the user scrolls up. Our own scroll may be told late.
	const scrolled = ({ target: { scrollTop: top, scrollHeight: height, clientHeight } }) => {
		const below = height - top - clientHeight;
		follows.current = top < last.current.top && height >= last.current.height ? below < 2 : follows.current || below < 80;
		last.current = { top, height };
	};
	const expanded = ({ target }) => target.closest("summary, .link") && (follows.current = false);
	const take = (from) => (event) => event[from].files.length && (event.preventDefault(), addFiles(event[from].files));
	const over = (event) => event.dataTransfer.types.includes("Files") && event.preventDefault();
	const mark = JSON.stringify([state.decisions, state.selected, activeRun()?.id, state.sending, lastRun()?.id]);
	return html`<main class=chat id=chat aria-label=Conversation onPaste=${take("clipboardData")} onDrop=${take("dataTransfer")} onDragOver=${over}>
		<div class=log ref=${log} onScroll=${scrolled} onClick=${expanded} tabindex=0 role=log aria-live=off aria-label=Messages>
			<div class=column ref=${column}>
				${state.isLoading && Thinking()}
				${isEmpty && !state.only && state.id === null && html`<${Welcome} />`}
				<${ForkNote} />
				${parts.map((part) => (part.view ? html`<${Run} key=${part.view.id} view=${part.view} mark=${mark} />` : html`<${Past} key=${`m${part.start}`} ...${part} />`))}
			<//>
		<//>
		${!state.only && html`<${Box} />`}
	<//>`;
}

export const focusBox = () => document.getElementById("box")?.focus();

function Box() {
	const box = useRef(null);
	const picker = useRef(null);
	const running = activeRun();
	const open = openCalls().length;
	const stalled = !running && !open && !state.sending && ["user", "tool"].includes(state.stored?.messages.at(-1)?.role);
	const isEmpty = !state.draft.trim() && !state.files.length;
	const send = async (sure) => {
		const { files } = state;
		const text = state.draft.trim();
		// Not of the last drawing: Enter may come before the next.
		if (!(text || files.length) || activeRun() || state.sending) return;
		if (openCalls().length && sure !== true) return dialog("close", { hint, send });
		update({ draft: "", files: [] });
		if (!(await say(text, files))) update({ draft: state.draft || text, files: [...files, ...state.files] });
	};
	useEffect(() => state.id === null && !state.only && matchMedia("(hover: hover)").matches && focusBox(), [state.id]);
	useEffect(() => {
		box.current.style.height = "auto";
		box.current.style.height = `${Math.min(box.current.scrollHeight + 2, 220)}px`;
	}, [state.draft]);
	const keys = (event) => {
		if (event.key === "Enter" && !event.shiftKey && !event.isComposing) event.preventDefault(), send();
	};
	const hint = open ? `${plural(open, "call")} ${open === 1 ? "waits" : "wait"} for you. A new message closes ${open === 1 ? "it" : "them"} as not run.` : "";
	return html`<div class=composer>
		${state.notice && html`<div class="notice ${state.notice.kind}" role=alert><span>${state.notice.text}<//>
			<button class=icon aria-label="Close this notice" onClick=${() => update({ notice: null })}>✕<//><//>`}
		${stalled && html`<p class=hint>The last message has no answer. <button class=link onClick=${resume}>Let the model continue<//><//>`}
		${hint && html`<p class="hint warn">${hint}</p>`}
		${state.edit && html`<p class=hint>${nextChange()} <button class=link onClick=${() => update({ edit: null })}>Discard<//></p>`}
		${state.files.length > 0 && html`<div class=picker>${state.files.map((part) => html`<button aria-label=${`Remove ${part.file?.filename || "the image"}`} onClick=${() => update({ files: state.files.filter((each) => each !== part) })}>
			<${Images} content=${[part]} />${textOf([part])} ✕<//>`)}<//>`}
		<div class=box>
			<input type=file multiple hidden ref=${picker} onChange=${({ target }) => (addFiles(target.files), (target.value = ""))} />
			<button class=icon aria-label="Attach images and files" onClick=${() => picker.current.click()}>+<//>
			${state.prompts && html`<button class=icon aria-label="Insert a prompt" onClick=${() => dialog("prompts")}>❯<//>`}
			<label class=sr for=box>Message<//>
			<textarea id=box ref=${box} rows=1 value=${state.draft} placeholder=${state.id === null && state.agent ? `Message ${state.agent}` : "Message"}
				onInput=${(event) => update({ draft: event.target.value })} onKeyDown=${keys}><//>
			${running
				? html`<button class="danger solid" onClick=${stop} disabled=${state.stopping === running.id}>${state.stopping === running.id ? "Stopping…" : "Stop"}<//>`
				: html`<button class=primary onClick=${send} disabled=${isEmpty || state.sending}>Send<//>`}
		<//>
		${state.models.length > 0 && html`<${Models} />`}
		${state.stopping && html`<p class=hint>The run stops when its calls finish.</p>`}
	<//>`;
}
