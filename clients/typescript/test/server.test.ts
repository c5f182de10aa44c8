import assert from "node:assert/strict";
import type { AddressInfo } from "node:net";
import { test } from "node:test";

import express from "express";
import fastify from "fastify";

import type { OperationContext, Reconciled } from "../src/server.js";
import { expressOnetake, expressReconcile, fastifyOnetake, setOutcome } from "../src/server.js";

const DERIVED = "3f6e277c-ac68-44a0-b80b-1417955e0d84";
const HEADERS = {
  "Idempotency-Key": "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90",
  "Idempotency-Fence": "18446744073709551615",
  "Idempotency-Derived-Key": DERIVED,
};

const outcomes: Record<string, Reconciled> = {
  done: {
    outcome: "record",
    status: 201,
    body: { charge: 1 },
    headers: { Location: "/charges/1" },
  },
  never: { outcome: "release" },
};

function find(derivedKey: string): Reconciled {
  if (derivedKey === "broken") throw new Error("database");
  return outcomes[derivedKey] ?? { outcome: "unknown" };
}

function described(context: OperationContext) {
  const { key, fence, derivedKey } = context;
  const step = derivedKey && context.stepKey("charge-card");
  const undo = derivedKey && context.compensationKey("charge-card");
  return { key, fence: fence?.toString(), derivedKey, step, undo };
}

async function startExpress(t: { after(end: () => void): void }): Promise<string> {
  const app = express();
  app.use(expressOnetake());
  app.post("/charges", (req, res) => {
    const { onetake } = req as unknown as { onetake: OperationContext };
    (res as unknown as { outcome(outcome: string): void }).outcome("release");
    res.json(described(onetake));
  });
  app.get("/reconcile/:derivedKey", expressReconcile(find));
  const server = app.listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  t.after(() => server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

async function startFastify(t: { after(end: () => Promise<void>): void }): Promise<string> {
  const app = fastify();
  fastifyOnetake(app, { path: "/reconcile/:derivedKey", reconcile: find });
  app.post("/charges", (request, reply) => {
    setOutcome(reply, "release");
    return described((request as unknown as { onetake: OperationContext }).onetake);
  });
  t.after(() => app.close());
  return app.listen({ port: 0, host: "127.0.0.1" });
}

for (const [name, start] of Object.entries({ express: startExpress, fastify: startFastify })) {
  test(`${name}: a handler knows the attempt and says what became of it`, async (t) => {
    const url = await start(t);
    const post = { method: "POST", headers: HEADERS };
    const response = await fetch(`${url}/charges`, post);
    assert.equal(response.headers.get("onetake-outcome"), "release");
    assert.deepEqual(await response.json(), {
      key: HEADERS["Idempotency-Key"],
      fence: HEADERS["Idempotency-Fence"],
      derivedKey: DERIVED,
      step: "7ea19fb2-56ba-4aa6-80aa-cade2facfd7e",
      undo: "ced33355-2859-46b1-ac0b-970637b65976",
    });
    const direct = await fetch(`${url}/charges`, { method: "POST" });
    assert.deepEqual(await direct.json(), {});
  });

  test(`${name}: the reconcile endpoint answers as the gateway expects`, async (t) => {
    const url = await start(t);
    const ask = (key: string) => fetch(`${url}/reconcile/${key}`);
    const done = await ask("done");
    assert.equal(done.status, 200);
    assert.equal(done.headers.get("onetake-outcome"), "record");
    assert.equal(done.headers.get("onetake-status"), "201");
    assert.equal(done.headers.get("location"), "/charges/1");
    assert.deepEqual(await done.json(), { charge: 1 });
    for (const [key, status, outcome] of [
      ["never", 404, "release"],
      ["other", 503, "unknown"],
      ["broken", 503, "unknown"],
    ] as const) {
      const answer = await ask(key);
      assert.equal(answer.status, status);
      assert.equal(answer.headers.get("onetake-outcome"), outcome);
    }
  });
}
