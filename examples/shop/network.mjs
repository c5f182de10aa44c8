/** Serves the page, and plays the bad network between the page and the gateway. */
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const PAGE = fileURLToPath(new URL("page/", import.meta.url));
const TYPES = { html: "text/html; charset=utf-8", js: "text/javascript", css: "text/css" };

/**
 * Starts the server.
 *
 * - `/api/…` goes to the gateway. Its response can be lost.
 * - `/network` tells and changes the state of the network: `lose` responses are lost next, and
 *   nothing passes while it is `offline`. It also counts, for the page to show.
 * - `/onetake/…` is the TypeScript client as it is built. No bundler is needed.
 */
export async function startNetwork({ port, gateway, api, client }) {
  const state = { lose: 0, offline: false, requests: 0, lost: 0 };

  async function forward(request, response) {
    if (state.offline) return response.destroy();
    state.requests += 1;
    const { "idempotency-key": key, "content-type": type } = request.headers;
    const headers = {
      ...(key && { "idempotency-key": key }),
      ...(type && { "content-type": type }),
    };
    const body = await read(request);
    const url = gateway + request.url.slice("/api".length);
    const init = request.method === "GET" ? {} : { method: request.method, body };
    const answer = await fetch(url, { ...init, headers });
    const text = await answer.text();
    if (request.method === "POST" && state.lose > 0) {
      state.lose -= 1;
      state.lost += 1;
      return response.destroy();
    }
    for (const [name, value] of answer.headers) {
      if (!["connection", "content-length", "transfer-encoding"].includes(name)) {
        response.setHeader(name, value);
      }
    }
    response.statusCode = answer.status;
    response.end(text);
  }

  async function answer(request, response) {
    const [path] = request.url.split("?");
    if (path.startsWith("/api/")) return forward(request, response);
    if (path === "/network") {
      if (request.method === "POST") Object.assign(state, JSON.parse(await read(request)));
      response.setHeader("content-type", "application/json");
      return response.end(JSON.stringify({ ...state, orders: api.orders.length }));
    }
    const [folder, file] = path.startsWith("/onetake/")
      ? [client, path.slice("/onetake/".length)]
      : [PAGE, path === "/" ? "index.html" : path.slice(1)];
    response.setHeader("content-type", TYPES[file.split(".").pop()] ?? "text/plain");
    if (!/^(stores\/)?[a-z0-9-]+\.(html|css|js)$/.test(file)) throw new Error("no such file");
    response.end(readFileSync(join(folder, file)));
  }

  const server = createServer((request, response) => {
    answer(request, response).catch(() => {
      if (!response.headersSent) response.statusCode = 404;
      response.end();
    });
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { url: `http://127.0.0.1:${server.address().port}`, state, close };
}

async function read(request) {
  let text = "";
  for await (const chunk of request) text += chunk;
  return text;
}
