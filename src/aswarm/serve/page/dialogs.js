// The dialogs: fork, edit and resend, eval case, test, keys, delete, watch a run, token.

import { get, url } from "./api.js";
import { names } from "./chat.js";
import { copy, download, evalCase } from "./exporting.js";
import { fork, forkFacts, href, remove, state, update, useToken } from "./state.js";
import { plural } from "./text.js";
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";

const close = () => update({ dialog: null });
const typed = (set) => (event) => set(event.target.value);

function Modal({ title, children, wide }) {
	const ref = useRef(null);
	useEffect(() => {
		ref.current.showModal();
		const { current } = ref;
		return () => current.close();
	}, []);
	const outside = (event) => event.target === ref.current && close();
	return html`<dialog ref=${ref} class=${wide ? "wide" : ""} aria-labelledby=dialog-title onCancel=${(event) => (event.preventDefault(), close())} onClick=${outside}>
		<div class=inside><header><h2 id=dialog-title>${title}<//><button class=icon aria-label=Close onClick=${close}>✕<//><//>${children}<//><//>`;
}

const Buttons = ({ children, autofocus }) => html`<div class="buttons end"><button type=button autofocus=${autofocus} onClick=${close}>Cancel<//>${children}<//>`;

// --- forks ---

function Facts({ keep }) {
	const { reused, left, messages } = forkFacts(keep);
	return html`<ul class=facts-list>
		<li>${keep ? `The first ${plural(keep, "message")} ${keep === 1 ? "is" : "are"} copied.` : "No message is copied: the fork begins empty."} This conversation stays as it is.<//>
		<li>${reused.length ? html`<b>Reused</b>: ${plural(reused.length, "answer")} of tools. ${reused.length === 1 ? "It does" : "They do"} not run again: ${names(reused)}.` : "No answer of a tool is reused."}<//>
		${messages > 0 && html`<li>${left.length ? html`<b>Left out</b>: ${plural(messages, "message")} with ${plural(left.length, "call")} that ran: ${names(left)}.
			${" "}What ${left.length === 1 ? "it has" : "they have"} done is not undone, and the fork may run ${left.length === 1 ? "it" : "them"} again.` : `${plural(messages, "message")} after it ${messages === 1 ? "is" : "are"} left out.`}<//>`}
	<//>`;
}

function Fork({ keep }) {
	return html`<${Modal} title="Fork the conversation">
		<${Facts} keep=${keep} />
		<${Buttons}><button class=primary autofocus onClick=${() => fork(keep)}>Fork here<//><//><//>`;
}

function Edit({ keep, text }) {
	const [value, setValue] = useState(text);
	const send = () => value.trim() && fork(keep, value.trim());
	const keys = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && send();
	return html`<${Modal} title="Edit and resend">
		<label class=field>Your message<textarea rows=4 autofocus value=${value} onInput=${typed(setValue)} onKeyDown=${keys}><//><//>
		<${Facts} keep=${keep} />
		<${Buttons}><button class=primary disabled=${!value.trim()} onClick=${send}>Fork and send<//><//><//>`;
}

// --- exports ---

function Result({ text, file }) {
	const field = useRef(null);
	const [done, setDone] = useState("");
	return html`<label class=field>${file}<textarea class=mono readonly rows=14 ref=${field} value=${text}><//><//>
		<div class="buttons end"><span class=dim role=status>${done}<//>
			<button onClick=${() => download(file, text)}>Download<//>
			<button class=primary onClick=${async () => setDone((await copy(text, field.current)) ? "Copied." : "Copy the marked text.")}>Copy<//><//>`;
}

