import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from "node:http";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import type { TestContext } from "node:test";

import type { Clock } from "../src/index.js";

export interface Received {
  method: string;
  url: string;
  headers: IncomingHttpHeaders;
  body: string;
}

export type Handler = (
  request: Received,
  response: ServerResponse,
  number: number,
) => void | Promise<void>;

/** Starts a server for one test. */
export async function serve(
  test: TestContext,
  handler: Handler,
): Promise<{ url: string; received: Received[] }> {
  const received: Received[] = [];
  const server = createServer((request: IncomingMessage, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      const { method = "", url = "", headers } = request;
      const body = Buffer.concat(chunks).toString("latin1");
      received.push({ method, url, headers, body });
      void handler({ method, url, headers, body }, response, received.length);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  test.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, received };
}

/** Answers with statuses in turn; the last one is repeated. */
export function statuses(...list: number[]): Handler {
  return (_, response, number) => {
    response.statusCode = list[Math.min(number, list.length) - 1] ?? 500;
    response.setHeader("content-type", "application/json");
    response.end('{"charge":1}');
  };
}

/** A clock whose delays take no time. */
export function fastClock(overrides: Partial<Clock> = {}): Clock & { slept: number[] } {
  let time = 0;
  const slept: number[] = [];
  return {
    slept,
    monotonic: () => time,
    now: () => Date.now(),
    sleep: async (ms, signal) => {
      signal?.throwIfAborted();
      slept.push(ms);
      time += ms;
      await new Promise((resolve) => setImmediate(resolve));
    },
    after: (ms, callback) => {
      const timer = setTimeout(callback, ms);
      return () => clearTimeout(timer);
    },
    random: () => 0.5,
    ...overrides,
  };
}

/** Waits until a condition holds. */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  const end = performance.now() + 30_000;
  while (!(await condition())) {
    if (performance.now() > end) throw new Error("the condition did not become true");
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
