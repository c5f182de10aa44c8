import assert from "node:assert/strict";
import { test } from "node:test";

import type { CallEvent } from "../src/index.js";
import {
  BodyNotReplayable,
  InvalidKey,
  Onetake,
  OutcomeUnknown,
  Unavailable,
} from "../src/index.js";
import { fastClock, serve, statuses } from "./support.js";

test("a stream is refused before anything is sent", async (t) => {
  const { url, received } = await serve(t, statuses(201));
  const client = new Onetake();
  const stream = new Blob(["a"]).stream();
  const init = { method: "POST", body: stream, duplex: "half" } as RequestInit;
  await assert.rejects(client.send(url, init), BodyNotReplayable);
  async function* generated() {
    yield new Uint8Array(1);
  }
  const body = generated() as unknown as BodyInit;
  await assert.rejects(client.fetch(url, { method: "POST", body }), BodyNotReplayable);
  assert.equal(received.length, 0);
});

test("an invalid key is refused before anything is sent", async (t) => {
  const { url, received } = await serve(t, statuses(201));
  const client = new Onetake();
  const intent = { key: "short" };
  await assert.rejects(client.send(url, { method: "POST", intent }), InvalidKey);
  const headers = { "Idempotency-Key": "short" };
  await assert.rejects(client.fetch(url, { method: "POST", headers }), InvalidKey);
  assert.equal(received.length, 0);
});

test("every attempt has the same bytes, also of a form", async (t) => {
  const { url, received } = await serve(t, statuses(503, 201));
  const client = new Onetake({ clock: fastClock() });
  const body = new FormData();
  body.set("file", new Blob(["abc"]), "a.txt");
  const result = await client.send(url, { method: "POST", body });
  assert.equal(result.attempts, 2);
  assert.equal(received[0]?.body, received[1]?.body);
  assert.equal(received[0]?.headers["content-type"], received[1]?.headers["content-type"]);
  assert.match(received[0]?.body ?? "", /abc/);
});

test("bodies of every kind that can be sent again are sent as fetch sends them", async (t) => {
  const { url, received } = await serve(t, statuses(201));
  const client = new Onetake();
  const params = new URLSearchParams({ a: "1" });
  const bytes = new Uint8Array([65, 66]);
  for (const body of ["text", bytes, bytes.buffer, new Blob(["blob"]), params, null]) {
    await client.send(url, { method: "POST", body });
  }
  await client.send(new Request(url, { method: "PUT", body: "request" }));
  const bodies = received.map(({ body }) => body);
  assert.deepEqual(bodies, ["text", "AB", "AB", "blob", "a=1", "", "request"]);
  assert.match(received[4]?.headers["content-type"] ?? "", /x-www-form-urlencoded/);
  assert.equal(received[6]?.method, "PUT");
});

test("the options of a Request are kept", async () => {
  const seen: RequestInit[] = [];
  const fetched: typeof fetch = (_, init) => {
    seen.push(init ?? {});
    return Promise.resolve(new Response("{}", { status: 201 }));
  };
  const client = new Onetake({ fetch: fetched });
  const options = { credentials: "omit", redirect: "error", cache: "no-store" } as const;
  await client.fetch(new Request("http://localhost/", { method: "POST", ...options }));
  await client.fetch("http://localhost/", { method: "POST", ...options });
  for (const { credentials, redirect, cache } of seen) {
    assert.deepEqual({ credentials, redirect, cache }, options);
  }
  assert.equal(seen.length, 2);
});

test("requests that change nothing pass through unchanged", async (t) => {
  const { url, received } = await serve(t, statuses(503));
  const response = await new Onetake().fetch(url);
  assert.equal(response.status, 503);
  assert.equal(received.length, 1);
  assert.equal(received[0]?.headers["idempotency-key"], undefined);
});

test("fetch returns a refusal as a response", async (t) => {
  const { url } = await serve(t, statuses(402));
  const response = await new Onetake().fetch(url, { method: "POST" });
  assert.equal(response.status, 402);
  assert.deepEqual(await response.json(), { charge: 1 });
});