function CaseDialog({ turn }) {
	const [expect, setExpect] = useState(turn.calls.length ? "first" : "judge");
	const [withArguments, setWithArguments] = useState(true);
	const [judge, setJudge] = useState("");
	const [name, setName] = useState("");
	const view = state.views.get(turn.run);
	const messages = state.stored?.messages || [];
	const choices = turn.calls.length
		? { first: `The first call is ${turn.calls[0].name}`, all: `Exactly ${turn.calls.length === 1 ? "this call" : `these ${turn.calls.length} calls`}`, judge: "A judge says yes" }
		: { judge: "A judge says yes", none: "No call" };
	const made = evalCase({ messages, turn, expect, withArguments, judge: judge || "Does the answer help the user?", name, context: view?.first });
	return html`<${Modal} title="Save as eval case" wide>
		<p class=dim>The conversation up to this turn of ${turn.agent}, and what you expect there. <code>aswarm eval<//> and <code>load_cases<//> read the file.</p>
		<fieldset><legend>Expected<//>${Object.entries(choices).map(([key, label]) => html`<label><input type=radio name=expect checked=${expect === key} onChange=${() => setExpect(key)} /> ${label}<//>`)}
			${expect === "first" && html`<label><input type=checkbox checked=${withArguments} onChange=${() => setWithArguments(!withArguments)} /> with these arguments<//>`}<//>
		${expect === "judge" && html`<label class=field>Question for the judge<input value=${judge} placeholder="Does the answer help the user?" onInput=${typed(setJudge)} /><//>`}
		<label class=field>Name (optional)<input value=${name} onInput=${typed(setName)} /><//>
		<${Result} text=${JSON.stringify([made], null, 2)} file="cases.json" /><//>`;
}

function TestDialog({ view }) {
	const [code, setCode] = useState("");
	useEffect(() => void get(`runs/${view.id}/test`).then((found) => setCode(found.test)), []);
	return html`<${Modal} title="Copy as test" wide>
		<p class=dim>The model says again what it said here; your functions really run. Change the import to where your agents are.</p>
		<${Result} text=${code} file="test_run.py" /><//>`;
}

// --- others ---

const KEYS = {
	"/": "write a message", Enter: "send it", "Shift Enter": "a new line", n: "a new conversation", ".": "stop the run", j: "the next message or turn", k: "the one before",
	f: "fork after the one in focus", e: "edit the message in focus", "1 to 6": "the panels", w: "watch a run", t: "light, dark or as the system", "?": "this list", Esc: "close",
};

const Keys = () => html`<${Modal} title=Keys><dl class=keylist>${Object.entries(KEYS).map(([key, text]) => html`<div><dt>${key.split(" ").map((each) => (each === "to" ? " to " : html`<kbd>${each}<//>`))}<//><dd>${text}<//><//>`)}<//>
	<p class="dim small">This page holds htm and Preact: <a href=${url("page/vendor/LICENSE.txt").href}>licences</a>.</p><//>`;

const Delete = ({ id }) => html`<${Modal} title="Delete the conversation?"><p>${state.titles[id] || id}</p><p class=dim>Its messages and the logs of its runs are deleted. This cannot be undone.</p>
	<${Buttons} autofocus><button class="danger solid" onClick=${() => remove(id)}>Delete<//><//><//>`;

function Watch() {
	const [id, setId] = useState("");
	const go = () => (close(), (location.hash = href(null, id.trim())));
	return html`<${Modal} title="Watch a run">
		<form onSubmit=${(event) => (event.preventDefault(), id.trim() && go())}><label class=field>Id of the run<input class=mono autofocus value=${id} onInput=${typed(setId)} /><//>
			<${Buttons}><button class=primary disabled=${!id.trim()}>Watch<//><//><//><//>`;
}

export function TokenForm() {
	const [value, setValue] = useState("");
	return html`<form class=welcome onSubmit=${(event) => (event.preventDefault(), useToken(value.trim()))}><h2>Your token<//><p>This service needs a token. It stays in this tab.</p>
		<label class=field>Token<input type=password autocomplete=off autofocus value=${value} onInput=${typed(setValue)} /><//>
		<div class=buttons><button class=primary disabled=${!value.trim()}>Continue<//><//><//>`;
}

const DIALOGS = { fork: Fork, edit: Edit, case: CaseDialog, test: TestDialog, keys: Keys, delete: Delete, watch: Watch };

export function Dialog() {
	const { dialog } = state;
	const Made = dialog && DIALOGS[dialog.kind];
	return Made ? html`<${Made} ...${dialog} key=${dialog.kind} />` : null;
}
