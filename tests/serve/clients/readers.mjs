// Reads streams with the clients of npm: node readers.mjs FOLDER STREAMS.json. Ends with 1 at the first that is refused.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, file] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const load = async (name) => await import(pathToFileURL(require.resolve(name)).href);
const streams = JSON.parse(readFileSync(file, "utf-8"));
const counts = {};

const refuse = (client, at, stream, error) => {
  console.error(`${client} refuses stream ${at}: ${error?.message ?? error}\n${JSON.stringify(stream, null, 1)}`);
  process.exit(1);
};

const { verifyEvents } = await load("@ag-ui/client");
const { from, lastValueFrom, toArray } = await load("rxjs");
counts.agui = 0;
for (const [at, events] of streams.agui.entries()) {
  try {
    const read = await lastValueFrom(from(events).pipe(verifyEvents(false), toArray()));
    if (read.length !== events.length) throw new Error(`${read.length} of ${events.length} events`);
    counts.agui += 1;
  } catch (error) {
    refuse("@ag-ui/client", at, events, error);
  }
}

for (const name of ["ai", "ai7"]) {
  const { uiMessageChunkSchema, readUIMessageStream } = await load(name);
  const schema = uiMessageChunkSchema();
  counts[name] = 0;
  for (const [at, parts] of streams.vercel.entries()) {
    try {
      for (const part of parts) {
        const checked = await schema.validate(part);
        if (!checked.success) throw checked.error;
      }
      const failed = parts.some((part) => part.type === "error");
      const stream = new ReadableStream({
        start(controller) {
          for (const part of parts) if (part.type !== "error") controller.enqueue(part);
          controller.close();
        },
      });
      let message;
      let refused;
      const onError = (error) => { refused = error; };
      for await (message of readUIMessageStream({ stream, onError, terminateOnError: true }));
      if (refused) throw refused;
      const open = (message?.parts ?? []).filter((part) => part.state === "streaming" || part.state === "input-streaming");
      if (open.length) throw new Error(`open at the end: ${JSON.stringify(open)}`);
      if (failed && parts.at(-1).type !== "error") throw new Error("parts after the error");
      counts[name] += 1;
    } catch (error) {
      refuse(name, at, parts, error);
    }
  }
}
console.log(JSON.stringify(counts));