test("an abort of the caller ends a call in its backoff and in an attempt", async (t) => {
  const { url, received } = await serve(t, (_, response, number) => {
    if (number > 1) return;
    response.statusCode = 503;
    response.setHeader("retry-after", "20");
    response.end();
  });
  for (let call = 0; call < 2; call++) {
    const abort = new AbortController();
    const observe = (event: CallEvent) => {
      const isHere = event.type === "retry" || (event.type === "attempt" && received.length > 0);
      if (isHere) setTimeout(() => abort.abort(new Error("closed")), 10);
    };
    const client = new Onetake({ observe });
    const call = client.send(url, { method: "POST", signal: abort.signal });
    await assert.rejects(call, { message: "closed" });
  }
});

test("a wall clock that jumps changes neither deadline nor delays", async (t) => {
  const { url } = await serve(t, statuses(503, 503, 201));
  const times = [0, 1e15, -1e12, 5, 1e14];
  const clock = fastClock({ now: () => times.shift() ?? 0 });
  const client = new Onetake({ clock });
  const result = await client.send(url, { method: "POST" });
  assert.equal(result.attempts, 3);
  assert.deepEqual(clock.slept, [100, 200]);
});

test("headers are made for each attempt", async (t) => {
  const { url, received } = await serve(t, statuses(503, 201));
  let token = 0;
  const headers = () => ({ authorization: `Bearer ${++token}` });
  await new Onetake({ clock: fastClock(), headers }).send(url, { method: "POST" });
  const seen = received.map((request) => request.headers.authorization);
  assert.deepEqual(seen, ["Bearer 1", "Bearer 2"]);
});

test("a handle on another server is not asked, so that it gets no credential", async (t) => {
  const other = await serve(t, statuses(200));
  const { url } = await serve(t, (_, response) => {
    response.statusCode = 202;
    response.setHeader("location", `${other.url}/.onetake/operations/h`);
    response.end();
  });
  const client = new Onetake({ clock: fastClock(), deadlineMs: 5000 });
  await assert.rejects(client.send(url, { method: "POST" }), { name: "InProgress" });
  assert.equal(other.received.length, 0);
});

test("errors say what to do, and hold the answer", async (t) => {
  const { url } = await serve(t, (_, response) => {
    response.statusCode = 500;
    response.setHeader("content-type", "application/problem+json");
    const problem = { code: "previous_attempt_failed", detail: "It broke.", reference: "2KPP" };
    response.end(JSON.stringify(problem));
  });
  const error = await new Onetake().send(url, { method: "POST" }).catch((error: unknown) => error);
  assert.ok(error instanceof OutcomeUnknown);
  assert.match(error.message, /Do not pick a new key.*It broke\. Reference: 2KPP\./s);
  assert.equal(error.problem?.code, "previous_attempt_failed");
  assert.ok(error.response instanceof Response);
  assert.equal(((await error.response.json()) as { detail: string }).detail, "It broke.");
});

test("the cause of an unavailable server is the error of the connection", async () => {
  const client = new Onetake({ clock: fastClock(), attemptsMax: 2 });
  const call = client.send("http://127.0.0.1:9/", { method: "POST" });
  const error = await call.catch((error: unknown) => error);
  assert.ok(error instanceof Unavailable);
  assert.equal(error.attempts, 2);
  assert.ok(error.cause instanceof Error);
});

test("an observer that throws does not end a call, and sees no key", async (t) => {
  const { url } = await serve(t, statuses(503, 201));
  const events: CallEvent[] = [];
  const observe = (event: CallEvent) => {
    events.push(event);
    throw new Error("observer");
  };
  const client = new Onetake({ clock: fastClock(), observe });
  const { key } = await client.send(url, { method: "POST" });
  const types = events.map(({ type }) => type);
  assert.deepEqual(types, ["attempt", "retry", "attempt", "end"]);
  assert.ok(!JSON.stringify(events).includes(key));
});

test("limits must be positive numbers", () => {
  for (const options of [{ deadlineMs: 0 }, { attemptsMax: -1 }, { backoffBaseMs: NaN }]) {
    assert.throws(() => new Onetake(options), RangeError);
  }
});
