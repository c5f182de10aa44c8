import type { BudgetSize } from "./budget.js";
import { Budget } from "./budget.js";
import type { Clock } from "./clock.js";
import { systemClock } from "./clock.js";
import { BodyNotReplayable, CallError, Refused } from "./errors.js";
import type { Intent } from "./keys.js";
import { intentWithKey, newIntent } from "./keys.js";
import type { Attempt, CallEvent, Context, Limits } from "./retry.js";
import { Call } from "./retry.js";
import type { Answer } from "./verdict.js";
import { isReplayed } from "./verdict.js";

/** The options of a client. */
export interface Options extends Partial<Limits> {
  /** The retry budget that all calls of this client share. */
  budget?: BudgetSize;
  /** Headers that are made for each attempt, such as a credential that must be fresh. */
  headers?: () => HeadersInit | Promise<HeadersInit>;
  /** Called for each attempt, retry, poll and end of a call. */
  observe?: (event: CallEvent) => void;
  /** The `fetch` to send with. */
  fetch?: typeof fetch;
  clock?: Clock;
}

/** The options of one call. */
export interface CallInit extends RequestInit {
  /** The intent whose key is sent. Without it, the header `Idempotency-Key` or a new key is used. */
  intent?: Intent;
  /** The time for this call, in milliseconds. */
  deadlineMs?: number;
}

/** The result of a call. */
export interface Result {
  /** The response. Its body has been read from the network completely. */
  readonly response: Response;
  readonly key: string;
  /** True if the operation had run before, and this is its recorded response. */
  readonly replayed: boolean;
  /** The name of the operation for support. */
  readonly reference: string | undefined;
  readonly attempts: number;
}

/** The default limits. */
export const DEFAULTS: Limits & { budget: BudgetSize } = {
  deadlineMs: 30_000,
  attemptTimeoutMs: 10_000,
  attemptsMax: 8,
  backoffBaseMs: 200,
  backoffMaxMs: 5_000,
  budget: { reserve: 10, ratio: 0.1 },
};

/** The methods that get a key. Other requests pass through unchanged. */
const KEYED = new Set(["POST", "PUT", "PATCH", "DELETE"]);

/** A client: it makes a key per intent and retries safely. Its calls share one retry budget. */
export class Onetake {
  readonly context: Context;
  readonly #fetch: typeof fetch;
  readonly #headers: Options["headers"];

  constructor(options: Options = {}) {
    const { budget, headers, observe, fetch: inner, clock, ...limits } = options;
    this.context = {
      limits: checked({ ...DEFAULTS, ...defined(limits) }),
      clock: clock ?? systemClock,
      budget: new Budget(budget ?? DEFAULTS.budget),
      observe,
    };
    this.#fetch = inner ?? ((...args) => globalThis.fetch(...args));
    this.#headers = headers;
  }

  /** Makes an intent with a new key. Call it when the user acts. */
  intent(): Intent {
    return newIntent(this.context.clock);
  }

  /** Sends an operation. Throws a `CallError` if it has no result, also for a refusal (4xx). */
  async send(input: string | URL | Request, init: CallInit = {}): Promise<Result> {
    const { intent, deadlineMs, ...rest } = init;
    const prepared = await prepare(input, rest);
    const stored = intent?.key ?? prepared.headers.get("idempotency-key");
    const { key } = stored === null ? this.intent() : intentWithKey(stored);
    const exchange = (attempt: Attempt) => this.#exchange(prepared, attempt);
    const context = this.within(deadlineMs);
    try {
      const { answer, attempts } = await new Call(context, exchange, key, prepared.signal).run();
      return {
        response: answer.response,
        key,
        replayed: isReplayed(answer),
        reference: answer.header("idempotency-reference") ?? undefined,
        attempts,
      };
    } catch (error) {
      if (error instanceof CallError && error.response instanceof FetchAnswer) {
        Object.defineProperty(error, "response", { value: error.response.response });
      }
      throw error;
    }
  }

