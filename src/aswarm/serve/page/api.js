// Requests, and the reader of a run's log, which reconnects.

import { ENDINGS } from "./fold.js";

const BASE = new URL(".", document.baseURI);
const SILENCE = 40_000; // more than the service's time between heartbeats
export const token = {
	get: () => sessionStorage.getItem("aswarm.token") || "",
	set: (value) => sessionStorage.setItem("aswarm.token", value),
};

export class ApiError extends Error {
	constructor(status, error) {
		super(error.message || `the service answered ${status}`);
		this.status = status;
		this.code = error.code;
		this.run = error.run;
	}
}

// The service's clock minus this computer's, in milliseconds.
let skew = null;
export const serverNow = () => Date.now() + (skew ?? 0);
export function noteTime(at) {
	if (skew === null || at - Date.now() > skew) skew = at - Date.now();
}

export const url = (path) => new URL(path, BASE);

async function request(path, options = {}) {
	const headers = { ...options.headers };
	if (token.get()) headers.authorization = `Bearer ${token.get()}`;
	const response = await fetch(url(path), { ...options, headers, cache: "no-store" });
	const date = Date.parse(response.headers.get("date"));
	if (date) noteTime(date);
	if (response.ok) return response;
	let error = {};
	try {
		error = (await response.json()).error || {};
	} catch {
		// not JSON: the answer of a proxy
	}
	throw new ApiError(response.status, error);
}

export const get = async (path) => (await request(path)).json();

export const pause = (milliseconds, signal) =>
	new Promise((resolve) => {
		const ended = new AbortController();
		const now = () => (clearTimeout(timer), ended.abort(), resolve());
		const timer = setTimeout(now, milliseconds);
		for (const name of ["online", "focus"]) addEventListener(name, now, ended);
		signal?.addEventListener("abort", now, ended);
	});

export const randomId = () => Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => (byte % 36).toString(36)).join("");

// A request with the same key has its effect once, so it is retried after a cut.
export async function post(path, body = {}, method = "POST") {
	const headers = { "content-type": "application/json", "idempotency-key": randomId() + randomId() };
	for (let attempt = 0; ; attempt++) {
		try {
			const response = await request(path, { method, headers, body: method === "DELETE" ? undefined : JSON.stringify(body) });
			return response.status === 204 ? null : await response.json();
		} catch (error) {
			if (error instanceof ApiError || attempt === 4) throw error;
			await pause(300 * 2 ** attempt);
		}
	}
}

// Follow the log of a run: `onEntry` gets each entry once, in order.
export async function follow(run, { after = -1, onEntry, onState, signal }) {
	let failures = 0;
	while (!signal.aborted) {
		try {
			const finished = await read(run, after, signal, (entry) => {
				failures = 0;
				onState("live");
				if (entry.seq <= after) return;
				after = entry.seq;
				onEntry(entry);
			});
			if (finished) return;
		} catch (error) {
			if (signal.aborted) return;
			if (error instanceof ApiError && error.status < 500) throw error;
		}
		if (signal.aborted) return;
		onState("reconnecting");
		await pause(Math.min(200 * 2 ** failures++, 30_000), signal);
	}
}

async function read(run, after, signal, onEntry) {
	const cut = new AbortController();
	const abort = () => cut.abort();
	let timer = setTimeout(abort, SILENCE);
	try {
		const response = await request(`runs/${encodeURIComponent(run)}/events?after=${after}`, { signal: AbortSignal.any([signal, cut.signal]) });
		if (response.status === 204) return true;
		const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
		let text = "";
		let ended = false;
		for (;;) {
			const { value, done } = await reader.read();
			if (done) return ended;
			clearTimeout(timer);
			timer = setTimeout(abort, SILENCE);
			const frames = (text + value).split("\n\n");
			text = frames.pop();
			for (const frame of frames) {
				const data = frame.split("\n").find((line) => line.startsWith("data: "));
				if (!data) continue;
				const entry = JSON.parse(data.slice(6));
				onEntry(entry);
				ended ||= entry.type in ENDINGS;
			}
		}
	} finally {
		clearTimeout(timer);
	}
}
