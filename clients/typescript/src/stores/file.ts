import { createHash } from "node:crypto";
import { mkdir, open, readdir, readFile, rename, rm, stat, utimes } from "node:fs/promises";
import { join } from "node:path";

import { systemClock } from "../clock.js";
import type { QueuedIntent, QueueStore } from "../queue.js";

/** The age at which a lock counts as left over, in milliseconds. Its owner renews it more often. */
const LOCK_AGE_MAX_MS = 10_000;
const LOCK_RENEWAL_MS = 2_000;
const LOCK_PAUSE_MS = 100;

/** A store in a folder, one file per intent. A file is there whole or not at all. */
export class FileStore implements QueueStore {
  readonly #folder: string;
  readonly #read = new Map<string, QueuedIntent>();
  #last = 0;
  #isTidy = false;
  #turn: Promise<unknown> = Promise.resolve();

  constructor(folder: string) {
    this.#folder = folder;
  }

  add(intent: QueuedIntent): Promise<boolean> {
    // One at a time, so that numbers and keys stay unique.
    return this.#inTurn(async () => {
      if (await this.#find(intent.key)) return false;
      const number = String(++this.#last).padStart(12, "0");
      await this.#write(`${number}-${digest(intent.key)}.json`, intent);
      return true;
    });
  }

  update(intent: QueuedIntent): Promise<void> {
    return this.#inTurn(async () => {
      const name = await this.#find(intent.key);
      if (name) await this.#write(name, intent);
    });
  }

  remove(key: string): Promise<void> {
    return this.#inTurn(async () => {
      const name = await this.#find(key);
      if (!name) return;
      await rm(join(this.#folder, name), { force: true });
      this.#read.delete(name);
    });
  }

  list(): Promise<QueuedIntent[]> {
    return this.#inTurn(async () => {
      await this.#refresh();
      return [...this.#read].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, intent]) => intent);
    });
  }

  /**
   * Runs `work` while no other process does. The lock is a file with the number of a process. A lock
   * of a process that has ended, or that nobody renewed, is taken over.
   */
  async exclusive<T>(work: () => Promise<T>): Promise<T> {
    const path = join(this.#folder, "queue.lock");
    await mkdir(this.#folder, { recursive: true });
    while (!(await locked(path))) await systemClock.sleep(LOCK_PAUSE_MS);
    const renewal = setInterval(() => {
      const now = new Date();
      utimes(path, now, now).catch(() => undefined);
    }, LOCK_RENEWAL_MS);
    renewal.unref();
    try {
      return await work();
    } finally {
      clearInterval(renewal);
      await rm(path, { force: true });
    }
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#turn.then(work);
    this.#turn = turn.catch(() => undefined);
    return turn;
  }

  async #find(key: string): Promise<string | undefined> {
    await this.#refresh();
    const end = `-${digest(key)}.json`;
    return [...this.#read.keys()].find((name) => name.endsWith(end));
  }

  /** Reads the files that this process has not read yet, and forgets those that are gone. */
  async #refresh(): Promise<void> {
    await mkdir(this.#folder, { recursive: true });
    const files = await readdir(this.#folder);
    if (!this.#isTidy) await this.#tidy(files);
    const names = files.filter((name) => name.endsWith(".json"));
    const present = new Set(names);
    for (const name of this.#read.keys()) if (!present.has(name)) this.#read.delete(name);
    for (const name of names) {
      this.#last = Math.max(this.#last, Number(name.slice(0, 12)));
      if (this.#read.has(name)) continue;
      const text = await readFile(join(this.#folder, name), "utf8").catch(() => undefined);
      if (text !== undefined) this.#read.set(name, JSON.parse(text) as QueuedIntent);
    }
  }

  /** Removes what killed processes left half-written. */
  async #tidy(files: string[]): Promise<void> {
    for (const name of files) {
      const owner = /\.(\d+)\.part$/.exec(name)?.[1];
      if (owner !== undefined && !isRunning(Number(owner))) {
        await rm(join(this.#folder, name), { force: true });
      }
    }
    this.#isTidy = true;
  }

  async #write(name: string, intent: QueuedIntent): Promise<void> {
    const path = join(this.#folder, name);
    const part = `${path}.${process.pid}.part`;
    try {
      const file = await open(part, "w", 0o600);
      try {
        await file.writeFile(JSON.stringify(intent));
        await file.sync();
      } finally {
        await file.close();
      }
      await rename(part, path);
    } catch (error) {
      await rm(part, { force: true }).catch(() => undefined);
      throw error;
    }
    // The name of a file is durable once its folder is.
    const folder = await open(this.#folder, "r");
    await folder.sync().finally(() => folder.close());
    this.#read.set(name, intent);
  }
}

async function locked(path: string): Promise<boolean> {
  try {
    const file = await open(path, "wx", 0o600);
    await file.writeFile(String(process.pid)).finally(() => file.close());
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
  }
  try {
    const owner = Number(await readFile(path, "utf8"));
    const age = Date.now() - (await stat(path)).mtimeMs;
    if ((owner > 0 && !isRunning(owner)) || age > LOCK_AGE_MAX_MS) await rm(path, { force: true });
  } catch {
    // The lock has just been released.
  }
  return false;
}

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

function digest(key: string): string {
  return createHash("sha256").update(key).digest("hex").slice(0, 32);
}
