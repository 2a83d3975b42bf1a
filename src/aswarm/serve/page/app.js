// The page as a whole: the list of conversations, the frame, the keys.

import { Chat, focusBox } from "./chat.js";
import { Dialog, TokenForm } from "./dialogs.js";
import { Panels } from "./panels.js";
import { activeRun, begin, go, href, onDraw, setPanel, setTheme, state, stop, update } from "./state.js";
import { ago, plural } from "./text.js";
import { html, render } from "./vendor/htm-preact.js";

const THEMES = { auto: "as the system", light: "light", dark: "dark" };
const nextTheme = () => setTheme({ auto: "light", light: "dark", dark: "auto" }[state.theme] || "auto");
const dialog = (kind, more) => update({ dialog: { kind, ...more } });
const Icon = ({ d }) => html`<svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true" class="line"><path d=${d} /></svg>`;
const ICONS = {
  auto: "M10 3a7 7 0 1 0 0 14zM10 3a7 7 0 0 1 0 14", light: "M10 6.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7M10 1.5v2M10 16.5v2M1.5 10h2M16.5 10h2M4 4l1.4 1.4M14.6 14.6 16 16M16 4l-1.4 1.4M5.4 14.6 4 16",
  dark: "M16.5 12A7 7 0 0 1 8 3.5a7 7 0 1 0 8.5 8.5z", watch: "M1.5 10S4.5 4.5 10 4.5 18.5 10 18.5 10 15.5 15.5 10 15.5 1.5 10 1.5 10zM10 7.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5",
  keys: "M2.5 5.5h15v9h-15zM5.5 8.5h.01M8.5 8.5h.01M11.5 8.5h.01M14.5 8.5h.01M6.5 11.5h7", plus: "M10 4v12M4 10h12",
  fork: "M5 3v14M5 12c0-4 10-2 10-7M12.5 6 15 3.5 17.5 6",
};

function Chats() {
  const running = new Set(state.runs.filter((run) => run.status === "running").map((run) => run.conversation));
  return html`<nav class="chats" aria-label="Conversations">
    <button class="new" onClick=${() => (go(null), requestAnimationFrame(focusBox))}><${Icon} d=${ICONS.plus} /> New conversation</button>
    <ul>${state.conversations.map((each) => html`<li class=${each.id === state.id ? "current" : ""} key=${each.id}>
      <a href=${href(each.id)} aria-current=${each.id === state.id ? "page" : undefined}>
        <b>${state.forks[each.id] && html`<span class="branch"><span class="sr">Fork of </span><svg viewBox="0 0 20 20" width="14" height="14" aria-hidden="true" class="line"><path d=${ICONS.fork} /></svg></span>`}${state.titles[each.id] || each.id}</b>
        <small>${running.has(each.id) ? html`<i class="pulse" aria-hidden="true"></i>running` : each.stop === "waiting" ? html`<i class="waits">waits for you</i>` : ago(each.updated)}
          <span>${plural(each.length, "message")}</span></small></a>
      <button class="icon" aria-label=${`Delete ${state.titles[each.id] || each.id}`} onClick=${() => dialog("delete", { id: each.id })}>✕</button></li>`)}</ul>
    ${!state.conversations.length && html`<p class="empty">No conversations yet.</p>`}
  </nav>`;
}

function App() {
  const run = activeRun();
  const title = state.only ? `Run ${state.only.slice(0, 8)}` : state.id === null ? "New conversation" : state.titles[state.id] || state.id;
  document.title = `${run ? "● " : ""}${title} · aswarm`;
  const lost = state.connection === "reconnecting" && run;
  return html`<a class="skip" href="#box" onClick=${(event) => (event.preventDefault(), focusBox())}>Write a message</a>
    <header class="top"><a class="brand" href="#/"><img src=${new URL("page/icon.svg", document.baseURI).href} width="22" height="22" alt="" /> aswarm</a>
      <h1>${title}</h1>
      ${lost && html`<span class="connection">Connecting again…</span>`}
      <span class="grow"></span>
      <button class="icon" aria-label="Watch a run" title="Watch a run (w)" onClick=${() => dialog("watch")}><${Icon} d=${ICONS.watch} /></button>
      <button class="icon" aria-label=${`Colours: ${THEMES[state.theme]}`} title="Colours (t)" onClick=${nextTheme}><${Icon} d=${ICONS[state.theme]} /></button>
      <button class="icon" aria-label="Keys" title="Keys (?)" onClick=${() => dialog("keys")}><${Icon} d=${ICONS.keys} /></button></header>
    ${state.needsToken ? html`<${TokenForm} />` : html`<div class="frame" data-place=${state.place}><${Chats} /><${Chat} /><${Panels} /></div>
    <nav class="places" aria-label="Parts of the page">${Object.entries({ chats: "Conversations", chat: "Chat", panels: "Inspect" }).map(([key, label]) => html`<button aria-pressed=${state.place === key}
      onClick=${() => update({ place: key })}>${label}</button>`)}</nav>`}
    <div class="sr" role="status" aria-live="polite">${lost ? "The connection was lost. Connecting again." : state.said}</div>
    <${Dialog} />`;
}

// --- keys ---

function move(step) {
  const items = [...document.querySelectorAll(".log [data-item]")];
  const now = items.findIndex((item) => item.contains(document.activeElement));
  const next = items[now < 0 ? (step > 0 ? 0 : items.length - 1) : Math.min(Math.max(now + step, 0), items.length - 1)];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function press(text) {
  const item = document.activeElement?.closest("[data-item]");
  [...(item?.querySelectorAll(".actions button") || [])].find((button) => button.textContent.startsWith(text))?.click();
}

const PANEL_KEYS = ["timeline", "context", "requests", "tokens", "graph", "messages"];
const ACTIONS = {
  "/": focusBox, n: () => (go(null), requestAnimationFrame(focusBox)), ".": stop, j: () => move(1), k: () => move(-1), f: () => press("Fork"), e: () => press("Edit"),
  w: () => dialog("watch"), t: nextTheme, "?": () => dialog("keys"),
};

addEventListener("keydown", (event) => {
  const isWriting = event.target.closest?.("input, textarea, select, dialog");
  if (event.key === "Escape" && !state.dialog) document.activeElement.blur();
  if (isWriting || event.ctrlKey || event.metaKey || event.altKey) return;
  const panel = PANEL_KEYS[Number(event.key) - 1];
  const action = panel ? () => setPanel(panel) : ACTIONS[event.key];
  if (action) event.preventDefault(), action();
});

const root = document.getElementById("root");
onDraw(() => render(html`<${App} />`, root));
setInterval(() => activeRun() && update(), 250); // times that go on
update();
begin();
