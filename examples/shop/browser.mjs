/** A headless Chromium, driven by the DevTools protocol over a pipe. */
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Starts a browser with one page. */
export async function startBrowser(url, { width = 760, height = 560 } = {}) {
  const profile = mkdtempSync(join(tmpdir(), "onetake-shop-browser-"));
  const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"];
  flags.push("--disable-dev-shm-usage", "--remote-debugging-pipe", "--hide-scrollbars");
  flags.push("--disable-background-timer-throttling", `--user-data-dir=${profile}`);
  flags.push("about:blank");
  const stdio = ["ignore", "ignore", "ignore", "pipe", "pipe"];
  const browser = spawn("chromium", flags, { stdio });
  const exited = new Promise((resolve) => browser.once("exit", resolve));
  const [, , , input, output] = browser.stdio;
  const waiting = new Map();
  let [next, text] = [1, ""];
  output.on("data", (chunk) => {
    text += chunk;
    const messages = text.split("\0");
    text = messages.pop();
    for (const message of messages.map((one) => JSON.parse(one))) {
      const { resolve, reject } = waiting.get(message.id) ?? {};
      if (message.error) reject?.(new Error(message.error.message));
      else resolve?.(message.result);
      waiting.delete(message.id);
    }
  });
  const send = (method, params = {}, sessionId = undefined) =>
    new Promise((resolve, reject) => {
      const id = next++;
      waiting.set(id, { resolve, reject });
      input.write(JSON.stringify({ id, method, params, sessionId }) + "\0");
    });
  const close = async () => {
    browser.kill();
    await exited;
    try {
      rmSync(profile, { recursive: true, force: true, maxRetries: 10, retryDelay: 200 });
    } catch {
      // Processes of the browser may still write there. The folder is a temporary one.
    }
  };
  let sessionId;
  try {
    const { targetId } = await send("Target.createTarget", { url });
    ({ sessionId } = await send("Target.attachToTarget", { targetId, flatten: true }));
    const size = { width, height, deviceScaleFactor: 1, mobile: false };
    await send("Emulation.setDeviceMetricsOverride", size, sessionId);
  } catch (error) {
    await close();
    throw error;
  }

  return {
    /** Evaluates an expression in the page. */
    async evaluate(expression) {
      const params = { expression, awaitPromise: true, returnByValue: true };
      const { result, exceptionDetails } = await send("Runtime.evaluate", params, sessionId);
      if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? expression);
      return result.value;
    },
    /** Clicks the first element of a selector with the mouse. */
    async click(selector) {
      const box = `JSON.stringify(document.querySelector(${JSON.stringify(selector)}).getBoundingClientRect())`;
      const { x, y, width, height } = JSON.parse(await this.evaluate(box));
      const at = { x: x + width / 2, y: y + height / 2, button: "left", clickCount: 1 };
      for (const type of ["mousePressed", "mouseReleased"]) {
        await send("Input.dispatchMouseEvent", { type, ...at }, sessionId);
      }
    },
    /** Limits the storage of the page's origin, in bytes. */
    async limitStorage(quotaSize) {
      const origin = new URL(url).origin;
      await send("Storage.overrideQuotaForOrigin", { origin, quotaSize }, sessionId);
    },
    /** Returns a PNG of the page. */
    async screenshot() {
      const shot = await send("Page.captureScreenshot", { format: "png" }, sessionId);
      return Buffer.from(shot.data, "base64");
    },
    close,
  };
}
