// Times, tokens, JSON and Markdown. Text never becomes HTML.

import { imagesOf, textOf } from "./fold.js";
import { html } from "./vendor/htm-preact.js";

export function duration(milliseconds) {
	const ms = Math.max(0, milliseconds);
	if (ms < 1000) return `${Math.round(ms)} ms`;
	if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
	return `${Math.floor(ms / 60_000)} min ${String(Math.floor((ms % 60_000) / 1000)).padStart(2, "0")} s`;
}

export const count = (number) => Number(number || 0).toLocaleString("en");
export const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
export const clock = (at) => new Date(at).toLocaleTimeString();

export function ago(seconds) {
	const left = Date.now() / 1000 - seconds;
	if (left < 60) return "just now";
	if (left < 3600) return `${Math.floor(left / 60)} min ago`;
	if (left < 86_400) return `${Math.floor(left / 3600)} h ago`;
	return new Date(seconds * 1000).toLocaleDateString();
}

export function tried(make) {
	try {
		return make();
	} catch {
		return undefined;
	}
}

export const parsed = (text) => tried(() => JSON.parse(text));
export const isObject = (value) => Object(value) === value && !Array.isArray(value);

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)/g;

function coloured(text) {
	const parts = [];
	let end = 0;
	for (const match of text.matchAll(TOKEN)) {
		parts.push(text.slice(end, match.index));
		const kind = match[1] ? (match[2] ? "k" : "s") : match[3] ? "b" : "n";
		parts.push(html`<span class=${kind}>${match[1] || match[0]}<//>`, match[2] || "");
		end = match.index + match[0].length;
	}
	return [...parts, text.slice(end)];
}

// On one line if it is short.
export function Json({ value, label }) {
	const text = JSON.stringify(value, null, 2) ?? "";
	return html`<pre class=json tabindex=0 role=group aria-label=${label}>${coloured(text.length < 80 ? text.replace(/\n\s*/g, " ") : text)}<//>`;
}

// A text that may be JSON. Colours for a long text would take long.
export function Payload({ text, label }) {
	const value = text.length < 1e5 && /^\s*[[{]/.test(text) ? parsed(text) : undefined;
	return value === undefined ? html`<pre class=json tabindex=0 role=group aria-label=${label}>${text}<//>` : html`<${Json} value=${value} label=${label} />`;
}

export const Images = ({ content }) => imagesOf(content).map((part) => html`<img class=picture src=${part.image_url.url} alt=Image />`);

export const Content = ({ content, label }) => html`${textOf(content) && html`<${Payload} text=${textOf(content)} label=${label} />`}<${Images} content=${content} />`;

const INLINE = /(`+)(.+?)\1|\*\*(.+?)\*\*|__(.+?)__|\*([^\s*](?:.*?[^\s*])?)\*|!?\[([^\]]*)\]\(((?:https?:\/\/|data:image\/)[^\s)]+)\)|(https?:\/\/[^\s<>)\]]+)/g;

function inline(text) {
	const parts = [];
	let end = 0;
	for (const match of text.matchAll(INLINE)) {
		parts.push(text.slice(end, match.index));
		const [whole, , code, bold, bold2, italic, label, href, bare] = match;
		if (code) parts.push(html`<code>${code}<//>`);
		else if (bold || bold2) parts.push(html`<strong>${inline(bold || bold2)}<//>`);
		else if (italic) parts.push(html`<em>${inline(italic)}<//>`);
		else if (href?.startsWith("data:")) parts.push(html`<img class=picture src=${href} alt=${label} />`);
		else parts.push(html`<a href=${href || bare} target=_blank rel="noopener noreferrer">${label || href || bare}</a>`);
		end = match.index + whole.length;
	}
	return [...parts, text.slice(end)];
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => inline(cell.trim()));
const BREAK = /^(```|#{1,6} |\s*[-*+] |\s*\d+[.)] |> |\|)/;

export function Markdown({ text }) {
	const lines = text.split("\n");
	const blocks = [];
	for (let at = 0; at < lines.length; ) {
		const line = lines[at];
		let match;
		if (!line.trim()) at++;
		else if (line.startsWith("```")) {
			const stop = lines.findIndex((each, index) => index > at && each.startsWith("```"));
			const end = stop < 0 ? lines.length : stop;
			blocks.push(html`<pre class=code tabindex=0><code>${lines.slice(at + 1, end).join("\n")}<//><//>`);
			at = end + 1;
		} else if ((match = /^(#{1,6}) (.*)/.exec(line))) {
			blocks.push(html`<p class=heading>${inline(match[2])}</p>`);
			at++;
		} else if (/^\|/.test(line) && /^\|[\s:|-]+$/.test(lines[at + 1] || "")) {
			const rows = [];
			let next = at + 2;
			while (next < lines.length && /^\|/.test(lines[next])) rows.push(cells(lines[next++]));
			blocks.push(html`<div class=scroll><table><thead><tr>${cells(line).map((cell) => html`<th scope=col>${cell}<//>`)}<//><//>
				<tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}<//>`)}<//>`)}<//><//><//>`);
			at = next;
		} else if (/^\s*([-*+]|\d+[.)]) /.test(line)) {
			const ordered = /^\s*\d/.test(line);
			const start = ordered ? parseInt(line, 10) : undefined;
			const items = [];
			while (at < lines.length && (match = /^(\s*)(?:[-*+]|\d+[.)]) (.*)/.exec(lines[at])) && /^\s*\d/.test(lines[at]) === ordered) {
				items.push(html`<li class=${match[1].length > 1 ? "deep" : ""}>${inline(match[2])}<//>`);
				at++;
			}
			blocks.push(ordered ? html`<ol start=${start}>${items}<//>` : html`<ul>${items}<//>`);
		} else if (line.startsWith("> ")) {
			const quoted = [];
			while (at < lines.length && lines[at].startsWith(">")) quoted.push(lines[at++].replace(/^> ?/, ""));
			blocks.push(html`<blockquote>${inline(quoted.join("\n"))}<//>`);
		} else {
			const paragraph = [lines[at++]];
			while (at < lines.length && lines[at].trim() && !BREAK.test(lines[at])) paragraph.push(lines[at++]);
			blocks.push(html`<p>${inline(paragraph.join("\n"))}</p>`);
		}
	}
	return html`<div class=prose>${blocks}<//>`;
}

// The lines of two texts as [" " | "-" | "+", line].
export function difference(a, b) {
	let start = 0;
	let end = 0;
	while (start < a.length && a[start] === b[start]) start++;
	while (end < Math.min(a.length, b.length) - start && a.at(-1 - end) === b.at(-1 - end)) end++;
	const mark = (sign, lines) => lines.map((line) => [sign, line]);
	return [
		...mark(" ", a.slice(0, start)), ...mark("-", a.slice(start, a.length - end)), ...mark("+", b.slice(start, b.length - end)),
		...mark(" ", b.slice(b.length - end)),
	];
}
