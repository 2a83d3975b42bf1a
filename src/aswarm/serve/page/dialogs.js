// The dialogs.

import { get, post, url } from "./api.js";
import { focusBox, names } from "./chat.js";
import { partsOf, textOf } from "./fold.js";
import { editContext, fork, forkFacts, href, remove, rename, state, update, useToken } from "./state.js";
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

// A question, with a field if it has a label. `done` gets the text, and may return its fault.
function Form({ title, act, done, children, danger, wide, label, value: first = "", ...more }) {
	const [value, setValue] = useState(first);
	const [fault, setFault] = useState();
	const send = (event) => {
		event.preventDefault();
		const told = done(value.trim());
		if (typeof told === "string") setFault(told);
	};
	const keys = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.form.requestSubmit();
	const Field = more.rows ? "textarea" : "input";
	return html`<${Modal} title=${title} wide=${wide}><form onSubmit=${send}>
		${label && html`<label class=field>${label}<${Field} autofocus value=${value} onInput=${typed(setValue)} onKeyDown=${keys} ...${more} /><//>`}
		${fault && html`<p class="hint bad" role=alert>${fault}</p>`}
		${children}
		<div class="buttons end"><button type=button autofocus=${danger} onClick=${close}>Cancel<//>
			<button class=${danger ? "danger solid" : "primary"} autofocus=${!label && !danger}>${act}<//><//><//><//>`;
}

function Facts({ keep }) {
	const { reused, left, messages } = forkFacts(keep);
	return html`<ul class=facts-list>
		<li><b>Copied</b>: ${plural(keep, "message")}. This conversation does not change.<//>
		<li><b>Reused</b>: ${reused.length ? `${plural(reused.length, "tool answer")}, which do not run again: ${names(reused)}` : "no tool answers"}.<//>
		${messages > 0 && html`<li><b>Left out</b>: ${plural(messages, "message")}${left.length ? ` with ${plural(left.length, "call")} that ran: ${names(left)}. Their effects stay, and the fork may run them again` : ""}.<//>`}
	<//>`;
}

const Fork = ({ keep }) => html`<${Form} title="Fork the conversation" act="Fork here" done=${() => fork(keep)}><${Facts} keep=${keep} /><//>`;

function Edit({ keep, content }) {
	const files = partsOf(content).filter((part) => !part.text);
	const value = textOf(partsOf(content).filter((part) => part.text));
	const send = (text) => (text || files.length ? fork(keep, text, files) : "Write a message.");
	return html`<${Form} title="Edit and resend" label="Your message" rows=4 value=${value} act="Fork and send" done=${send}>
		${files.length > 0 && html`<p class=dim>With ${plural(files.length, "file")}.</p>`}<${Facts} keep=${keep} /><//>`;
}

function Context() {
	const [{ stored, edit }] = useState(() => ({ ...state })); // a run may end behind the dialog
	const now = Object.entries({ ...stored?.context_variables, ...edit?.set }).filter(([key]) => !edit?.remove.includes(key));
	return html`<${Form} title="Edit the context" label="Context variables, as JSON" rows=12 wide class=mono spellcheck=false
		value=${JSON.stringify(Object.fromEntries(now), null, 2)} act="Apply to the next run" done=${(text) => editContext(text, stored)}>
		<p class=dim>The change is sent with your next message or decision, and recorded with its run.</p><//>`;
}

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
	Object.assign(document.createElement("a"), { href: `data:,${encodeURIComponent(text)}`, download: name }).click();
}

