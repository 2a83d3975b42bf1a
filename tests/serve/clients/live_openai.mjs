// The `openai` package of npm against a service: node live_openai.mjs FOLDER URL SCENE. Prints what the client has seen.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, url, scene] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { default: OpenAI } = await import(pathToFileURL(require.resolve("openai")).href);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "token-of-ann", maxRetries: 0 });
const messages = [{ role: "user", content: "Hi!" }];

const stream = async () => {
  const chunks = await client.chat.completions.create({
    model: "Boss", messages, stream: true, stream_options: { include_usage: true },
  });
  const found = { text: "", reasons: [], usage: null, calls: 0 };
  for await (const chunk of chunks) {
    for (const { delta, finish_reason: reason } of chunk.choices) {
      found.text += delta.content ?? "";
      found.calls += delta.tool_calls?.length ?? 0;
      if (reason) found.reasons.push(reason);
    }
    found.usage = chunk.usage ?? found.usage;
  }
  return found;
};

const scenes = {
  async chat() {
    const models = [];
    for await (const { id } of client.models.list()) models.push(id);
    const whole = await client.chat.completions.create({ model: "Boss", messages });
    return { models, whole: whole.choices[0], usage: whole.usage, stream: await stream() };
  },
};

console.log(JSON.stringify(await scenes[scene]()));
process.exit(0);
