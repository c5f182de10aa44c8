import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { chmodSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { test } from "node:test";
import { promisify } from "node:util";

import { IDBFactory } from "fake-indexeddb";

import type { QueuedIntent, QueueStore } from "../src/index.js";
import { IndexedDbStore, MemoryStore, Onetake, Queue, StorageFailed } from "../src/index.js";
import { FileStore } from "../src/node.js";
import type { Handler } from "./support.js";
import { fastClock, serve, statuses, until } from "./support.js";

const KEY = "0123456789abcdef-";

/** The built package, for other processes. */
const SOURCE = new URL("../src/", import.meta.url).href;

function intent(number: number, entity = "cart"): QueuedIntent {
  return { key: KEY + number, entity, request: { url: "http://localhost/" }, state: "pending" };
}

function folder(test: TestContext): string {
  const path = mkdtempSync(join(tmpdir(), "onetake-store-"));
  test.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

async function queueFor(test: TestContext, handler: Handler, store: QueueStore) {
  const { url, received } = await serve(test, handler);
  const errors: unknown[] = [];
  const onError = (error: unknown) => errors.push(error);
  const client = new Onetake({ clock: fastClock(), attemptsMax: 1 });
  const queue = new Queue({ client, store, onError });
  test.after(() => queue.stop());
  return { url, received, queue, errors };
}

const STORES: Record<string, (test: TestContext) => QueueStore> = {
  memory: () => new MemoryStore(),
  file: (test) => new FileStore(folder(test)),
  indexedDB: (test) => {
    globalThis.indexedDB = new IDBFactory();
    const store = new IndexedDbStore();
    test.after(() => store.close());
    return store;
  },
};

for (const [name, make] of Object.entries(STORES)) {
  test(`${name}: intents keep their order through changes`, async (t) => {
    const store = make(t);
    for (let number = 1; number <= 12; number++) assert.ok(await store.add(intent(number)));
    assert.equal(await store.add(intent(3)), false, "a key is stored once");
    await store.update({ ...intent(2), state: "unknown", problem: "?" });
    await store.remove(KEY + 1);
    await store.remove(KEY + "absent");
    const list = await store.list();
    const numbers = Array.from({ length: 11 }, (_, i) => KEY + (i + 2));
    assert.deepEqual(
      list.map(({ key }) => key),
      numbers,
    );
    assert.equal(list[0]?.state, "unknown");
    assert.ok(await store.add(intent(1)), "a removed key can be stored again");
    assert.equal((await store.list()).at(-1)?.key, KEY + 1);
  });
}

test("file: another process's intents are seen, and half-written files are not", async (t) => {
  const path = folder(t);
  const [one, two] = [new FileStore(path), new FileStore(path)];
  await one.add(intent(1));
  await two.add(intent(2));
  const [mine, dead] = [`9-a.json.${process.pid}.part`, "9-a.json.999999999.part"];
  for (const name of [mine, dead]) writeFileSync(join(path, name), '{"key":');
  assert.equal((await one.list()).length, 2);
  await new FileStore(path).list();
  assert.ok(readdirSync(path).includes(mine));
  assert.ok(!readdirSync(path).includes(dead), "what a killed process left is removed");
  await two.remove(KEY + 1);
  assert.deepEqual(
    (await one.list()).map(({ key }) => key),
    [KEY + 2],
  );
});

test("file: one process at a time has the lock, and a killed one loses it", async (t) => {
  const path = folder(t);
  const store = new FileStore(path);
  let inside = 0;
  let most = 0;
  const work = async () => {
    most = Math.max(most, ++inside);
    await new Promise((resolve) => setTimeout(resolve, 30));
    inside -= 1;
  };
  await Promise.all([store.exclusive(work), new FileStore(path).exclusive(work)]);
  assert.equal(most, 1);
  const child = spawn(process.execPath, ["-e", "setInterval(() => {}, 1000)"]);
  writeFileSync(join(path, "queue.lock"), String(child.pid));
  const exited = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGKILL");
  await exited;
  await store.exclusive(work);
  assert.ok(!readdirSync(path).includes("queue.lock"));
});

test("a storage that is full or blocked refuses the intent as a whole", async (t) => {
  const path = folder(t);
  const stores: QueueStore[] = [
    Object.assign(new MemoryStore(), { add: () => Promise.reject(new Error("quota")) }),
    new FileStore(join(path, "no-folder")),
  ];
  writeFileSync(join(path, "no-folder"), "a file where the folder should be");
  if (process.getuid?.() !== 0) {
    const blocked = folder(t);
    chmodSync(blocked, 0o500);
    stores.push(new FileStore(blocked));
  }
  const blocked = new IDBFactory();
  blocked.open = () => {
    throw new DOMException("blocked", "SecurityError");
  };
  globalThis.indexedDB = blocked;
  stores.push(new IndexedDbStore("blocked"));
  for (const store of stores) {
    const { url, received, queue } = await queueFor(t, statuses(201), store);
    let applied = 0;
    const actions = { apply: () => void applied++ };
    await assert.rejects(queue.submit({ entity: "a", request: { url } }, actions), StorageFailed);
    assert.equal(applied, 0);
    assert.equal(received.length, 0);
    if (store instanceof IndexedDbStore) await store.close();
  }
});

test("file: a write that the disk refuses in the middle leaves nothing behind", async (t) => {
  const path = folder(t);
  await new FileStore(path).add(intent(1));
  // A process whose files can have 512 bytes. An ignored signal makes the write fail, as on a full
  // disk.
  const program = `
    import { FileStore } from "${SOURCE}node.js";
    import { Onetake, Queue } from "${SOURCE}index.js";
    const queue = new Queue({ client: new Onetake(), store: new FileStore(process.argv[1]) });
    const request = { url: "http://127.0.0.1:9/", body: "x".repeat(9000) };
    const apply = () => console.log("applied");
    await queue.submit({ entity: "a", request }, { apply }).catch((error) => console.log(error.name));
    process.exit();`;
  const limited = "trap '' XFSZ; ulimit -f 1; exec \"$@\"";
  const node = [process.execPath, "--input-type=module", "--eval", program, path];
  const { stdout } = await promisify(execFile)("sh", ["-c", limited, "sh", ...node]);
  assert.equal(stdout, "StorageFailed\n");
  const stored = await new FileStore(path).list();
  assert.deepEqual(
    stored.map(({ key }) => key),
    [KEY + 1],
  );
});

test("an intent is stored and applied before it is sent", async (t) => {
  const store = new MemoryStore();
  const order: string[] = [];
  const add = store.add.bind(store);
  store.add = async (intent) => {
    await new Promise((resolve) => setTimeout(resolve, 20));
    order.push("stored");
    return add(intent);
  };
  const handler: Handler = (_, response) => {
    order.push("sent");
    response.end();
  };
  const { url, queue } = await queueFor(t, handler, store);
  const actions = { apply: () => void order.push("applied") };
  await queue.submit({ entity: "a", request: { url } }, actions);
  await queue.idle();
  assert.deepEqual(order, ["stored", "applied", "sent"]);
});

test("the same intent is applied and sent once", async (t) => {
  const { url, received, queue } = await queueFor(t, statuses(201), new MemoryStore());
  let applied = 0;
  const actions = { apply: () => void applied++ };
  const queued = { intent: { key: KEY + 1 }, entity: "a", request: { url } };
  await Promise.all([queue.submit(queued, actions), queue.submit(queued, actions)]);
  await queue.idle();
  assert.equal(applied, 1);
  assert.equal(received.length, 1);
});

test("an intent whose apply fails is not sent", async (t) => {
  const { url, received, queue } = await queueFor(t, statuses(201), new MemoryStore());
  const apply = async () => {
    // The queue looks into the store meanwhile.
    queue.wake();
    await queue.idle();
    throw new Error("no such row");
  };
  await queue.start();
  const submitted = queue.submit({ entity: "a", request: { url } }, { apply });
  await assert.rejects(submitted, { message: "no such row" });
  await queue.idle();
  assert.equal(received.length, 0);
});

test("entities do not wait for each other, and one entity keeps its order", async (t) => {
  const held: { end(): unknown }[] = [];
  const handler: Handler = ({ body }, response) => {
    if (body === "a1") held.push(response);
    else response.end();
  };
  const { url, received, queue } = await queueFor(t, handler, new MemoryStore());
  for (const body of ["a1", "a2", "b1"]) {
    await queue.submit({ entity: body.slice(0, 1), request: { url, body } });
  }
  const bodies = () => received.map(({ body }) => body);
  await until(() => bodies().includes("b1"));
  assert.ok(!bodies().includes("a2"));
  held[0]?.end();
  await queue.idle();
  assert.deepEqual(
    bodies().filter((body) => body.startsWith("a")),
    ["a1", "a2"],
  );
});

test("an unknown outcome stays until somebody settles it or asks again", async (t) => {
  const handler: Handler = ({ body }, response, number) => {
    response.statusCode = number === 1 || body === "second" ? 500 : 201;
    response.end();
  };
  const { url, received, queue } = await queueFor(t, handler, new MemoryStore());
  const settled: string[] = [];
  const actions = {
    confirm: () => void settled.push("applied"),
    revert: () => void settled.push("reverted"),
  };
  const first = await queue.submit({ entity: "a", request: { url, body: "first" } }, actions);
  const second = await queue.submit({ entity: "a", request: { url, body: "second" } }, actions);
  await queue.idle();
  assert.deepEqual(
    (await queue.intents()).map(({ state }) => state),
    ["unknown", "pending"],
  );
  await queue.retry(first.key);
  await queue.idle();
  assert.deepEqual(settled, ["applied"]);
  await queue.resolve(second.key, "reverted");
  assert.deepEqual(settled, ["applied", "reverted"]);
  assert.deepEqual(await queue.intents(), []);
  const keys = received.map(({ headers }) => headers["idempotency-key"]);
  assert.deepEqual(keys, [first.key, first.key, second.key]);
});

test("errors of the store and of actions are told, and the intent is settled", async (t) => {
  const store = new MemoryStore();
  const remove = store.remove.bind(store);
  let failures = 2;
  store.remove = (key) => (failures-- > 0 ? Promise.reject(new Error("disk")) : remove(key));
  const { url, received, queue, errors } = await queueFor(t, statuses(201), store);
  const confirm = () => {
    throw new Error("confirm");
  };
  await queue.submit({ entity: "a", request: { url } }, { confirm });
  await queue.idle();
  assert.deepEqual(await queue.intents(), []);
  assert.equal(new Set(received.map(({ headers }) => headers["idempotency-key"])).size, 1);
  assert.deepEqual(
    errors.map((error) => (error as Error).message),
    ["confirm", "disk", "disk"],
  );
});

test("a store that cannot be locked is asked again", async (t) => {
  const store = new MemoryStore();
  let failures = 2;
  store.exclusive = (work) => (failures-- > 0 ? Promise.reject(new Error("lock")) : work());
  const { url, received, queue, errors } = await queueFor(t, statuses(201), store);
  await queue.submit({ entity: "a", request: { url } });
  await queue.idle();
  assert.equal(received.length, 1);
  assert.equal(errors.length, 2);
});

test("two tabs share the intents, one of them sends, and both are told", async (t) => {
  globalThis.indexedDB = new IDBFactory();
  let isOpen = false;
  const { url, received } = await serve(t, async (_, response) => {
    await until(() => isOpen);
    response.statusCode = 402;
    response.end();
  });
  const told: string[] = [];
  const tabs = ["one", "two"].map((name) => {
    const store = new IndexedDbStore("tabs");
    const revert = () => void told.push(name);
    const queue = new Queue({ client: new Onetake(), store, actions: () => ({ revert }) });
    t.after(() => queue.stop().then(() => store.close()));
    return { queue, revert };
  });
  const [one, two] = tabs;
  // Both tabs show the intent of an earlier page.
  const earlier = new IndexedDbStore("tabs");
  await earlier.add({ ...intent(1), request: { url } });
  await earlier.close();
  await Promise.all([one?.queue.start(), two?.queue.start()]);
  isOpen = true;
  await until(() => told.length === 2);
  assert.deepEqual(told.sort(), ["one", "two"]);
  assert.equal(new Set(received.map(({ headers }) => headers["idempotency-key"])).size, 1);
});
