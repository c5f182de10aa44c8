/**
 * Counts the effects of a queue in a real browser: `node effects-browser.js PROXY`. Two tabs of a
 * headless Chromium submit intents. One tab is closed and opened again, the other one is reloaded,
 * and the server is unreachable for a while. Prints one JSON line.
 */
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import type { IncomingMessage, ServerResponse } from "node:http";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const INTENTS_PER_TAB = 100;
const TABS = ["a", "b"];
const INTERRUPTIONS = 10;
const LIMIT_MS = 90_000;

const PAGE = `<!doctype html><title>queue</title><script type="module">
import { intentFrom, IndexedDbStore, Onetake, Queue } from "/onetake.js";
const tab = new URLSearchParams(location.search).get("tab");
const tell = (path, body) => fetch(path, { method: "POST", body, keepalive: true });
const actions = { confirm: ({ key }) => tell("/ended", key + " applied"),
                  revert: ({ key }) => tell("/ended", key + " reverted") };
const client = new Onetake({ budget: { reserve: 1000, ratio: 1 }, backoffBaseMs: 20, attemptsMax: 20 });
const queue = new Queue({ client, store: new IndexedDbStore(), actions: () => actions, pauseMaxMs: 200 });
setInterval(async () => {
  if ((await (await tell("/command", tab)).text()) === "reload") location.reload();
}, 50);
const charge = (n) => ({
  intent: intentFrom("browser", location.origin, tab, String(n)),
  entity: tab + (n % 5),
  request: { url: location.origin + "/charges", body: n % 10 === 0 ? "decline" : "amount=" + n },
});
await queue.start();
// A page is not told of an intent that the other tab settled, if either of them is gone at that
// moment. It asks with the same key, and gets the recorded outcome.
const catchUp = async (count) => {
  const stored = new Set((await queue.intents()).map(({ key }) => key));
  for (let n = 0; n < count; n++) {
    const { intent, request } = charge(n);
    if (stored.has(intent.key)) continue;
    if ((await (await tell("/is-ended", intent.key)).text()) === "yes") continue;
    const { ok } = await client.fetch(request.url, { method: "POST", body: request.body, intent });
    await tell("/ended", intent.key + (ok ? " applied" : " reverted"));
  }
};
await catchUp(Number(localStorage[tab] ?? 0));
for (let n = Number(localStorage[tab] ?? 0); n < ${INTENTS_PER_TAB}; n++) {
  await queue.submit(charge(n), actions);
  localStorage[tab] = n + 1;
}
await tell("/submitted", tab);
for (;;) {
  await new Promise((resolve) => setTimeout(resolve, 500));
  await catchUp(${INTENTS_PER_TAB}).catch(() => {});
}
</script>`;

const [proxy = ""] = process.argv.slice(2);
const ends = new Map<string, string>();
const submitted = new Set<string>();
const reloads = new Set<string>();
let isOffline = false;

async function body(request: IncomingMessage): Promise<string> {
  let text = "";
  for await (const chunk of request) text += String(chunk);
  return text;
}

/** Serves the page, and forwards operations to the proxy. */
async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const text = await body(request);
  const [path] = (request.url ?? "").split("?");
  if (path === "/ended") ends.set(text.split(" ")[0] ?? "", text.split(" ")[1] ?? "");
  else if (path === "/submitted") submitted.add(text);
  else if (path === "/onetake.js") response.setHeader("content-type", "text/javascript");
  else if (path === "/") response.setHeader("content-type", "text/html");
  if (path === "/charges") {
    const key = String(request.headers["idempotency-key"]);
    try {
      if (isOffline) throw new Error("offline");
      const init = { method: "POST", body: text, headers: { "idempotency-key": key } };
      const forwarded = await fetch(proxy + "/charges", init);
      response.statusCode = forwarded.status;
      // Without its type, a problem would be an answer of the API, and a 409 would be final.
      for (const name of ["content-type", "idempotent-replayed", "retry-after"]) {
        const value = forwarded.headers.get(name);
        if (value !== null) response.setHeader(name, value);
      }
      response.end(await forwarded.text());
    } catch {
      response.destroy();
    }
    return;
  }
  if (path === "/command" && reloads.delete(text)) response.write("reload");
  if (path === "/is-ended" && ends.has(text)) response.write("yes");
  response.end(path === "/onetake.js" ? bundle : path === "/" ? PAGE : "");
}

