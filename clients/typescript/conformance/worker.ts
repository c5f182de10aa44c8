/** A process with a queue on disk: `node worker.js submit|resume FOLDER URL`. */
import { Onetake, Queue } from "../src/index.js";
import { FileStore } from "../src/node.js";

const [mode, folder = "", url = ""] = process.argv.slice(2);
const actions = {
  confirm: () => console.log("applied"),
  revert: () => console.log("reverted"),
};
const store = new FileStore(folder);
const queue = new Queue({ client: new Onetake(), store, actions: () => actions });
if (mode === "submit") {
  const headers = { "content-type": "application/json" };
  await queue.submit({ entity: "cart", request: { url, headers, body: '{"amount":10}' } }, actions);
}
await queue.start();
await queue.idle();
await queue.stop();
