import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { compensationKey, intentFrom, intentWithKey, newIntent, stepKey } from "../src/index.js";
import { InvalidKey } from "../src/index.js";
import { fastClock } from "./support.js";

const ROOT = new URL("../../../../", import.meta.url);

function rows(path: string): string[][] {
  const lines = readFileSync(new URL(path, ROOT), "utf8").trimEnd().split("\n");
  return lines.filter((line) => !line.startsWith("#")).map((line) => line.split("\t"));
}

test("a new key is a UUID of version 7 with the time in front", () => {
  const clock = fastClock({ now: () => 0x0123_4567_89ab });
  const { key } = newIntent(clock);
  assert.match(key, /^01234567-89ab-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  assert.notEqual(newIntent(clock).key, key);
});

test("keys from business ids are those of the vectors", () => {
  const vectors = rows("clients/conformance/keys.tsv");
  assert.ok(vectors.length >= 6);
  for (const row of vectors) {
    const parts = row.slice(0, -1) as [string];
    assert.equal(intentFrom(...parts).key, row.at(-1), parts.join());
  }
});

test("keys of steps and compensations are those of the vectors", () => {
  const vectors = rows("crates/onetake-core/src/derived.tsv");
  assert.ok(vectors.length >= 5);
  for (const [, , , , derived = "", step = "", compensation] of vectors) {
    assert.equal(stepKey(derived, "charge-card"), step);
    assert.equal(compensationKey(step), compensation);
  }
});

test("a key that the server would refuse is refused at once", () => {
  for (const key of ["", "short", "x".repeat(256), "0123456789 abcdef", "0123456789abcdeü"]) {
    assert.throws(() => intentWithKey(key), InvalidKey, key);
  }
  for (const key of ['"0123456789abcdef"', "0123456789abcde\\", "0123456789abcdef\n"]) {
    assert.throws(() => intentWithKey(key), InvalidKey, key);
  }
  assert.throws(() => intentWithKey(undefined as unknown as string), InvalidKey);
  assert.throws(() => stepKey("no uuid", "charge-card"), InvalidKey);
  assert.equal(intentWithKey("x".repeat(255)).key.length, 255);
});
