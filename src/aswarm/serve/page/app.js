// The whole page, and its keys.

import { Chat, focusBox } from "./chat.js";
import { Dialog } from "./dialogs.js";
import { Panels, PANELS } from "./panels.js";
import { activeRun, dialog, go, href, init, onDraw, refresh, setPanel, setTheme, state, stop, update } from "./state.js";
import { ago, plural } from "./text.js";
import { html, render, useEffect } from "./vendor/htm-preact.js";

const nextTheme = () => setTheme({ auto: "light", light: "dark" }[state.theme] || "auto");
const newChat = () => (go(null), requestAnimationFrame(focusBox));

function Chats() {
	const running = new Set(state.runs.filter((run) => run.status === "running").map((run) => run.conversation));
	return html`<nav class=chats aria-label=Conversations>
		<button class=new onClick=${newChat}>+ New conversation<//>
		<input type=search aria-label="Search the conversations" placeholder="Search" value=${state.search} onInput=${(event) => (update({ search: event.target.value }), refresh())} />
		<ul>${state.conversations.map((each) => html`<li class=${each.id === state.id ? "current" : ""} key=${each.id}>
			<a href=${href(each.id)} aria-current=${each.id === state.id ? "page" : undefined}>
				<b>${state.titles[each.id] || each.id}</b>
				<small>${running.has(each.id) ? html`<i class=pulse aria-hidden=true></i>running` : each.stop === "waiting" ? html`<i class=waits>waits for you</i>` : ago(each.updated)}
					<span>${state.forks[each.id] ? "fork · " : ""}${plural(each.length, "message")}<//><//></a>
			<button class=icon aria-label=${`Delete ${state.titles[each.id] || each.id}`} onClick=${() => dialog("delete", { id: each.id })}>✕<//><//>`)}<//>
		${!state.conversations.length && html`<p class=empty>${state.search ? "Nothing found." : "No conversations yet."}</p>`}
	<//>`;
}

// Mark the words of the search in the titles and in the open conversation.
function markFound() {
	const words = state.search.trim().replace(/\W/g, "\\$&");
	const found = [];
	for (const part of words ? document.querySelectorAll(".chats b, .log .column") : []) {
		const texts = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
		for (let node; (node = texts.nextNode()); )
			for (const { 0: text, index } of node.data.matchAll(RegExp(words, "gi")))
				found.push(new StaticRange({ startContainer: node, startOffset: index, endContainer: node, endOffset: index + text.length }));
	}
	CSS.highlights?.set("found", new Highlight(...found));
}

function App() {
	useEffect(markFound);
	const run = activeRun();
	const title = state.only ? `Run ${state.only.slice(0, 8)}` : state.id === null ? "New conversation" : state.titles[state.id] || state.id;
	document.title = `${run ? "● " : ""}${title} · aswarm`;
	const lost = state.connection === "reconnecting" && "Reconnecting…";
	return html`<a class=skip href="#box" onClick=${(event) => (event.preventDefault(), focusBox())}>Write a message</a>
		<header class=top><a class=brand href="#/"><img src=${new URL("page/icon.svg", document.baseURI).href} width=22 height=22 alt="" /> aswarm</a>
			<h1 title=${title}>${title}<//>
			${state.id !== null && html`<button class=icon aria-label="Rename the conversation" onClick=${() => dialog("rename", { id: state.id })}>✎<//>`}
			${lost && html`<span class=connection>${lost}<//>`}
			<span class=grow><//>
			<button class=bare aria-label="Watch a run" onClick=${() => dialog("watch")}>Watch<//>
			<button class=bare aria-label=${`Colours: ${state.theme}`} onClick=${nextTheme}>${state.theme}<//>
			<button class=bare onClick=${() => dialog("keys")}>Keys<//><//>
		<div class=frame data-place=${state.place}><${Chats} /><${Chat} /><${Panels} /><//>
		<nav class=places aria-label="Parts of the page">${Object.entries({ chats: "Conversations", chat: "Chat", panels: "Inspect" }).map(([key, label]) => html`<button aria-pressed=${state.place === key}
			onClick=${() => update({ place: key })}>${label}<//>`)}<//>
		<div class=sr role=status aria-live=polite>${lost || state.spoken}<//>
		<${Dialog} />`;
}

function move(step) {
	const items = [...document.querySelectorAll(".log [data-item]")];
	const now = items.findIndex((item) => item.contains(document.activeElement));
	const next = items[Math.min(Math.max(now < 0 && step < 0 ? items.length : now + step, 0), items.length - 1)];
	next?.focus();
	next?.scrollIntoView({ block: "nearest" });
}

function press(text) {
	const item = document.activeElement?.closest("[data-item]");
	[...(item?.querySelectorAll(".actions button") || [])].find((button) => button.textContent.startsWith(text))?.click();
}

const ACTIONS = {
	"/": focusBox, n: newChat, ".": stop, j: () => move(1), k: () => move(-1), f: () => press("Fork"), e: () => press("Edit"),
	w: () => dialog("watch"), t: nextTheme, "?": () => dialog("keys"),
};

addEventListener("keydown", (event) => {
	const { target } = event;
	const isWriting = target.closest("input, textarea, select, dialog") || document.querySelector(".decision .field");
	const back = (target.closest(".decision") || document).querySelector(".back");
	if (event.key === "Escape" && !state.dialog && !event.isComposing) back && target.id !== "box" ? back.click() : document.activeElement.blur();
	if (isWriting || event.ctrlKey || event.metaKey || event.altKey) return;
	const panel = Object.keys(PANELS)[event.key - 1];
	const action = panel ? () => setPanel(panel) : ACTIONS[event.key];
	if (action) event.preventDefault(), action();
});

const root = document.getElementById("root");
onDraw(() => render(html`<${App} />`, root));
setInterval(() => activeRun() && update(), 250); // running times
update();
init();
