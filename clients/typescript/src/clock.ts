/** Time and randomness of a client. Tests replace them. */
export interface Clock {
  /** Milliseconds of a clock that never goes back. Deadlines are measured with it. */
  monotonic(): number;
  /** Milliseconds since the epoch. Only dates in headers and new keys depend on it. */
  now(): number;
  /** Resolves after `ms`. Rejects with the signal's reason when the signal is aborted. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
  /** Calls `callback` after `ms`. The returned function cancels it. */
  after(ms: number, callback: () => void): () => void;
  /** Returns a number from 0 to 1. */
  random(): number;
}

/** The clock and the random source of the platform. */
export const systemClock: Clock = {
  monotonic: () => performance.now(),
  now: () => Date.now(),
  sleep: (ms, signal) =>
    new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const aborted = () => {
        clearTimeout(timer);
        reject(signal?.reason as Error);
      };
      const timer = setTimeout(() => {
        signal?.removeEventListener("abort", aborted);
        resolve();
      }, ms);
      signal?.addEventListener("abort", aborted, { once: true });
    }),
  after: (ms, callback) => {
    const timer = setTimeout(callback, ms);
    return () => clearTimeout(timer);
  },
  random: () => Math.random(),
};
