// `HttpAgent` of @ag-ui/client against a service: node live_agui.mjs FOLDER URL SCENE. Prints "go" where the test is to
// let the server go on, and what the client has at the end.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, url, scene] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { HttpAgent, runHttpRequest, transformHttpEventStream } = await import(
  pathToFileURL(require.resolve("@ag-ui/client")).href
);
const headers = { authorization: "Bearer token-of-ann" };

class Agent extends HttpAgent {
  connect(input) {
    const place = `${url}/agui/Boss/${input.threadId}/events`;
    return transformHttpEventStream(runHttpRequest(() => this.fetch(place, { headers: this.headers })));
  }
}

const made = (threadId = "t") => new Agent({ url: `${url}/agui/Boss`, threadId, headers });
const say = (agent, text) => agent.addMessage({ id: text, role: "user", content: text });

// Collects what a subscriber is told.
const watcher = (onEvent = () => {}) => {
  const seen = { events: [], finished: null, error: null, failed: null };
  return {
    seen,
    onEvent: ({ event }) => {
      seen.events.push(event.type);
      onEvent(event);
    },
    onRunFinishedEvent: ({ event, pendingToolCallIds }) => {
      seen.finished = { ...event, pending: pendingToolCallIds ?? [] };
    },
    onRunErrorEvent: ({ event }) => { seen.error = event; },
    onRunFailed: ({ error }) => { seen.failed = { message: error.message, status: error.status, payload: error.payload }; },
  };
};

const result = (agent, ...watchers) => ({ messages: agent.messages, state: agent.state, runs: watchers.map((each) => each.seen) });

const run = async (agent, watcher, parameters = {}) => {
  try {
    await agent.runAgent(parameters, watcher);
  } catch (error) {
    watcher.seen.failed ??= { message: error.message, status: error.status, payload: error.payload };
  }
};

const scenes = {
  async whole() {
    const agent = made(), first = watcher(), second = watcher();
    say(agent, "Go");
    await run(agent, first);
    say(agent, "And now?");
    await run(agent, second);
    return result(agent, first, second);
  },

  // Aborts while a function runs; a fresh agent reads the run from its start, and to its end.
  async reattach() {
    const first = made();
    say(first, "Go");
    const left = watcher((event) => {
      if (event.type === "CUSTOM" && event.name === "aswarm.tool_started") first.abortRun();
    });
    await run(first, left);
    const second = made();
    let asked = false;
    const taken = watcher((event) => {
      if (event.type === "CUSTOM" && event.name === "aswarm.tool_started" && !asked) {
        asked = true;
        console.log("go");
      }
    });
    await second.connectAgent({}, taken);
    return result(second, left, taken);
  },

  async interrupt() {
    const agent = made(), first = watcher(), blocked = watcher(), second = watcher(), replayed = watcher();
    say(agent, "Erase it.");
    await run(agent, first);
    await run(agent, blocked);
    const resume = agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload: { approved: true, editedArgs: { name: "copy" } } }));
    await run(agent, second, { resume });
    const after = made();
    await after.connectAgent({}, replayed);
    return { ...result(agent, first, blocked, second, replayed), open: after.pendingInterrupts ?? [] };
  },
};

console.log(JSON.stringify(await scenes[scene]()));
process.exit(0);
