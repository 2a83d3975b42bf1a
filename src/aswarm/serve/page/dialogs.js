// The dialogs.

import { get, url } from "./api.js";
import { names } from "./chat.js";
import { partsOf, textOf } from "./fold.js";
import { fork, forkFacts, href, remove, rename, state, update, useToken } from "./state.js";
import { parsed, plural } from "./text.js";
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
		<li>${keep ? `The first ${plural(keep, "message")} ${keep === 1 ? "is" : "are"} copied.` : "No message is copied: the fork is empty."} This conversation does not change.<//>
		<li>${reused.length ? html`<b>Reused</b>: ${plural(reused.length, "tool answer")}. ${reused.length === 1 ? "It does" : "They do"} not run again: ${names(reused)}.` : "No tool answers are reused."}<//>
		${messages > 0 && html`<li>${left.length ? html`<b>Left out</b>: ${plural(messages, "message")} with ${plural(left.length, "call")} that ran: ${names(left)}.
			${" "}Their effects stay, and the fork may run them again.` : `${plural(messages, "message")} after it ${messages === 1 ? "is" : "are"} left out.`}<//>`}
	<//>`;
}

const Fork = ({ keep }) => html`<${Modal} title="Fork the conversation"><${Facts} keep=${keep} />
	<${Buttons}><button class=primary autofocus onClick=${() => fork(keep)}>Fork here<//><//><//>`;

function Edit({ keep, content }) {
	const files = partsOf(content).filter((part) => !part.text);
	const [value, setValue] = useState(textOf(partsOf(content).filter((part) => part.text)));
	const isEmpty = !value.trim() && !files.length;
	const send = () => isEmpty || fork(keep, value.trim(), files);
	const keys = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && send();
	return html`<${Modal} title="Edit and resend">
		<label class=field>Your message<textarea rows=4 autofocus value=${value} onInput=${typed(setValue)} onKeyDown=${keys}><//><//>
		${files.length > 0 && html`<p class=dim>With ${plural(files.length, "file")}.</p>`}
		<${Facts} keep=${keep} />
		<${Buttons}><button class=primary disabled=${isEmpty} onClick=${send}>Fork and send<//><//><//>`;
}

// --- exports ---

const ADDED = ["sender", "tool_name", "reasoning_content", "reasoning"];

const plain = (message) => Object.fromEntries(Object.entries(message).filter(([key, value]) => !ADDED.includes(key) && value !== null));

function evalCase({ messages, turn, expect, withArguments, judge, name, context }) {
	const before = messages.slice(0, turn.start).map(plain);
	const one = before.length === 1 && before[0].role === "user" && typeof before[0].content === "string";
	const made = { conversation: one ? before[0].content : before };
	const [first] = turn.calls;
	if (expect === "first") {
		made.function = first.name;
		const values = parsed(first.args || "{}");
		if (withArguments && values && Object.keys(values).length) made.arguments = values;
	} else if (expect === "all") made.function = turn.calls.map((call) => call.name);
	else if (expect === "none") made.function = null;
	else made.judge = judge;
	if (context && Object.keys(context).length) made.context_variables = context;
	if (name) made.name = name;
	return made;
}

function download(name, text) {
	const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([text])), download: name });
	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Without HTTPS there is no clipboard: the text is selected.
async function copy(text, field) {
	try {
		await navigator.clipboard.writeText(text);
		return "Copied.";
	} catch {
		field.select();
	}
}

function Result({ text, file }) {
	const field = useRef(null);
	const [done, setDone] = useState("");
	return html`<label class=field>${file}<textarea class=mono readonly rows=14 ref=${field} value=${text}><//><//>
		<div class="buttons end"><span class=dim role=status>${done}<//>
			<button onClick=${() => download(file, text)}>Download<//>
			<button class=primary onClick=${async () => setDone((await copy(text, field.current)) || "Copy the selected text.")}>Copy<//><//>`;
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
		<p class=dim>The conversation up to this turn of ${turn.agent}, and the result that you expect. <code>aswarm eval<//> and <code>load_cases<//> read the file.</p>
		<fieldset><legend>Expected<//>${Object.entries(choices).map(([key, label]) => html`<label><input type=radio name=expect checked=${expect === key} onChange=${() => setExpect(key)} /> ${label}<//>`)}
			${expect === "first" && html`<label><input type=checkbox checked=${withArguments} onChange=${() => setWithArguments(!withArguments)} /> with these arguments<//>`}<//>
		${expect === "judge" && html`<label class=field>Question for the judge<input value=${judge} placeholder="Does the answer help the user?" onInput=${typed(setJudge)} /><//>`}
		<label class=field>Name (optional)<input value=${name} onInput=${typed(setName)} /><//>
		<${Result} text=${JSON.stringify([made], null, 2)} file="cases.json" /><//>`;
}

