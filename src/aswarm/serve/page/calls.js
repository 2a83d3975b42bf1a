// One tool call, and the form for a decision.

import { serverNow } from "./api.js";
import { decide, hue, openCalls, sendDecisions, state } from "./state.js";
import { Content, duration, isObject, Json, parsed } from "./text.js";
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";

export const STATES = {
	writing: "being written", ready: "about to run", running: "running", done: "answered", error: "failed", waiting: "waits for you",
	unknown: "outcome unknown", skipped: "not run", open: "not run yet", cut: "cut off", decided: "decided below",
};

export const Pill = ({ name }) => html`<span class=${`pill ${hue(name)}`}>${name}<//>`;

export const endOf = (call, unknown) => call.ended ?? (call.state === "running" ? serverNow() : unknown);
export const took = (call) => (call.started ? endOf(call, NaN) - call.started : NaN);
export const time = (call) => (Number.isNaN(took(call)) ? "" : duration(took(call)));

function Arguments({ call }) {
	const value = parsed(call.args || "{}");
	if (call.state === "writing") return html`<pre class="json writing" tabindex=0>${call.args}<span class=caret><//><//>`;
	if (value === undefined) return html`<pre class=json tabindex=0>${call.args}<//><p class="hint bad">The arguments are not JSON.</p>`;
	return isObject(value) && !Object.keys(value).length ? null : html`<${Json} value=${value} label=Arguments />`;
}

export function Call({ call, span }) {
	const name = call.state === "unknown" && call.stillRunning ? "may still be running" : STATES[call.state];
	const style = span && call.started ? { left: `${span.left}%`, width: `${Math.max(span.width, 1.5)}%` } : null;
	return html`<article class=${`call is-${call.state}`} data-call=${call.id} aria-label=${`Call of ${call.name || "a tool"}: ${name}`}>
		<header>
			<span class=dot aria-hidden=true><//>
			<h3>${call.name || "…"}<//>
			${call.handoff && html`to <${Pill} name=${call.handoff} />`}
			<span class=right><span class=status>${call.past && call.state === "done" ? "reused" : name}<//>
				${time(call) && html`<span class=time>${time(call)}<//>`}<//>
		<//>
		${style && html`<div class=track aria-hidden=true><i style=${style}></i><//>`}
		<${Arguments} call=${call} />
		${call.progress.length > 0 && html`<${Progress} values=${call.progress} />`}
		${call.content !== undefined && !call.handoff && html`<div class=answer><${Content} content=${call.content} label=Answer /><//>`}
		${call.state === "unknown" && html`<p class="hint warn">The run ended while this call ran. Its effect is not known: check it before you run it again.</p>`}
		${call.stillRunning && call.state !== "unknown" && html`<p class="hint warn">The function could not be stopped, and may still be running.</p>`}
		<${Decision} call=${call} />
	<//>`;
}

const told = (value) => (typeof value === "string" ? value : value?.type ? [value.type, value.text || value.name || ""].join(" ") : JSON.stringify(value));

function Progress({ values }) {
	const own = [...new Map(values.filter((v) => v?.id).map((v) => [v.id, v])).values()];
	return html`<p class=progress><span class=label>Progress<//> ${told(values.at(-1))}${values.length > 1 ? ` (${values.length})` : ""}</p>
		${own[0] && html`<ul>${own.map((v) => html`<li>${told(v)}<//>`)}<//>`}`;
}

const verdict = (decision) =>
	"content" in decision ? "Answered" : !decision.approve ? "Denied" : decision.arguments ? "Approved with other arguments" : "Approved";

function Decision({ call }) {
	const open = openCalls();
	const wait = open.find((each) => each.call === call.id);
	if (!wait || !["waiting", "open"].includes(call.state)) return null;
	const made = state.decisions[call.id];
	const decided = open.filter((each) => state.decisions[each.call]).length;
	return html`<div class=decision>
		<p class=reason>${wait.reason || (wait.kind === "external" ? "This tool runs elsewhere. Enter its answer." : "This call has not run.")}</p>
		${wait.data !== null && wait.data !== undefined && html`<${Json} value=${wait.data} />`}
		${made
			? html`<p class=decided><span>${verdict(made)}<//> <button class=link onClick=${() => decide(call.id, null)}>Change<//></p>`
			: html`<${Form} call=${call} kind=${wait.kind} />`}
		${open.length > 1 && made && html`<button class=primary disabled=${decided < open.length || state.sending} onClick=${sendDecisions}>
			${decided < open.length ? `Decide on ${open.length - decided} more` : `Send ${open.length} decisions`}<//>`}
	<//>`;
}

function Form({ call, kind }) {
	const answers = kind === "question" || kind === "external";
	const [mode, setMode] = useState(answers ? "answer" : "");
	const [text, setText] = useState("");
	const [fault, setFault] = useState("");
	const pretty = () => JSON.stringify(parsed(call.args || "{}") ?? {}, null, 2);
	const field = useRef(null);
	const place = useRef(null);
	const choose = (next, value) => {
		setMode(next), setText(value), setFault("");
		// After the drawing: its field, or the button that opened it.
		queueMicrotask(() => (next ? field.current : place.current?.children[mode === "edit" ? 1 : 2])?.focus());
	};
	const send = () => {
		if (state.sending) return;
		if (mode === "deny") return decide(call.id, { approve: false, ...(text.trim() ? { reason: text.trim() } : {}) });
		if (mode === "answer") return decide(call.id, { content: parsed(text) ?? text });
		if (text.trim() === pretty()) return decide(call.id, { approve: true }); // JSON.parse changes numbers such as 1.0 to 1
		const value = parsed(text);
		if (!isObject(value)) return setFault("The arguments must be a JSON object.");
		return decide(call.id, { approve: true, arguments: value });
	};
	const keys = (event) => {
		if (event.key === "Enter" && !event.isComposing && (event.ctrlKey || event.metaKey || (mode !== "edit" && !event.shiftKey))) event.preventDefault(), send();
	};
	useEffect(() => mode && mode !== "answer" && place.current?.scrollIntoView({ block: "nearest" }), [mode]);
	const label = { edit: "Arguments", deny: "Reason for the model (optional)", answer: "Your answer, a text or JSON" }[mode];
	const act = { edit: "Approve these", deny: "Deny", answer: "Answer" }[mode];
	if (!mode)
		return html`<div class=buttons ref=${place}>
			<button class=primary disabled=${state.sending} onClick=${() => decide(call.id, { approve: true })}>${kind === "approval" ? "Approve" : "Run it"}<//>
			<button onClick=${() => choose("edit", pretty())}>Edit…<//>
			<button class=danger onClick=${() => choose("deny", "")}>Deny…<//>
		<//>`;
	return html`<label class=field>${label}
			<textarea rows=${mode === "edit" ? Math.min(10, text.split("\n").length + 1) : 2} value=${text} ref=${field} spellcheck=${mode !== "edit"}
				class=${mode === "edit" ? "mono" : ""} onInput=${(event) => setText(event.target.value)} onKeyDown=${keys}><//><//>
		${fault && html`<p class="hint bad" role=alert>${fault}</p>`}
		<div class=buttons ref=${place}>
			<button class=${mode === "deny" ? "danger solid" : "primary"} disabled=${state.sending || (mode === "answer" && !text.trim())} onClick=${send}>${act}<//>
			${!answers && html`<button class=back onClick=${() => choose("", "")}>Back<//>`}
			${answers && html`<button class=danger onClick=${() => decide(call.id, { approve: false })}>Deny<//>`}
		<//>`;
}
