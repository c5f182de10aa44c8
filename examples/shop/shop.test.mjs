/**
 * The shop in a real browser: `ONETAKE_GATEWAY=target/debug/onetake node --test examples/shop/`.
 * With `ONETAKE_WRITE_DOCS` it also writes the screenshot of the README.
 */
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";

import { startBrowser } from "./browser.mjs";
import { startShop } from "./start.mjs";

const SCREENSHOT = new URL("screenshot.png", import.meta.url);

/** The largest screenshot, in bytes. */
const SCREENSHOT_BYTES_MAX = 100_000;

/** Waits until a condition holds in the page. */
async function until(browser, condition) {
  const end = performance.now() + 60_000;
  // The page may be loading.
  while (!(await browser.evaluate(condition).catch(() => false))) {
    if (performance.now() > end) {
      const text = await browser.evaluate("document.body.innerText");
      throw new Error(`${condition} did not become true:\n${text}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const count = (state) => `document.querySelectorAll("li.${state}").length`;
const isReady = `document.body.dataset.ready === "true"`;

test("every tap has one effect, whatever the network loses", async (t) => {
  const shop = await startShop({ gateway: process.env.ONETAKE_GATEWAY });
  t.after(() => shop.stop());
  const browser = await startBrowser(shop.url);
  t.after(() => browser.close());
  await until(browser, isReady);
  const buy = (item) => browser.click(`[data-item="${item}"]`);
  const network = async (change) => {
    await browser.click(`[data-network='${JSON.stringify(change)}']`);
    for (const [name, value] of Object.entries(change)) {
      await until(
        browser,
        `fetch("/network").then((n) => n.json()).then((n) => n.${name} === ${value})`,
      );
    }
  };

  await t.test("a tap is an order", async () => {
    await buy("coffee");
    await until(browser, `${count("bought")} === 1`);
    assert.equal(shop.api.orders.length, 1);
  });

  await t.test("lost responses are asked for again, and nothing is bought twice", async () => {
    await network({ lose: 3 });
    await buy("cake");
    await until(browser, `${count("bought")} === 2`);
    assert.match(await browser.evaluate(`document.querySelector("li").innerText`), /recorded/);
    assert.deepEqual([shop.network.state.lost, shop.api.orders.length], [3, 2]);
  });

  await t.test("a refusal is taken back", async () => {
    await network({ lose: 1 });
    await buy("unicorn");
    await until(browser, `${count("reverted")} === 1`);
    assert.equal(shop.api.orders.length, 2);
  });

  await t.test("taps without a network are shown at once and survive a reload", async () => {
    await network({ offline: true });
    await buy("coffee");
    await buy("coffee");
    await buy("cake");
    await until(browser, `${count("pending")} === 3`);
    await browser.evaluate("document.body.dataset.ready = 'old'");
    await browser.click("#reload");
    await until(browser, isReady);
    assert.equal(await browser.evaluate(count("pending")), 3);
    assert.equal(shop.api.orders.length, 2);
    await network({ offline: false });
    await until(browser, `${count("bought")} === 3`);
    assert.equal(shop.api.orders.length, 5);
  });

  await t.test("each order has another derived key", () => {
    const keys = shop.api.orders.map(({ derivedKey }) => derivedKey);
    assert.equal(new Set(keys).size, keys.length);
    assert.ok(keys.every((key) => /^[0-9a-f-]{36}$/.test(key)));
  });

  await t.test("the screenshot of the README is a PNG", async () => {
    // Something of everything is on the page.
    await network({ lose: 1 });
    await buy("cake");
    await until(browser, `${count("bought")} === 4`);
    await buy("unicorn");
    await until(browser, `${count("reverted")} === 1`);
    await network({ offline: true });
    await buy("coffee");
    await until(browser, `${count("pending")} === 1`);
    await until(browser, `document.querySelector("#taps").textContent === "9"`);
    const shot = await browser.screenshot();
    if (process.env.ONETAKE_WRITE_DOCS) writeFileSync(SCREENSHOT, shot);
    for (const image of [shot, readFileSync(SCREENSHOT)]) {
      assert.equal(image.subarray(1, 4).toString(), "PNG");
      assert.ok(image.length < SCREENSHOT_BYTES_MAX, `${image.length} bytes`);
    }
  });
});

test("a tap that cannot be stored is neither shown nor sent", async (t) => {
  const shop = await startShop({ gateway: process.env.ONETAKE_GATEWAY });
  t.after(() => shop.stop());
  const browser = await startBrowser(shop.url);
  t.after(() => browser.close());
  // The storage is full. The browser remembers free space for a while, so this is before any write.
  await browser.limitStorage(1);
  await until(browser, isReady);
  await browser.click(`[data-item="coffee"]`);
  await until(browser, `document.querySelector("#notice").textContent !== ""`);
  const notice = await browser.evaluate(`document.querySelector("#notice").textContent`);
  assert.match(notice, /could not be stored/);
  assert.equal(await browser.evaluate(`document.querySelectorAll("li").length`), 0);
  assert.deepEqual([shop.network.state.requests, shop.api.orders.length], [0, 0]);
});
