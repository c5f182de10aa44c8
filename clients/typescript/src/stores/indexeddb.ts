import type { QueuedIntent, QueueStore, Settled } from "../queue.js";

const INTENTS = "intents";

/**
 * A store in a browser's IndexedDB. All tabs of an origin share it. A Web Lock lets one tab send at
 * a time, and a BroadcastChannel tells the others what became of their intents.
 */
export class IndexedDbStore implements QueueStore {
  readonly #name: string;
  readonly #channel: BroadcastChannel | undefined;
  #database: Promise<IDBDatabase> | undefined;

  constructor(name = "onetake") {
    this.#name = name;
    if (typeof BroadcastChannel !== "undefined") this.#channel = new BroadcastChannel(name);
  }

  async add(intent: QueuedIntent): Promise<boolean> {
    let isNew = true;
    await this.#write((intents) => {
      intents.index("key").getKey(intent.key).onsuccess = (event) => {
        isNew = (event.target as IDBRequest).result === undefined;
        if (isNew) intents.add(intent);
      };
    });
    return isNew;
  }

  update(intent: QueuedIntent): Promise<void> {
    return this.#write((intents) => {
      intents.index("key").openCursor(intent.key).onsuccess = (event) => {
        (event.target as IDBRequest<IDBCursorWithValue | null>).result?.update(intent);
      };
    });
  }

  remove(key: string): Promise<void> {
    return this.#write((intents) => {
      intents.index("key").openCursor(key).onsuccess = (event) => {
        (event.target as IDBRequest<IDBCursorWithValue | null>).result?.delete();
      };
    });
  }

  async list(): Promise<QueuedIntent[]> {
    const database = await this.#open();
    return new Promise((resolve, reject) => {
      const request = database.transaction(INTENTS).objectStore(INTENTS).getAll();
      request.onsuccess = () => resolve(request.result as QueuedIntent[]);
      request.onerror = () => reject(request.error);
    });
  }

  /**
   * Runs `work` under a Web Lock. Browsers have Web Locks in secure contexts only; elsewhere two
   * tabs may send the same intent at once, with the same key.
   */
  async exclusive<T>(work: () => Promise<T>): Promise<T> {
    const locks = (globalThis.navigator as Navigator | undefined)?.locks;
    return locks ? await locks.request(`onetake:${this.#name}`, work) : await work();
  }

  announce(key: string, settled: Settled): void {
    this.#channel?.postMessage({ key, settled });
  }

  listen(listener: (key: string, settled: Settled) => void): () => void {
    const heard = (event: MessageEvent<{ key: string; settled: Settled }>) =>
      listener(event.data.key, event.data.settled);
    this.#channel?.addEventListener("message", heard);
    return () => this.#channel?.removeEventListener("message", heard);
  }

  /** Closes the database and the channel. */
  async close(): Promise<void> {
    this.#channel?.close();
    (await this.#database)?.close();
    this.#database = undefined;
  }

  /** Runs one transaction. It is on disk when the promise resolves. */
  async #write(change: (intents: IDBObjectStore) => void): Promise<void> {
    const database = await this.#open();
    await new Promise<void>((resolve, reject) => {
      const transaction = database.transaction(INTENTS, "readwrite", { durability: "strict" });
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error ?? new Error("aborted"));
      change(transaction.objectStore(INTENTS));
    });
  }

  #open(): Promise<IDBDatabase> {
    this.#database ??= new Promise<IDBDatabase>((resolve, reject) => {
      const request = indexedDB.open(this.#name, 1);
      request.onupgradeneeded = () => {
        // The numbers of autoIncrement keep the order of submission, whatever the clock does.
        const intents = request.result.createObjectStore(INTENTS, { autoIncrement: true });
        intents.createIndex("key", "key", { unique: true });
      };
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    }).catch((error: unknown) => {
      // A storage that is blocked now can be allowed later.
      this.#database = undefined;
      throw error;
    });
    return this.#database;
  }
}
