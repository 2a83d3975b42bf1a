// A chat with `useChat`. The id in the address names the conversation: a reload during an answer continues it.
import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { useState } from "react";
import { createRoot } from "react-dom/client";

location.hash ||= crypto.randomUUID();
const id = location.hash.slice(1);
const api = "agents/chat/Gardener";

// The stored messages, in the form of `useChat`. `resume` reads an active run from its start, so it is left out here.
async function kept() {
  const answer = await fetch(`agents/conversations/${id}`);
  if (!answer.ok) return [];
  let { messages, active_run, waiting } = await answer.json();
  if (active_run) messages = messages.slice(0, messages.findLastIndex(({ role }) => role === "user") + 1);
  const shown = messages
    .filter(({ role, content }) => role !== "tool" && content)
    .map(({ role, content }, index) => ({ id: `kept-${index}`, role, parts: [{ type: "text", text: content }] }));
  const asked = active_run ? [] : waiting.filter(({ kind }) => kind === "approval");
  if (!asked.length) return shown;
  const { runs: [last] } = await (await fetch(`agents/runs?conversation=${id}`)).json();
  return [...shown, { id: "waiting", role: "assistant", parts: asked.map((call) => open(call, last.id)) }];
}

// A call that waits for an approval, in the form of `useChat`. The approval contains the id of the waiting run.
const open = ({ call_id: toolCallId, name: toolName, arguments: given }, run) => {
  const approval = { id: `${run}/${toolCallId}` };
  return { type: "dynamic-tool", toolCallId, toolName, input: JSON.parse(given), state: "approval-requested", approval };
};

function Part({ part, decide }) {
  if (part.type === "text") return <p>{part.text}</p>;
  if (part.type !== "dynamic-tool") return null;
  const asks = part.state === "approval-requested";
  return (
    <p className="call">
      {part.toolName}({JSON.stringify(part.input)}) {part.output ?? part.errorText ?? part.state}{" "}
      {asks && <button onClick={() => decide(part.approval.id, true)}>Approve</button>}{" "}
      {asks && <button onClick={() => decide(part.approval.id, false)}>Deny</button>}
    </p>
  );
}

function Chat({ messages: before }) {
  const [text, setText] = useState("");
  const { messages, sendMessage, addToolApprovalResponse, status, error } = useChat({
    id,
    messages: before,
    resume: true,
    transport: new DefaultChatTransport({ api }),
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  });
  const busy = status === "submitted" || status === "streaming";
  const decide = (approval, approved) => addToolApprovalResponse({ id: approval, approved });
  // `stop()` of useChat only stops the reading; this stops the run.
  async function stop() {
    const { active_run: run } = await (await fetch(`agents/conversations/${id}`)).json();
    if (run) await fetch(`agents/runs/${run}/cancel`, { method: "POST" });
  }
  function send(event) {
    event.preventDefault();
    sendMessage({ text });
    setText("");
  }
  return (
    <>
      {messages.map((message) => (
        <div key={message.id} className={message.role}>
          {message.parts.map((part, index) => <Part key={index} part={part} decide={decide} />)}
        </div>
      ))}
      {error && <p role="alert">{error.message}</p>}
      <form onSubmit={send}>
        <input value={text} onChange={(event) => setText(event.target.value)} aria-label="Message" required autoFocus />
        <button disabled={busy}>Send</button>
        <button type="button" disabled={!busy} onClick={stop}>Stop</button>
      </form>
    </>
  );
}

createRoot(document.querySelector("#chat")).render(<Chat messages={await kept()} />);
