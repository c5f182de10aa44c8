import type { Clock } from "../src/index.js";

/** A clock that a delay advances at once. Timeouts of attempts take their real time. */
export class VirtualClock implements Clock {
  readonly delays: number[] = [];
  #time = 0;
  #drawn = 0;
  readonly #wall: number;
  readonly #random: number[];

  constructor(random: number[], wallClock?: string) {
    this.#random = random;
    this.#wall = wallClock === undefined ? Date.now() : Date.parse(wallClock);
  }

  monotonic(): number {
    return this.#time;
  }

  now(): number {
    return this.#wall;
  }

  async sleep(ms: number, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    this.delays.push(ms);
    this.#time += ms;
    await new Promise((resolve) => setImmediate(resolve));
  }

  after(ms: number, callback: () => void): () => void {
    const timer = setTimeout(() => {
      this.#time += ms;
      callback();
    }, ms);
    return () => clearTimeout(timer);
  }

  random(): number {
    return this.#random[this.#drawn++ % this.#random.length] as number;
  }
}
