import assert from "node:assert/strict";
import { test } from "node:test";

import { context, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import {
  BasicTracerProvider,
  InMemorySpanExporter,
  SimpleSpanProcessor,
} from "@opentelemetry/sdk-trace-base";

import { Onetake } from "../src/index.js";
import { fastClock, serve, statuses } from "./support.js";

test("an event is in the span of its caller, also when calls run at once", async (t) => {
  const exporter = new InMemorySpanExporter();
  const provider = new BasicTracerProvider({
    spanProcessors: [new SimpleSpanProcessor(exporter)],
  });
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  t.after(() => context.disable());
  const tracer = provider.getTracer("test");
  const { url } = await serve(t, statuses(503, 503, 503, 201));
  const client = new Onetake({
    clock: fastClock(),
    observe: ({ type }) => trace.getActiveSpan()?.addEvent(type),
  });
  const calls = ["one", "two", "three"].map((name) =>
    tracer.startActiveSpan(name, async (span) => {
      await client.send(url, { method: "POST" });
      span.end();
    }),
  );
  await Promise.all(calls);
  const spans = exporter.getFinishedSpans();
  assert.equal(spans.length, 3);
  for (const span of spans) {
    const types = span.events.map(({ name }) => name);
    assert.equal(types[0], "attempt");
    assert.equal(types.filter((type) => type === "end").length, 1);
    assert.equal(types.at(-1), "end");
  }
  const retries = spans.flatMap(({ events }) => events).filter(({ name }) => name === "retry");
  assert.equal(retries.length, 3);
});
