// A turn as an eval case, and texts for the clipboard.

import { parsed } from "./text.js";


const ADDED = ["sender", "tool_name", "reasoning_content", "reasoning"];

const plain = (message) => Object.fromEntries(Object.entries(message).filter(([key, value]) => !ADDED.includes(key) && value !== null));

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

// --- to the user ---

export function download(name, text) {
	const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([text])), download: name });
	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Without HTTPS there is no clipboard: the text is selected.
export async function copy(text, field) {
	try {
		await navigator.clipboard.writeText(text);
		return true;
	} catch {
		field.select();
		return document.execCommand("copy");
	}
}