function Result({ text, file }) {
	const field = useRef(null);
	const [done, setDone] = useState("");
	// The newer API needs HTTPS.
	const copy = () => (field.current.select(), setDone(document.execCommand("copy") ? "Copied." : "Copy the selected text."));
	return html`<label class=field>${file}<textarea class=mono readonly rows=14 ref=${field} value=${text}><//><//>
		<div class="buttons end"><span class=dim role=status>${done}<//>
			<button onClick=${() => download(file, text)}>Download<//>
			<button class=primary onClick=${copy}>Copy<//><//>`;
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

const KEYS = {
	"/": "write a message", Enter: "send it", "Shift Enter": "a new line", n: "a new conversation", ".": "stop the run", j: "the next message or turn", k: "the previous one",
	f: "fork after the focused one", e: "edit the focused message", "1 to 6": "the panels", w: "watch a run", t: "light, dark or system", "?": "this list", "Ctrl Enter": "send a form", Esc: "close",
};

const Keys = () => html`<${Modal} title=Keys wide><dl class=keylist>${Object.entries(KEYS).map(([key, text]) => html`<dt>${key.split(" ").map((each) => (each === "to" ? " to " : html`<kbd>${each}<//>`))}<//><dd>${text}<//>`)}<//>
	<p class="dim small">This page contains htm and Preact: <a href=${url("page/vendor/LICENSE.txt").href}>licences</a>.</p><//>`;

const Close = ({ hint, send }) => html`<${Form} title="Send the message?" act=Send danger done=${() => (close(), send(true))}><p>${hint}</p><//>`;

const Delete = ({ id }) => html`<${Form} title="Delete the conversation?" act=Delete danger done=${() => remove(id)}>
	<p>${state.titles[id] || id}</p><p class=dim>Its messages and the logs of its runs are deleted. This cannot be undone.</p><//>`;

const Rename = ({ id }) => html`<${Form} title="Rename the conversation" label=Title maxlength=200 act=Rename value=${state.titles[id]} done=${(title) => rename(id, title)} />`;
const Watch = () => html`<${Form} title="Watch a run" label="Id of the run" act=Watch done=${(id) => (close(), (location.hash = href(state.id, id)))} />`;
const Token = () => html`<${Form} title="Your token" label=Token type=password autocomplete=off act=Continue done=${useToken}><p class=dim>This service needs a token. It stays in this tab.</p><//>`;

function Prompts() {
	const [prompts, setPrompts] = useState();
	const [at, setAt] = useState(0);
	const [values, setValues] = useState({});
	const [fault, setFault] = useState();
	const failed = (error) => setFault(error.message);
	useEffect(() => void get("prompts").then((data) => setPrompts(data.prompts), failed), []);
	const { server, name, description, arguments: wanted } = prompts?.[at] || {};
	const insert = () => void (name && post("prompts", { server, name, arguments: values }).then(({ content }) => {
		const parts = partsOf(content);
		const text = textOf(parts.filter((part) => part.text));
		update({ draft: [state.draft, text].filter(Boolean).join("\n\n"), files: [...state.files, ...parts.filter((part) => !part.text)], dialog: null });
		focusBox();
	}, failed));
	return html`<${Form} title="Insert a prompt" act="Insert" done=${insert}>
		${prompts && !prompts.length && html`<p>There are no prompts.</p>`}
		${name && html`<label class=field>Prompt<select onChange=${({ target }) => (setAt(target.selectedIndex), setValues({}), setFault())}>${prompts.map((each) => html`<option>${each.title || each.name}<//>`)}<//><//>
			<p class=dim>${description}</p>
			${(wanted || []).map((each) => html`<label class=field key=${at + each.name}>${each.name}<input required=${each.required} placeholder=${each.description}
				onInput=${({ target: { value } }) => setValues((all) => { const { [each.name]: _, ...rest } = all; return value ? { ...rest, [each.name]: value } : rest; })} /><//>`)}`}
		${fault && html`<p class="hint bad" role=alert>${fault}</p>`}<//>`;
}

const DIALOGS = { prompts: Prompts, context: Context, fork: Fork, edit: Edit, case: CaseDialog, test: TestDialog, keys: Keys, rename: Rename, delete: Delete, close: Close, watch: Watch, token: Token };

export function Dialog() {
	const { dialog } = state;
	const Made = dialog && DIALOGS[dialog.kind];
	return Made ? html`<${Made} ...${dialog} key=${dialog.kind} />` : null;
}
