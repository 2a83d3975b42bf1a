// `AbstractChat` over `DefaultChatTransport` of `ai` against a service: node live_vercel.mjs FOLDER URL SCENE PACKAGE. Prints
// "go" where the test is to let the server go on, and what the client has at the end.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, url, scene, name] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const ai = await import(pathToFileURL(require.resolve(name)).href);
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => { this.messages = [...this.messages, message]; };
  popMessage = () => { this.messages = this.messages.slice(0, -1); };
  replaceMessage = (at, message) => { this.messages = this.messages.map((each, index) => (index === at ? message : each)); };
  snapshot = (value) => structuredClone(value);
}

class Chat extends ai.AbstractChat {
  // `seen`: the requests with the status of their answers, the calls that this page was asked for, and how answers ended.
  constructor(id = "v") {
    const seen = { requests: [], asked: [], ends: [] };
    const fetch = async (place, options = {}) => {
      const answer = await globalThis.fetch(place, options);
      seen.requests.push({ method: options.method ?? "GET", status: answer.status });
      return answer;
    };
    const headers = { authorization: "Bearer token-of-ann" };
    super({
      id,
      state: new State(),
      transport: new ai.DefaultChatTransport({ api: `${url}/chat/Boss`, headers, fetch }),
      sendAutomaticallyWhen: (options) =>
        ai.lastAssistantMessageIsCompleteWithToolCalls(options) || ai.lastAssistantMessageIsCompleteWithApprovalResponses(options),
      onToolCall: ({ toolCall }) => { seen.asked.push(toolCall); },
      onFinish: ({ finishReason, isAbort, isDisconnect, isError }) => {
        seen.ends.push({ finishReason, isAbort, isDisconnect, isError });
      },
    });
    this.seen = seen;
  }

  // Waits until the client sends nothing more.
  async settled() {
    for (let quiet = 0; quiet < 10; ) {
      await pause(20);
      quiet = this.status === "ready" || this.status === "error" ? quiet + 1 : 0;
    }
  }

  has(state) {
    return this.messages.some((message) => message.parts.some((part) => part.state === state));
  }

  get result() {
    return { ...this.seen, status: this.status, error: this.error?.message, messages: this.messages };
  }
}

const scenes = {
  async whole() {
    const chat = new Chat();
    await chat.sendMessage({ text: "Go" });
    await chat.settled();
    return { chats: [chat.result] };
  },

  // The page is loaded again while a function runs: a chat with the same id takes the run over. After the end there is none.
  async resume() {
    const first = new Chat(), second = new Chat(), third = new Chat();
    const sent = first.sendMessage({ text: "Go" });
    while (!first.has("input-available")) await pause(5);
    await first.stop();
    await sent;
    const resumed = second.resumeStream();
    while (!second.has("input-available")) await pause(5);
    console.log("go");
    await resumed;
    await third.resumeStream();
    return { chats: [first.result, second.result, third.result] };
  },

  async approve() {
    const chat = new Chat();
    await chat.sendMessage({ text: "Erase it." });
    await chat.settled();
    for (const part of chat.lastMessage.parts) {
      if (part.state === "approval-requested") await chat.addToolApprovalResponse({ id: part.approval.id, approved: true });
    }
    await chat.settled();
    return { chats: [chat.result] };
  },

  // The page answers each call of its own once.
  async own() {
    const chat = new Chat();
    await chat.sendMessage({ text: "Go" });
    await chat.settled();
    for (const { toolName, toolCallId } of [...chat.seen.asked]) {
      await chat.addToolOutput({ tool: toolName, toolCallId, output: { title: "Home" } });
    }
    await chat.settled();
    return { chats: [chat.result] };
  },
};

console.log(JSON.stringify(await scenes[scene]()));
process.exit(0);
