// Plays conversations with the clients of npm: node chats.mjs FOLDER CHATS.json. Each request is answered with the next of
// `answers`. Prints the bodies of the requests and what the client has at the end.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, file] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const load = async (name) => await import(pathToFileURL(require.resolve(name)).href);
const chats = JSON.parse(readFileSync(file, "utf-8"));
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

const server = (answers) => {
  const bodies = [];
  const left = [...answers];
  const fetch = async (_, options) => {
    bodies.push(JSON.parse(options.body));
    const body = left.shift();
    if (body === undefined) return new Response("no more answers", { status: 500 });
    return new Response(body, { headers: { "content-type": "text/event-stream" } });
  };
  return { bodies, fetch };
};

const settled = async (chat) => {
  for (let quiet = 0; quiet < 5; ) {
    await pause(10);
    quiet = chat.status === "ready" || chat.status === "error" ? quiet + 1 : 0;
  }
};

const playVercel = async (name, { answers, approve, output }) => {
  const { AbstractChat, DefaultChatTransport, ...ai } = await load(name);
  class State {
    status = "ready";
    error = undefined;
    messages = [];
    pushMessage = (message) => { this.messages = [...this.messages, message]; };
    popMessage = () => { this.messages = this.messages.slice(0, -1); };
    replaceMessage = (at, message) => { this.messages = this.messages.map((each, index) => (index === at ? message : each)); };
    snapshot = (value) => structuredClone(value);
  }
  class Chat extends AbstractChat {
    constructor(init) { super({ ...init, state: new State() }); }
  }
  const { bodies, fetch } = server(answers);
  const asked = [];
  const chat = new Chat({
    transport: new DefaultChatTransport({ api: "http://chat.test/", fetch }),
    sendAutomaticallyWhen: (options) =>
      ai.lastAssistantMessageIsCompleteWithToolCalls(options) || ai.lastAssistantMessageIsCompleteWithApprovalResponses(options),
    onToolCall: ({ toolCall }) => { asked.push(toolCall.toolCallId); },
  });
  await chat.sendMessage({ text: "Go" });
  await settled(chat);
  for (const part of chat.lastMessage.parts) {
    if (part.state === "approval-requested") await chat.addToolApprovalResponse({ id: part.approval.id, approved: approve });
  }
  for (const toolCallId of asked) await chat.addToolOutput({ tool: "page_open", toolCallId, output });
  await settled(chat);
  return { bodies, asked, status: chat.status, error: chat.error?.message, messages: chat.messages };
};

const playAgui = async ({ answers, payload, output }) => {
  const { HttpAgent } = await load("@ag-ui/client");
  const { bodies, fetch } = server(answers);
  globalThis.fetch = fetch;
  const agent = new HttpAgent({ url: "http://chat.test/", threadId: "chat" });
  agent.addMessage({ id: "u1", role: "user", content: "Go" });
  const pending = [];
  const subscriber = { onRunFinishedEvent: (given) => { pending.push(...(given.pendingToolCallIds ?? [])); } };
  await agent.runAgent({}, subscriber);
  const interrupts = agent.pendingInterrupts ?? [];
  const called = [...pending];
  if (interrupts.length) {
    await agent.runAgent({ resume: interrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload })) }, subscriber);
  } else if (called.length) {
    called.forEach((id) => agent.addMessage({ id: `t-${id}`, role: "tool", toolCallId: id, content: output }));
    await agent.runAgent({}, subscriber);
  }
  return { bodies, interrupts, pending: called, messages: agent.messages };
};

const found = [];
for (const chat of chats) {
  found.push(chat.client === "agui" ? await playAgui(chat) : await playVercel(chat.client, chat));
}
console.log(JSON.stringify(found));
process.exit(0);
