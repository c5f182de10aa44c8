import type { Onetake, Result } from "./client.js";
import { CallError, Mismatch, OutcomeUnknown, Refused, StorageFailed } from "./errors.js";
import type { Intent } from "./keys.js";
import { intentWithKey } from "./keys.js";
import type { Clock } from "./clock.js";

/** The request of an intent. Credentials do not belong in it: see `Options.headers`. */
export interface QueuedRequest {
  readonly url: string;
  /** The default is POST. */
  readonly method?: string;
  readonly headers?: Record<string, string>;
  readonly body?: string;
}

/** An intent for the queue. */
export interface NewQueuedIntent {
  /** The default is a new intent. */
  readonly intent?: Intent;
  /** The thing that changes. Intents of one entity are sent in order. */
  readonly entity: string;
  readonly request: QueuedRequest;
  /** A value of the application, which is kept with the intent. It must be JSON. */
  readonly data?: unknown;
}

/** An intent as it is stored. */
export interface QueuedIntent {
  readonly key: string;
  readonly entity: string;
  readonly request: QueuedRequest;
  readonly data?: unknown;
  /** `unknown` means that the operation may have had its effect: see {@link Queue.resolve}. */
  readonly state: "pending" | "unknown";
  /** The text of the error that made the outcome unknown. */
  readonly problem?: string;
}

/** The end of an intent. */
export type Settled = "applied" | "reverted";

/** The optimistic changes of one intent, in this process. */
export interface Actions {
  /** Shows the change. Called once the intent is stored, and again after a restart. */
  apply?(intent: QueuedIntent): void | Promise<void>;
  /** Undoes the change, after a definite failure. */
  revert?(intent: QueuedIntent, error?: CallError): void | Promise<void>;
  /** Called when the operation has succeeded. */
  confirm?(intent: QueuedIntent, result?: Result): void | Promise<void>;
  /** Called when the outcome is unknown. */
  unknown?(intent: QueuedIntent, error?: CallError): void | Promise<void>;
}

/** A durable storage for intents. */
export interface QueueStore {
  /**
   * Stores an intent behind all others. It is durable when the promise resolves. Resolves to false
   * if the key is stored already. Rejects if the intent is not stored.
   */
  add(intent: QueuedIntent): Promise<boolean>;
  /** Replaces the intent with the same key. */
  update(intent: QueuedIntent): Promise<void>;
  /** Removes an intent. */
  remove(key: string): Promise<void>;
  /** Returns all intents in the order in which they were added. */
  list(): Promise<QueuedIntent[]>;
  /** Runs `work` while no other process or tab runs its own. */
  exclusive<T>(work: () => Promise<T>): Promise<T>;
  /** Tells other tabs that an intent has ended. */
  announce?(key: string, settled: Settled): void;
  /** Calls `listener` when another tab has settled an intent. Returns a function that ends this. */
  listen?(listener: (key: string, settled: Settled) => void): () => void;
}

/** The options of a queue. */
export interface QueueOptions {
  client: Onetake;
  store: QueueStore;
  /** Returns the actions of an intent that was found in the store at the start. */
  actions?: (intent: QueuedIntent) => Actions | undefined;
  /** The number of entities whose intents are sent at once. */
  concurrencyMax?: number;
  /** The longest pause between calls while there is no answer, in milliseconds. */
  pauseMaxMs?: number;
  /** Called with an error of the store, which is asked again, or of an action. */
  onError?: (error: unknown) => void;
}

const PAUSE_BASE_MS = 1000;

/**
 * An optimistic queue. An intent is stored with its key before it is sent. It is shown at once, sent
 * until there is a definite answer, and undone if the answer is a failure.
 */
export class Queue {
  readonly #client: Onetake;
  readonly #store: QueueStore;
  readonly #clock: Clock;
  readonly #restored: QueueOptions["actions"];
  readonly #concurrencyMax: number;
  readonly #pauseMaxMs: number;
  readonly #onError: (error: unknown) => void;
  readonly #shown = new Map<string, { intent: QueuedIntent; actions: Actions }>();
  /** Keys that are stored and not applied yet. They are not sent. */
  readonly #applying = new Set<string>();
  readonly #stop = new AbortController();
  #changed = signalOnce();
  #wake = new AbortController();
  #draining: Promise<void> | undefined;
  #hasChanged = false;
  #unlisten: (() => void) | undefined;