  /**
   * A replacement of `fetch`. POST, PUT, PATCH and DELETE get a key and are retried. A refusal is
   * returned as a response, as with `fetch`; other errors are those of {@link Onetake.send}.
   */
  readonly fetch = async (input: string | URL | Request, init?: CallInit): Promise<Response> => {
    const method = init?.method ?? (input instanceof Request ? input.method : "GET");
    if (!KEYED.has(method.toUpperCase())) return this.#fetch(input, init);
    try {
      return (await this.send(input, init)).response;
    } catch (error) {
      if (error instanceof Refused) return error.response as Response;
      throw error;
    }
  };

  /** Returns the context of a call with its own deadline. */
  within(deadlineMs: number | undefined): Context {
    if (deadlineMs === undefined) return this.context;
    return { ...this.context, limits: checked({ ...this.context.limits, deadlineMs }) };
  }

  async #exchange(prepared: Prepared, attempt: Attempt): Promise<FetchAnswer> {
    const headers = new Headers(prepared.headers);
    new Headers(await this.#headers?.()).forEach((value, name) => headers.set(name, value));
    const { signal } = attempt;
    let url = prepared.url;
    let init: RequestInit = { ...prepared.init, headers, signal, body: prepared.body };
    if (attempt.poll !== undefined) {
      const handle = new URL(attempt.poll, url);
      // Credentials go to the server of the operation only.
      if (handle.origin !== new URL(url).origin) throw new TypeError("the handle is elsewhere");
      for (const name of ["idempotency-key", "content-type"]) headers.delete(name);
      init = { ...prepared.init, method: "GET", headers, signal };
      url = handle.href;
    }
    for (const [name, value] of Object.entries(attempt.headers)) headers.set(name, value);
    const response = await this.#fetch(url, init);
    // A connection that breaks in the body is a failed attempt, so the body is read here.
    return new FetchAnswer(response, await response.arrayBuffer());
  }
}

/** A request that can be sent any number of times. */
interface Prepared {
  readonly url: string;
  readonly init: RequestInit;
  readonly headers: Headers;
  readonly body: ArrayBuffer | null;
  readonly signal: AbortSignal | null | undefined;
}

async function prepare(input: string | URL | Request, init: RequestInit): Promise<Prepared> {
  const { body, signal, ...rest } = init;
  const isOnce = typeof body === "object" && body !== null && Symbol.asyncIterator in body;
  if (isOnce || body instanceof ReadableStream) throw new BodyNotReplayable();
  // The request is made once, so that every attempt has the same bytes and the same boundary.
  const request = new Request(input, { ...rest, body: body ?? null });
  const bytes = await request.arrayBuffer();
  const { method, url, headers, credentials, redirect, mode, cache, keepalive } = request;
  return {
    url,
    init: { ...rest, method, credentials, redirect, mode, cache, keepalive },
    headers,
    body: bytes.byteLength > 0 ? bytes : null,
    signal: signal ?? (input instanceof Request ? input.signal : undefined),
  };
}

/** A `Response` whose body has been read. */
class FetchAnswer implements Answer {
  readonly status: number;
  readonly response: Response;
  readonly json: unknown;

  constructor(received: Response, body: ArrayBuffer) {
    const { status, statusText, headers } = received;
    const hasBody = body.byteLength > 0 && ![204, 205, 304].includes(status);
    this.status = status;
    this.response = new Response(hasBody ? body : null, { status, statusText, headers });
    this.json = parsed(headers.get("content-type"), () => new TextDecoder().decode(body));
  }

  header(name: string): string | null {
    return this.response.headers.get(name);
  }
}

/** Returns the value of a JSON body, or `undefined`. */
export function parsed(contentType: string | null, text: () => string): unknown {
  if (!contentType?.includes("json")) return;
  try {
    return JSON.parse(text());
  } catch {
    return;
  }
}

function defined<T extends object>(options: T): T {
  return Object.fromEntries(Object.entries(options).filter(([, v]) => v !== undefined)) as T;
}

function checked(limits: Limits): Limits {
  for (const [name, value] of Object.entries(limits)) {
    if (name !== "budget" && !(Number.isFinite(value) && value > 0)) {
      throw new RangeError(`${name} must be a positive number, not ${String(value)}`);
    }
  }
  return limits;
}
