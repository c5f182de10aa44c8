/** Submits intents to a queue on disk, and logs their ends: `node effects-worker.js FOLDER URL COUNT`. */
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { join } from "node:path";

import type { QueuedIntent } from "../src/index.js";
import { intentFrom, Onetake, Queue } from "../src/index.js";
import { FileStore } from "../src/node.js";

const [folder = "", url = "", count = "0"] = process.argv.slice(2);
const log = join(folder, "log");
const ended = existsSync(log) ? readFileSync(log, "utf8") : "";
const end = (word: string) => (intent: QueuedIntent) =>
  appendFileSync(log, `${intent.key} ${word}\n`);
const actions = { confirm: end("applied"), revert: end("reverted") };
const budget = { reserve: 1000, ratio: 1 };
const client = new Onetake({ budget, backoffBaseMs: 20, attemptsMax: 20 });
const store = new FileStore(join(folder, "queue"));
const queue = new Queue({ client, store, actions: () => actions });
const stored = new Set((await store.list()).map(({ key }) => key));
await queue.start();
for (let number = 0; number < Number(count); number++) {
  // A user who acts again after a restart acts on the same thing, so it has the same key.
  const intent = intentFrom(folder, String(number));
  if (stored.has(intent.key) || ended.includes(intent.key)) continue;
  const body = number % 10 === 0 ? "decline" : `amount=${number}`;
  await queue.submit({ intent, entity: `cart-${number % 7}`, request: { url, body } }, actions);
}
await queue.idle();
await queue.stop();
