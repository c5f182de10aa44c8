import type { QueuedIntent, QueueStore } from "../queue.js";

/** A store in memory. Intents are lost when the process ends. */
export class MemoryStore implements QueueStore {
  readonly #intents = new Map<string, QueuedIntent>();

  add(intent: QueuedIntent): Promise<boolean> {
    if (this.#intents.has(intent.key)) return Promise.resolve(false);
    this.#intents.set(intent.key, intent);
    return Promise.resolve(true);
  }

  update(intent: QueuedIntent): Promise<void> {
    this.#intents.set(intent.key, intent);
    return Promise.resolve();
  }

  remove(key: string): Promise<void> {
    this.#intents.delete(key);
    return Promise.resolve();
  }

  list(): Promise<QueuedIntent[]> {
    return Promise.resolve([...this.#intents.values()]);
  }

  exclusive<T>(work: () => Promise<T>): Promise<T> {
    return work();
  }
}