function TestDialog({ view }) {
	const [code, setCode] = useState("");
	useEffect(() => void get(`runs/${view.id}/test`).then(({ test }) => setCode(test)), []);
	return html`<${Modal} title="Copy as test" wide>
		<p class=dim>A scripted model repeats these answers; your functions really run. Check the import of your agent.</p>
		<${Result} text=${code} file="test_run.py" /><//>`;
}

// --- others ---

const KEYS = {
	"/": "write a message", Enter: "send it", "Shift Enter": "a new line", n: "a new conversation", ".": "stop the run", j: "the next message or turn", k: "the previous one",
	f: "fork after the focused one", e: "edit the focused message", "1 to 6": "the panels", w: "watch a run", t: "light, dark or system", "?": "this list", "Ctrl Enter": "send a form", Esc: "close",
};

const Keys = () => html`<${Modal} title=Keys wide><dl class=keylist>${Object.entries(KEYS).map(([key, text]) => html`<dt>${key.split(" ").map((each) => (each === "to" ? " to " : html`<kbd>${each}<//>`))}<//><dd>${text}<//>`)}<//>
	<p class="dim small">This page contains htm and Preact: <a href=${url("page/vendor/LICENSE.txt").href}>licences</a>.</p><//>`;

const Confirm = ({ title, act, done, children }) => html`<${Modal} title=${title}>${children}
	<${Buttons} autofocus><button class="danger solid" onClick=${done}>${act}<//><//><//>`;

const Close = ({ hint, send }) => html`<${Confirm} title="Send the message?" act=Send done=${() => (close(), send(true))}><p>${hint}</p><//>`;

const Delete = ({ id }) => html`<${Confirm} title="Delete the conversation?" act=Delete done=${() => remove(id)}>
	<p>${state.titles[id] || id}</p><p class=dim>Its messages and the logs of its runs are deleted. This cannot be undone.</p><//>`;

function Ask({ title, label, act, done, value: first = "" }) {
	const [value, setValue] = useState(first);
	return html`<${Modal} title=${title}><form onSubmit=${(event) => (event.preventDefault(), done(value.trim()))}>
		<label class=field>${label}<input autofocus maxlength=200 value=${value} onInput=${typed(setValue)} /><//><${Buttons}><button class=primary>${act}<//><//><//><//>`;
}

const Rename = ({ id }) => html`<${Ask} title="Rename the conversation" label=Title act=Rename value=${state.titles[id]} done=${(title) => rename(id, title)} />`;
const Watch = () => html`<${Ask} title="Watch a run" label="Id of the run" act=Watch done=${(id) => (close(), (location.hash = href(state.id, id)))} />`;

export function TokenForm() {
	const [value, setValue] = useState("");
	return html`<form class=welcome onSubmit=${(event) => (event.preventDefault(), useToken(value.trim()))}><h2>Your token<//><p>This service needs a token. It stays in this tab.</p>
		<label class=field>Token<input type=password autocomplete=off autofocus value=${value} onInput=${typed(setValue)} /><//>
		<div class=buttons><button class=primary disabled=${!value.trim()}>Continue<//><//><//>`;
}

const DIALOGS = { fork: Fork, edit: Edit, case: CaseDialog, test: TestDialog, keys: Keys, rename: Rename, delete: Delete, close: Close, watch: Watch };

export function Dialog() {
	const { dialog } = state;
	const Made = dialog && DIALOGS[dialog.kind];
	return Made ? html`<${Made} ...${dialog} key=${dialog.kind} />` : null;
}
