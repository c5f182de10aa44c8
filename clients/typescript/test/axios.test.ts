import assert from "node:assert/strict";
import { Readable } from "node:stream";
import { test } from "node:test";

import axios, { AxiosError } from "axios";

import { onetakeAdapter } from "../src/axios.js";
import { BodyNotReplayable, Mismatch, Onetake } from "../src/index.js";
import { fastClock, serve, statuses } from "./support.js";

function apiOf(baseURL: string, inner: "http" | "fetch" = "http") {
  const adapter = onetakeAdapter(new Onetake({ clock: fastClock() }), axios.getAdapter(inner));
  return axios.create({ baseURL, adapter });
}

for (const inner of ["http", "fetch"] as const) {
  test(`a refusal is the AxiosError that it was before (${inner})`, async (t) => {
    const { url, received } = await serve(t, statuses(402));
    const error = await apiOf(url, inner)
      .post("/a", { b: 1 })
      .catch((error: unknown) => error);
    assert.ok(error instanceof AxiosError);
    assert.equal(error.response?.status, 402);
    assert.equal(received[0]?.body, '{"b":1}');
  });

  test(`a lost response is sent again with the same key (${inner})`, async (t) => {
    const { url, received } = await serve(t, (_, response, number) => {
      if (number === 1) response.destroy();
      else response.end('{"charge":1}');
    });
    const { data } = await apiOf(url, inner).post("/a", { b: 1 });
    assert.deepEqual(data, { charge: 1 });
    assert.equal(received.length, 2);
    assert.ok(received[0]?.headers["idempotency-key"]);
    assert.equal(received[0]?.headers["idempotency-key"], received[1]?.headers["idempotency-key"]);
  });
}

test("validateStatus decides whether a refusal is a response", async (t) => {
  const { url } = await serve(t, statuses(402));
  const { status } = await apiOf(url).post("/a", {}, { validateStatus: () => true });
  assert.equal(status, 402);
});

test("a mismatch is an error of this package, with the response of axios", async (t) => {
  const { url } = await serve(t, (_, response) => {
    response.statusCode = 422;
    response.setHeader("content-type", "application/problem+json");
    response.end('{"code":"idempotency_payload_mismatch"}');
  });
  const error = await apiOf(url)
    .post("/a", {})
    .catch((error: unknown) => error);
  assert.ok(error instanceof Mismatch);
  assert.equal((error.response as { status: number }).status, 422);
});

test("a stream is refused before anything is sent", async (t) => {
  const { url, received } = await serve(t, statuses(201));
  await assert.rejects(apiOf(url).post("/a", Readable.from(["x"])), BodyNotReplayable);
  assert.equal(received.length, 0);
});

test("a GET passes through unchanged", async (t) => {
  const { url, received } = await serve(t, statuses(200));
  await apiOf(url).get("/a");
  assert.equal(received[0]?.headers["idempotency-key"], undefined);
});

test("the timeout of axios is the deadline of the call", async (t) => {
  const { url, received } = await serve(t, () => undefined);
  const adapter = onetakeAdapter(new Onetake(), axios.getAdapter("http"));
  const call = axios.create({ baseURL: url, adapter, timeout: 300 }).post("/a", {});
  await assert.rejects(call, { name: "Unavailable", reason: "deadline" });
  assert.ok(Number(received[0]?.headers["x-request-timeout-ms"]) <= 300);
});
