/**
 * Counts effects through a gateway whose responses are lost: `node effects.js PROXY`. Sends 1,000
 * intents, and then 500 through a queue whose process is killed 50 times. Prints one JSON line each.
 */
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { Onetake } from "../src/index.js";

const INTENTS = 1000;
const AT_ONCE = 20;
const QUEUED = 500;
const KILLS = 50;

interface Effects {
  keys: number;
  runs: number;
  runs_of_one_key_max: number;
  responses: number;
  lost: number;
}

const [proxy = ""] = process.argv.slice(2);

async function effects(): Promise<Effects> {
  return (await (await fetch(`${proxy}/-/effects`)).json()) as Effects;
}

/** Runs `work` and compares the number of effects with the number of intents. */
async function count(
  what: string,
  intents: number,
  work: () => Promise<Record<string, unknown>>,
): Promise<void> {
  const before = await effects();
  const began = performance.now();
  const more = await work();
  const seconds = Number(((performance.now() - began) / 1000).toFixed(1));
  const after = await effects();
  const [keys, runs] = [after.keys - before.keys, after.runs - before.runs];
  const ok =
    keys === intents && runs === intents && after.runs_of_one_key_max === 1 && more["ok"] !== false;
  const lost = after.lost - before.lost;
  const line = { client: `typescript ${what}`, intents, keys, effects: runs, lost, seconds };
  console.log(JSON.stringify({ ...line, ...more, ok }));
  if (!ok) process.exitCode = 1;
}

await count("fetch", INTENTS, async () => {
  const budget = { reserve: INTENTS, ratio: 1 };
  const client = new Onetake({ budget, backoffBaseMs: 20, attemptsMax: 20 });
  let [next, succeeded] = [0, 0];
  const worker = async () => {
    while (next++ < INTENTS) {
      const result = await client.send(`${proxy}/charges`, {
        method: "POST",
        body: `amount=${next}`,
      });
      succeeded += Number(result.response.status === 201);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  return { ok: succeeded === INTENTS };
});

await count("queue", QUEUED, async () => {
  const folder = mkdtempSync(join(tmpdir(), "onetake-effects-"));
  const log = join(folder, "log");
  const worker = fileURLToPath(new URL("effects-worker.js", import.meta.url));
  const settled = () => (existsSync(log) ? readFileSync(log, "utf8").trim().split("\n") : []);
  let kills = 0;
  try {
    for (let isDone = false; !isDone;) {
      const child = spawn(process.execPath, [worker, folder, `${proxy}/charges`, String(QUEUED)], {
        stdio: "inherit",
      });
      const exited = new Promise<number | null>((resolve) => child.once("exit", resolve));
      const target = ((kills + 1) * QUEUED) / (KILLS + 2);
      while (kills < KILLS && child.exitCode === null && settled().length < target) {
        await new Promise((resolve) => setTimeout(resolve, 2));
      }
      if (kills < KILLS && child.kill("SIGKILL")) kills += 1;
      isDone = (await exited) === 0;
    }
    const ends = new Map(settled().map((line) => line.split(" ") as [string, string]));
    const applied = [...ends.values()].filter((end) => end === "applied").length;
    const reverted = [...ends.values()].filter((end) => end === "reverted").length;
    const left = readdirSync(join(folder, "queue")).length;
    const ok =
      kills === KILLS && applied + reverted === QUEUED && reverted === QUEUED / 10 && !left;
    return { kills, applied, reverted, left, ok };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