  constructor(options: QueueOptions) {
    this.#client = options.client;
    this.#store = options.store;
    this.#clock = options.client.context.clock;
    this.#restored = options.actions;
    this.#concurrencyMax = options.concurrencyMax ?? 4;
    this.#pauseMaxMs = options.pauseMaxMs ?? 30_000;
    this.#onError = options.onError ?? ((error) => console.error("onetake:", error));
  }

  /** Applies the stored intents again and begins to send them. Call it once, at the start. */
  async start(): Promise<void> {
    this.#unlisten = this.#store.listen?.((key, settled) => void this.#heard(key, settled));
    globalThis.addEventListener?.("online", this.wake);
    for (const intent of await this.#store.list()) {
      const actions = this.#restored?.(intent);
      if (!actions || this.#shown.has(intent.key)) continue;
      this.#shown.set(intent.key, { intent, actions });
      await this.#act(actions.apply?.bind(actions, intent));
    }
    this.wake();
  }

  /** Ends the queue. Intents that are not settled stay in the store. */
  async stop(): Promise<void> {
    this.#stop.abort(new Error("the queue was stopped"));
    this.#unlisten?.();
    globalThis.removeEventListener?.("online", this.wake);
    await this.#draining;
  }

  /**
   * Stores an intent, applies it, and sends it in the background. Throws {@link StorageFailed} if
   * it cannot be stored; then it is neither applied nor sent. An intent whose key is stored already
   * is not applied again.
   */
  async submit(queued: NewQueuedIntent, actions: Actions = {}): Promise<QueuedIntent> {
    const { key } = intentWithKey((queued.intent ?? this.#client.intent()).key);
    const { entity, request, data } = queued;
    if (request.body !== undefined && typeof request.body !== "string") {
      throw new TypeError("the body of a queued request must be a string");
    }
    const intent: QueuedIntent = { key, entity, request, data, state: "pending" };
    this.#applying.add(key);
    try {
      await this.#add(intent, actions);
    } finally {
      this.#applying.delete(key);
      this.#change();
    }
    return intent;
  }

  /** Stores an intent and applies it, if it is new. */
  async #add(intent: QueuedIntent, actions: Actions): Promise<void> {
    const { key } = intent;
    let isNew: boolean;
    try {
      isNew = await this.#store.add(intent);
    } catch (error) {
      throw new StorageFailed(error);
    }
    if (!isNew) return;
    this.#shown.set(key, { intent, actions });
    try {
      await actions.apply?.(intent);
    } catch (error) {
      this.#shown.delete(key);
      await this.#store.remove(key);
      throw error;
    }
  }

  /** Returns the stored intents: those on their way, and those whose outcome is unknown. */
  intents(): Promise<QueuedIntent[]> {
    return this.#store.list();
  }

  /** Settles an intent whose outcome is unknown, when somebody has found out what became of it. */
  async resolve(key: string, settled: Settled): Promise<void> {
    const intent = (await this.#store.list()).find((intent) => intent.key === key);
    if (intent?.state === "unknown") await this.#settle(intent, settled);
    this.wake();
  }

  /** Sends an intent whose outcome is unknown again, with the same key. */
  async retry(key: string): Promise<void> {
    const intent = (await this.#store.list()).find((intent) => intent.key === key);
    if (intent) await this.#store.update({ ...intent, state: "pending" });
    this.wake();
  }

  /** Resolves when nothing can be sent: every intent is settled, unknown, or waits for one that is. */
  async idle(): Promise<void> {
    while (this.#draining) await this.#draining;
  }

  /** Ends pauses, for example because the device is online again. */
  readonly wake = (): void => {
    this.#wake.abort();
    this.#wake = new AbortController();
    this.#change();
  };

  /** Looks into the store again. */
  #change(): void {
    this.#hasChanged = true;
    this.#changed.resolve();
    this.#changed = signalOnce();
    if (this.#draining || this.#stop.signal.aborted) return;
    this.#draining = this.#drainExclusively().finally(() => {
      this.#draining = undefined;
      if (this.#hasChanged) this.#change();
    });
  }

  async #drainExclusively(): Promise<void> {
    for (let failures = 0; !this.#stop.signal.aborted; failures++) {
      try {
        return await this.#store.exclusive(() => this.#drain());
      } catch (error) {
        this.#onError(error);
        await this.#pause(failures);
      }
    }
    this.#hasChanged = false;
  }

  /** Sends the first intent of each entity until nothing is left that can be sent. */
  async #drain(): Promise<void> {
    const busy = new Map<string, Promise<void>>();
    for (;;) {
      this.#hasChanged = false;
      const changed = this.#changed.promise;
      if (!this.#stop.signal.aborted) {
        for (const intent of heads(await this.#store.list())) {
          if (busy.size >= this.#concurrencyMax) break;
          if (intent.state !== "pending" || busy.has(intent.entity)) continue;
          if (this.#applying.has(intent.key)) continue;
          const sent = this.#send(intent).catch((error: unknown) => {
            this.#onError(error);
            return this.#pause(0);
          });
          const done = () => void busy.delete(intent.entity);
          busy.set(intent.entity, sent.then(done));
        }
      }
      if (busy.size === 0) return;
      await Promise.race([...busy.values(), changed]);
    }
  }

  /** Sends one intent until its outcome is settled or unknown, or the queue is stopped. */
  async #send(intent: QueuedIntent): Promise<void> {
    const { url, method = "POST", headers = {}, body } = intent.request;
    const init = { method, headers, signal: this.#stop.signal, intent: { key: intent.key } };
    for (let pauses = 0; !this.#stop.signal.aborted; pauses++) {
      const sent = this.#client.send(url, body === undefined ? init : { ...init, body });
      const ended = await sent.catch((error: unknown) => error);
      if (!(ended instanceof Error)) return this.#settle(intent, "applied", ended as Result);
      if (ended instanceof Refused || ended instanceof Mismatch) {
        return this.#settle(intent, "reverted", undefined, ended);
      }
      if (ended instanceof OutcomeUnknown && ended.reason === undefined) {
        const unknown = { ...intent, state: "unknown", problem: ended.message } as const;
        await this.#store.update(unknown);
        const actions = this.#shown.get(intent.key)?.actions;
        return this.#act(actions?.unknown?.bind(actions, unknown, ended));
      }
      await this.#pause(pauses);
    }
  }

  async #pause(pauses: number): Promise<void> {
    const most = Math.min(this.#pauseMaxMs, PAUSE_BASE_MS * 2 ** pauses);
    const ended = AbortSignal.any([this.#stop.signal, this.#wake.signal]);
    await this.#clock.sleep(this.#clock.random() * most, ended).catch(() => undefined);
  }

  /** Tells the application, and removes the intent after that: a kill in between repeats the call. */
  async #settle(
    intent: QueuedIntent,
    settled: Settled,
    result?: Result,
    error?: CallError,
  ): Promise<void> {
    const actions = this.#shown.get(intent.key)?.actions;
    // Another tab can announce the same end at the same time: the application is told once.
    this.#shown.delete(intent.key);
    await this.#tell(actions, intent, settled, result, error);
    await this.#store.remove(intent.key);
    this.#store.announce?.(intent.key, settled);
  }

  /** Another tab has settled an intent that this tab shows. */
  async #heard(key: string, settled: Settled): Promise<void> {
    const shown = this.#shown.get(key);
    this.#shown.delete(key);
    if (shown) await this.#tell(shown.actions, shown.intent, settled);
  }

  async #tell(
    actions: Actions | undefined,
    intent: QueuedIntent,
    settled: Settled,
    result?: Result,
    error?: CallError,
  ): Promise<void> {
    const isApplied = settled === "applied";
    await this.#act(
      isApplied
        ? actions?.confirm?.bind(actions, intent, result)
        : actions?.revert?.bind(actions, intent, error),
    );
  }

  /** Runs an action. Its error must not keep the intent in the queue. */
  async #act(action: (() => void | Promise<void>) | undefined): Promise<void> {
    try {
      await action?.();
    } catch (error) {
      this.#onError(error);
    }
  }
}

/** A promise that is resolved from outside. */
function signalOnce(): { promise: Promise<void>; resolve: () => void } {
  let resolve = () => {};
  const promise = new Promise<void>((done) => (resolve = done));
  return { promise, resolve };
}

/** Returns the first intent of each entity. */
function heads(intents: QueuedIntent[]): QueuedIntent[] {
  const first = new Map<string, QueuedIntent>();
  for (const intent of intents) if (!first.has(intent.entity)) first.set(intent.entity, intent);
  return [...first.values()];
}
