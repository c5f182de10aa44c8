import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { gzipSync } from "node:zlib";

import { build } from "esbuild";

import { serve } from "./support.js";

const PACKAGE = fileURLToPath(new URL("../../", import.meta.url));

/** The largest bundle, minified and compressed, in bytes. */
const BUNDLE_BYTES_MAX = 10_000;

test("the bundle for browsers is small and needs nothing of Node", async (t) => {
  const bundle = await build({
    entryPoints: [join(PACKAGE, "src/index.ts")],
    bundle: true,
    minify: true,
    format: "esm",
    platform: "browser",
    write: false,
  });
  const bytes = gzipSync(bundle.outputFiles[0]?.contents ?? "", { level: 9 }).length;
  t.diagnostic(`bundle: ${bytes} bytes, minified and compressed`);
  assert.ok(bytes < BUNDLE_BYTES_MAX, `${bytes} bytes`);
});

test("the package has no dependencies", () => {
  const description = JSON.parse(readFileSync(join(PACKAGE, "package.json"), "utf8")) as object;
  assert.ok(!("dependencies" in description));
});

/** The number of requests of each block of the README, with a key and without. */
const BLOCKS = [
  { title: "fetch, before", keyed: 0, bare: 1 },
  { title: "fetch, after", keyed: 2, bare: 0 },
  { title: "axios, before", keyed: 0, bare: 1 },
  { title: "axios, after", keyed: 2, bare: 0 },
  { title: "intents", keyed: 2, bare: 0 },
  { title: "limits", keyed: 2, bare: 0 },
  { title: "traces", keyed: 2, bare: 0 },
  { title: "queue", keyed: 2, bare: 0 },
  { title: "express", keyed: 0, bare: 0 },
  { title: "fastify", keyed: 0, bare: 0 },
];

test("every block of the README runs", async (t) => {
  const readme = readFileSync(join(PACKAGE, "README.md"), "utf8");
  const blocks = [...readme.matchAll(/^```js\n(.*?)^```/gms)].map((match) => match[1] ?? "");
  assert.equal(blocks.length, BLOCKS.length);
  for (const [i, { title, keyed, bare }] of BLOCKS.entries()) {
    await t.test(title, async (t) => {
      // The first response to a key is lost, so that the block needs a retry.
      const seen = new Set<unknown>();
      const { url, received } = await serve(t, ({ headers }, response) => {
        const key = headers["idempotency-key"];
        if (key !== undefined && !seen.has(key)) {
          seen.add(key);
          response.destroy();
          return;
        }
        response.statusCode = 201;
        response.setHeader("content-type", "application/json");
        response.end('{"charge":1}');
      });
      const folder = mkdtempSync(join(PACKAGE, "build/readme-"));
      t.after(() => rmSync(folder, { recursive: true, force: true }));
      const file = join(folder, "block.mjs");
      writeFileSync(file, (blocks[i] ?? "").replaceAll("https://api.example.com", url));
      await promisify(execFile)(process.execPath, [file], { cwd: folder, timeout: 60_000 });
      const keys = received.map(({ headers }) => headers["idempotency-key"]);
      assert.equal(keys.filter((key) => key !== undefined).length, keyed);
      assert.equal(keys.filter((key) => key === undefined).length, bare);
      assert.ok(new Set(keys).size <= 1);
    });
  }
});
