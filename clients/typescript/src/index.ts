/** Safe retries for browsers and Node: a key per intent, a retry budget, an optimistic queue. */
export type { BudgetSize } from "./budget.js";
export type { CallInit, Options, Result } from "./client.js";
export { DEFAULTS, Onetake } from "./client.js";
export type { Clock } from "./clock.js";
export { systemClock } from "./clock.js";
export type { EndReason, Problem } from "./errors.js";
export {
  BodyNotReplayable,
  CallError,
  InProgress,
  InvalidKey,
  Mismatch,
  OnetakeError,
  OutcomeUnknown,
  Refused,
  StorageFailed,
  Unavailable,
} from "./errors.js";
export type { Intent } from "./keys.js";
export { compensationKey, intentFrom, intentWithKey, newIntent, stepKey } from "./keys.js";
export type {
  Actions,
  NewQueuedIntent,
  QueuedIntent,
  QueuedRequest,
  QueueOptions,
  QueueStore,
  Settled,
} from "./queue.js";
export { Queue } from "./queue.js";
export type { CallEvent, Limits } from "./retry.js";
export { IndexedDbStore } from "./stores/indexeddb.js";
export { MemoryStore } from "./stores/memory.js";