async function until(condition: () => boolean): Promise<void> {
  const end = performance.now() + LIMIT_MS;
  while (!condition()) {
    if (performance.now() > end) throw new Error(`stuck at ${ends.size} intents`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

interface Effects {
  keys: number;
  runs: number;
  runs_of_one_key_max: number;
  lost: number;
}

const effects = async () => (await (await fetch(`${proxy}/-/effects`)).json()) as Effects;

const source = fileURLToPath(new URL("../../src/index.ts", import.meta.url));
const bundled = await build({
  entryPoints: [source],
  bundle: true,
  minify: true,
  format: "esm",
  write: false,
});
const bundle = bundled.outputFiles[0]?.text ?? "";
const server = createServer((request, response) => void answer(request, response));
await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
const profile = mkdtempSync(join(tmpdir(), "onetake-browser-"));
const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"];
flags.push("--disable-dev-shm-usage", "--disable-background-timer-throttling");
flags.push("--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows");
flags.push("--remote-debugging-port=0", `--user-data-dir=${profile}`, "about:blank");
const browser = spawn("chromium", flags, { stdio: "ignore" });
try {
  const before = await effects();
  const began = performance.now();
  let port = "";
  await until(() => {
    try {
      port = readFileSync(join(profile, "DevToolsActivePort"), "utf8").split("\n")[0] ?? "";
    } catch {
      // The browser has not started yet.
    }
    return port !== "";
  });
  const ask = (path: string) => fetch(`http://127.0.0.1:${port}/json/${path}`, { method: "PUT" });
  const open = async (tab: string) => {
    const opened = await ask(`new?${encodeURIComponent(`${origin}/?tab=${tab}`)}`);
    return ((await opened.json()) as { id: string }).id;
  };
  const ids = new Map<string, string>();
  for (const tab of TABS) ids.set(tab, await open(tab));
  const all = INTENTS_PER_TAB * TABS.length;
  for (let number = 1; number <= INTERRUPTIONS; number++) {
    await until(() => ends.size >= (number * all) / (INTERRUPTIONS + 2));
    const tab = TABS[number % TABS.length] ?? "";
    isOffline = number % 3 === 0;
    if (tab === "b") {
      reloads.add(tab);
      await until(() => !reloads.has(tab));
    } else {
      await ask(`close/${ids.get(tab)}`);
      ids.set(tab, await open(tab));
    }
    if (isOffline) await new Promise((resolve) => setTimeout(resolve, 300));
    isOffline = false;
  }
  await until(() => ends.size === all && submitted.size === TABS.length);
  const after = await effects();
  const [keys, runs] = [after.keys - before.keys, after.runs - before.runs];
  const reverted = [...ends.values()].filter((end) => end === "reverted").length;
  const ok =
    keys === all && runs === all && after.runs_of_one_key_max === 1 && reverted === all / 10;
  const line = { client: "typescript browser", intents: all, keys, effects: runs };
  const seconds = Number(((performance.now() - began) / 1000).toFixed(1));
  const lost = after.lost - before.lost;
  console.log(
    JSON.stringify({ ...line, interruptions: INTERRUPTIONS, reverted, lost, seconds, ok }),
  );
  if (!ok) process.exitCode = 1;
} finally {
  const exited = new Promise((resolve) => browser.once("exit", resolve));
  browser.kill();
  await exited;
  server.closeAllConnections();
  server.close();
  try {
    rmSync(profile, { recursive: true, force: true, maxRetries: 10, retryDelay: 200 });
  } catch {
    // Processes of the browser may still write there. The folder is in the system's temporary one.
  }
}
