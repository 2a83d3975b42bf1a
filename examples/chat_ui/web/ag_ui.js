// A chat with AG-UI's own client, and no framework. `connect` reads the last run of the thread from its start.
import { HttpAgent, runHttpRequest, transformHttpEventStream } from "@ag-ui/client";

class Agent extends HttpAgent {
  connect({ threadId }) {
    return transformHttpEventStream(runHttpRequest(() => fetch(`${this.url}/${threadId}/events`)));
  }
}

location.hash ||= crypto.randomUUID();
const agent = new Agent({ url: "agents/agui/Gardener", threadId: location.hash.slice(1) });

const chat = document.querySelector("#chat");
chat.innerHTML = `
  <div id="log" aria-live="polite"></div>
  <form><input name="text" aria-label="Message" required autofocus><button>Send</button></form>`;
const form = chat.querySelector("form"), log = chat.querySelector("#log");

function line(kind, text, ...more) {
  const paragraph = document.createElement("p");
  paragraph.className = kind;
  paragraph.textContent = text; // never innerHTML: the text of a model is data
  paragraph.append(...more);
  log.append(paragraph);
}

function button(text, onclick) {
  return Object.assign(document.createElement("button"), { textContent: text, onclick });
}

function show() {
  log.replaceChildren();
  for (const { role, content, toolCalls = [] } of agent.messages) {
    if (content) line(role === "tool" ? "call" : role, content);
    for (const { function: { name, arguments: given } } of toolCalls) line("call", `${name}(${given})`);
  }
  for (const { id, message } of agent.pendingInterrupts ?? []) {
    const decide = (approved) => run({ resume: [{ interruptId: id, status: "resolved", payload: { approved } }] });
    line("call", message, " ", button("Approve", () => decide(true)), " ", button("Deny", () => decide(false)));
  }
  if (agent.state?.watered) line("call", `watered: ${agent.state.watered.join(", ")}`);
}

const subscriber = {
  onMessagesChanged: show,
  onStateChanged: show,
  onRunErrorEvent: ({ event }) => line("call", event.message),
};

async function run(parameters = {}) {
  form.querySelector("button").disabled = true;
  try {
    await agent.runAgent(parameters, subscriber);
    show();
  } catch (error) {
    line("call", error.message);
  }
  form.querySelector("button").disabled = false;
}

// The stored messages. An active or waiting run is read from its start, so its messages are left out here.
async function open() {
  const answer = await fetch(`agents/conversations/${agent.threadId}`);
  if (!answer.ok) return;
  let { messages, active_run, waiting } = await answer.json();
  const isOpen = active_run || waiting.length;
  if (isOpen) messages = messages.slice(0, messages.findLastIndex(({ role }) => role === "user") + 1);
  agent.setMessages(
    messages
      .filter(({ role, content }) => role !== "tool" && content)
      .map(({ role, content }, index) => ({ id: `kept-${index}`, role, content })),
  );
  if (isOpen) await agent.connectAgent({}, subscriber);
  show();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const content = form.text.value;
  form.reset();
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
  show();
  run();
});
open();
