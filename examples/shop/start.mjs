/**
 * Starts the sample shop: `node examples/shop/start.mjs [PORT]`.
 *
 * Four parts run on this machine: the page's server with a bad network (`network.mjs`), the gateway,
 * and the shop's API (`api.mjs`), which knows nothing about retries. The browser runs the page.
 */
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { startNetwork } from "./network.mjs";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));
const CLIENT = join(ROOT, "clients/typescript");

/** The longest time that the gateway takes to start, in milliseconds. */
const GATEWAY_STARTS_WITHIN_MS = 60_000;

/** Starts the shop on a port, or on a free one. Returns its URL and a function that ends it. */
export async function startShop({ port = 0, gateway }) {
  // The API uses the client, which may have been built a moment ago.
  const { startApi } = await import("./api.mjs");
  const api = await startApi();
  const folder = mkdtempSync(join(tmpdir(), "onetake-shop-"));
  const [listen, admin] = [await freePort(), await freePort()];
  const child = spawn(
    gateway,
    ["serve", "--upstream", api.url, "--listen", `127.0.0.1:${listen}`].concat([
      "--admin-listen",
      `127.0.0.1:${admin}`,
    ]),
    { cwd: folder, stdio: ["ignore", "ignore", "inherit"] },
  );
  const exited = new Promise((resolve) => child.once("exit", resolve));
  const stop = async () => {
    network?.close();
    child.kill();
    await exited;
    api.close();
    rmSync(folder, { recursive: true, force: true });
  };
  let network;
  try {
    const inner = `http://127.0.0.1:${listen}`;
    await until(() => answers(`${inner}/orders`), child);
    network = await startNetwork({ port, gateway: inner, api, client: join(CLIENT, "dist") });
    return { url: network.url, api, network, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function answers(url) {
  return fetch(url).then(
    (response) => response.ok,
    () => false,
  );
}

async function until(condition, child) {
  const end = performance.now() + GATEWAY_STARTS_WITHIN_MS;
  while (!(await condition())) {
    if (child.exitCode !== null || performance.now() > end) {
      throw new Error("the gateway did not start");
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

function freePort() {
  return new Promise((resolve) => {
    const server = createServer();
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

/** Builds the gateway and the client if they are missing. Returns the path of the gateway. */
function build() {
  const run = (program, ...args) =>
    execFileSync(program, args, { cwd: program === "npm" ? CLIENT : ROOT, stdio: "inherit" });
  if (!existsSync(join(CLIENT, "dist/index.js"))) {
    run("npm", "ci", "--silent", "--ignore-scripts");
    run("npm", "run", "--silent", "build");
  }
  if (process.env.ONETAKE_GATEWAY) return process.env.ONETAKE_GATEWAY;
  run("cargo", "build", "--package", "onetake-cli");
  return join(process.env.CARGO_TARGET_DIR ?? join(ROOT, "target"), "debug/onetake");
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const shop = await startShop({ port: Number(process.argv[2] ?? 8088), gateway: build() });
  console.log(`The shop is open: ${shop.url} (Ctrl+C closes it)`);
  process.once("SIGINT", () => void shop.stop());
}
