// A turn as an eval case, and a run as a test with a scripted model.

import { textOf } from "./fold.js";
import { parsed } from "./text.js";

// --- Case of aswarm.evals, as JSON ---

const OWN = ["sender", "tool_name", "reasoning_content", "reasoning"];

const plain = (message) => Object.fromEntries(Object.entries(message).filter(([key, value]) => !OWN.includes(key) && value !== null));

// `expect`: "first", "all", "none" or "judge".
export function evalCase({ messages, turn, expect, withArguments, judge, name, context }) {
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

// --- Python ---

export function literal(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number") return String(value);
  if (typeof value === "string") return JSON.stringify(value).replace(/\u2028|\u2029/g, (each) => `\\u${each.charCodeAt(0).toString(16)}`);
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  return `{${Object.entries(value).map(([key, each]) => `${literal(key)}: ${literal(each)}`).join(", ")}}`;
}

const KEYWORDS = new Set(
  "False None True and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield name arguments call_id".split(" "),
);
const isName = (key) => /^[A-Za-z_][A-Za-z0-9_]*$/.test(key) && !KEYWORDS.has(key);

function scriptedCall(call) {
  const made = call.function || {};
  const values = parsed(made.arguments || "{}");
  const named = values && typeof values === "object" && !Array.isArray(values) && Object.keys(values).every(isName);
  const given = named ? Object.entries(values).map(([key, value]) => `${key}=${literal(value)}`) : [literal(made.arguments || "")];
  return `call(${[literal(made.name), ...(named ? [] : given), `call_id=${literal(call.id)}`, ...(named ? given : [])].join(", ")})`;
}

function step(message) {
  const text = textOf(message.content);
  const calls = (message.tool_calls || []).map(scriptedCall);
  if (!calls.length) return literal(text);
  if (!text) return calls.length === 1 ? calls[0] : `[${calls.join(", ")}]`;
  return `Answer(${literal(text)}, [${calls.join(", ")}])`;
}

// A decision of the log in the form that `resume=` takes.
function decision(made) {
  if (!made || typeof made !== "object") return made;
  if ("data" in made) return { answer: made.data };
  if ("arguments" in made) return made.arguments ? { approve: { arguments: made.arguments } } : true;
  return "reason" in made ? (made.reason ? { deny: made.reason } : false) : made;
}

const decisions = (made) => (typeof made === "object" ? Object.fromEntries(Object.entries(made).map(([key, each]) => [key, decision(each)])) : true);

const slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "_").replace(/^_|_$/g, "").slice(0, 40).replace(/_$/, "") || "this_run";

// `history`: the messages before the run.
export function asTest(view, history) {
  const answers = view.response.messages.filter((message) => message.role === "assistant");
  const text = textOf(view.asked.find((message) => message.role === "user")?.content || "");
  const input = [...history, ...view.asked].map(plain);
  const context = Object.keys(view.first).length ? `, context_variables=${literal(view.first)}` : "";
  const resume = view.turns[0]?.resumed ? `, resume=${literal(decisions(view.turns[0].decisions || true))}` : "";
  const calls = answers.flatMap((message) => (message.tool_calls || []).map((call) => call.function?.name));
  const variable = slug(view.agentBefore || "agent");
  const steps = answers.map((message) => `            ${step(message)},`).join("\n");
  const needsAnswer = steps.includes(" Answer(");
  return `import pytest
from aswarm import AsyncSwarm
from aswarm.testing import ${[needsAnswer && "Answer", "ScriptedModel", calls.length && "call", "check_history"].filter(Boolean).join(", ")}

from my_agents import ${variable}  # the agent ${literal(view.agentBefore || "")}


@pytest.mark.anyio
async def test_${slug(text)}():
    model = ScriptedModel(
        [
${steps}
        ]
    )
    messages = [
${input.map((message) => `        ${literal(message)},`).join("\n")}
    ]
    async with AsyncSwarm(client=model.client()) as swarm:
        response = await swarm.run(${variable}, messages${context}${resume})
    called = [call["function"]["name"] for message in response.messages for call in message.get("tool_calls") or ()]
    assert called == ${literal(calls)}
    assert response.agent.name == ${literal(view.agent || "")}
    assert response.text == ${literal(view.response.text)}
    check_history([*messages, *response.messages]${view.waiting.length ? ", allow_open=True" : ""})
`;
}

// --- to the user ---

export function download(name, text) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([text])), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// The clipboard API is for pages that are local or encrypted; elsewhere the text is selected, to be copied by hand.
export async function copy(text, field) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    field?.focus();
    field?.select();
    return Boolean(document.execCommand?.("copy"));
  }
}
