/**
 * Runs the suite: `node run.js SERVER SCENARIOS [NAME…]`. Prints one JSON line per client and
 * scenario.
 */
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import axios, { AxiosError } from "axios";

import { onetakeAdapter } from "../src/axios.js";
import type { CallEvent } from "../src/index.js";
import { CallError, MemoryStore, Onetake, Queue } from "../src/index.js";
import type { Scenario, Seen, Settings } from "./scenario.js";
import { differences, readScenarios, Run } from "./scenario.js";
import { VirtualClock } from "./virtual-clock.js";

const BODY = '{"amount":10}';
const JSON_BODY = { "content-type": "application/json" };

const [server = "", file = "", ...names] = process.argv.slice(2);
let failed = 0;
for (const scenario of readScenarios(file)) {
  if (names.length > 0 && !names.includes(scenario.name)) continue;
  const isQueue = scenario.settings.through === "queue";
  const clients = isQueue
    ? { "typescript fetch": throughQueue }
    : { "typescript fetch": throughSend, "typescript axios": throughAxios };
  for (const [client, play] of Object.entries(clients)) {
    const why = await run(scenario, play);
    failed += Number(why.length > 0);
    console.log(JSON.stringify({ client, scenario: scenario.name, ok: why.length === 0, why }));
  }
}
process.exitCode = failed > 0 ? 1 : 0;

type Play = (run: Run, settings: Settings, clock: VirtualClock) => Promise<Seen[]>;

async function run(scenario: Scenario, play: Play): Promise<string[]> {
  try {
    const { settings } = scenario;
    const started = await Run.start(server, scenario.name);
    const clock = new VirtualClock(settings.random, settings.wall_clock);
    const seen = await play(started, settings, clock);
    return differences(scenario, await started.report(), clock.delays, seen);
  } catch (error) {
    return [String(error)];
  }
}

function clientOf(settings: Settings, clock: VirtualClock, events: CallEvent[] = []): Onetake {
  return new Onetake({
    deadlineMs: settings.deadline_ms,
    attemptTimeoutMs: settings.attempt_timeout_ms,
    attemptsMax: settings.attempts_max,
    backoffBaseMs: settings.backoff_base_ms,
    backoffMaxMs: settings.backoff_max_ms,
    budget: settings.budget,
    observe: (event) => events.push(event),
    clock,
  });
}

async function throughSend(run: Run, settings: Settings, clock: VirtualClock): Promise<Seen[]> {
  const client = clientOf(settings, clock);
  const seen: Seen[] = [];
  for (let call = 0; call < settings.calls; call++) {
    const intent = settings.key === undefined ? client.intent() : { key: settings.key };
    const init = { method: "POST", body: BODY, headers: JSON_BODY, intent };
    try {
      const result = await client.send(`${run.url}/charges`, init);
      seen.push({ kind: "ok", status: result.response.status, ...result });
    } catch (error) {
      seen.push(seenOf(error));
    }
  }
  return seen;
}

function seenOf(error: unknown): Seen {
  if (!(error instanceof CallError)) throw error;
  return { ...error, kind: error.kind, code: error.problem?.code };
}

async function throughAxios(run: Run, settings: Settings, clock: VirtualClock): Promise<Seen[]> {
  const events: CallEvent[] = [];
  const client = clientOf(settings, clock, events);
  const adapter = onetakeAdapter(client, axios.getAdapter("http"));
  const api = axios.create({ baseURL: run.url, adapter });
  const seen: Seen[] = [];
  for (let call = 0; call < settings.calls; call++) {
    events.length = 0;
    const headers = settings.key === undefined ? {} : { "Idempotency-Key": settings.key };
    try {
      const { status, headers: got } = await api.post("/charges", JSON.parse(BODY), { headers });
      const reference: unknown = got["idempotency-reference"];
      seen.push({ kind: "ok", status, replayed: "idempotent-replayed" in got, reference });
    } catch (error) {
      const refusal = error instanceof AxiosError ? error.response : undefined;
      seen.push(
        refusal
          ? {
              kind: "refused",
              status: refusal.status,
              replayed: "idempotent-replayed" in refusal.headers,
            }
          : seenOf(error),
      );
    }
    const last = seen.at(-1) as Seen;
    last["attempts"] = events.filter((event) => event.type === "attempt").length;
  }
  return seen;
}

async function throughQueue(run: Run, settings: Settings, clock: VirtualClock): Promise<Seen[]> {
  if (settings.kill_after_requests !== undefined) {
    return killed(run, settings.kill_after_requests);
  }
  const store = new MemoryStore();
  const queue = new Queue({ client: clientOf(settings, clock), store });
  const seen = new Map<string, string>();
  for (let call = 0; call < settings.calls; call++) {
    const request = { url: `${run.url}/charges`, headers: JSON_BODY, body: BODY };
    await queue.submit(
      { entity: "cart", request },
      {
        apply: (intent) => void seen.set(intent.key, "pending"),
        confirm: (intent) => void seen.set(intent.key, "applied"),
        revert: (intent) => void seen.set(intent.key, "reverted"),
        unknown: (intent) => void seen.set(intent.key, "unknown"),
      },
    );
  }
  await queue.start();
  await queue.idle();
  await queue.stop();
  return [...seen.values()].map((kind) => ({ kind }));
}

/** Kills a process with a queue on disk, and starts it again. */
async function killed(run: Run, requests: number): Promise<Seen[]> {
  const folder = mkdtempSync(join(tmpdir(), "onetake-queue-"));
  const worker = fileURLToPath(new URL("worker.js", import.meta.url));
  const start = (mode: string) =>
    spawn(process.execPath, [worker, mode, folder, `${run.url}/charges`], {
      stdio: ["ignore", "pipe", "inherit"],
    });
  try {
    const first = start("submit");
    const dead = new Promise((resolve) => first.once("exit", resolve));
    while ((await run.report()).requests.length < requests) {
      if (first.exitCode !== null) throw new Error("the process ended before it was killed");
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    first.kill("SIGKILL");
    await dead;
    let text = "";
    const second = start("resume");
    second.stdout.on("data", (chunk: Buffer) => (text += chunk.toString()));
    await new Promise((resolve) => second.once("close", resolve));
    return text
      .split("\n")
      .filter(Boolean)
      .map((kind) => ({ kind }));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
