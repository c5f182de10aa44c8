import type { Budget } from "./budget.js";
import type { Clock } from "./clock.js";
import type { CallError, EndReason, Facts } from "./errors.js";
import { InProgress, Mismatch, OutcomeUnknown, Refused, Unavailable } from "./errors.js";
import type { Answer, Verdict } from "./verdict.js";
import { isReplayed, problemOf, verdictOf, verdictOfPoll, waitOf } from "./verdict.js";

/** The limits of one call. */
export interface Limits {
  /** The time for the whole call, in milliseconds. */
  deadlineMs: number;
  /** The time for one attempt, in milliseconds. */
  attemptTimeoutMs: number;
  /** The largest number of attempts, the first one included. */
  attemptsMax: number;
  /** The largest delay before the first retry, in milliseconds. It doubles with each retry. */
  backoffBaseMs: number;
  /** The largest delay before any retry, in milliseconds. */
  backoffMaxMs: number;
}

/** What a call does. For logs and traces; it holds no key, header or body. */
export type CallEvent =
  | { type: "attempt"; attempt: number; leftMs: number }
  | { type: "poll" }
  | {
      type: "retry";
      attempt: number;
      delayMs: number;
      status?: number | undefined;
      error?: unknown;
    }
  | { type: "end"; attempts: number; kind: string; reference?: string | undefined };

/** What a call needs from its client. */
export interface Context {
  readonly limits: Limits;
  readonly clock: Clock;
  readonly budget: Budget;
  readonly observe: ((event: CallEvent) => void) | undefined;
}

/** A request of a call: the operation itself, or a poll of its handle. */
export interface Attempt {
  /** The location of the handle, as the server sent it. Absent in attempts of the operation. */
  readonly poll?: string;
  readonly headers: Record<string, string>;
  readonly signal: AbortSignal;
}

/** Sends one request and reads the whole answer. Rejects if the connection breaks. */
export type Exchange<A extends Answer> = (attempt: Attempt) => Promise<A>;

/** The end of a successful call. */
export interface Completed<A> {
  readonly answer: A;
  readonly attempts: number;
}

/** The time between two polls, if the server does not name one, in milliseconds. */
const POLL_MS = 1000;

const ERRORS = {
  mismatch: Mismatch,
  in_progress: InProgress,
  outcome_unknown: OutcomeUnknown,
  refused: Refused,
  unavailable: Unavailable,
};

/** One call: attempts, delays and polls until there is a result or a limit is reached. */
export class Call<A extends Answer> {
  readonly #context: Context;
  readonly #exchange: Exchange<A>;
  readonly #key: string;
  readonly #signal: AbortSignal | undefined;
  readonly #deadline: number;
  #attempts = 0;

  constructor(context: Context, exchange: Exchange<A>, key: string, signal?: AbortSignal | null) {
    this.#context = context;
    this.#exchange = exchange;
    this.#key = key;
    this.#signal = signal ?? undefined;
    this.#deadline = context.clock.monotonic() + context.limits.deadlineMs;
  }

  /** Runs the call. Throws a {@link CallError}, or the reason of the caller's signal. */
  async run(): Promise<Completed<A>> {
    this.#context.budget.earn();
    for (;;) {
      this.#attempts += 1;
      const left = this.#left();
      this.#observe({ type: "attempt", attempt: this.#attempts, leftMs: left });
      const tried = await this.#try({
        "Idempotency-Key": this.#key,
        "X-Request-Timeout-Ms": String(Math.max(1, Math.floor(left))),
      });
      const verdict = tried.answer ? verdictOf(tried.answer) : UNANSWERED;
      if (verdict.do === "poll") return this.#poll(verdict.handle, tried);
      if (verdict.do !== "retry") return this.#end(verdict, tried);
      await this.#backOff(verdict, tried);
    }
  }

  /** Waits before the next attempt, or ends the call if a limit is reached. */
  async #backOff(verdict: Verdict & { do: "retry" }, tried: Tried<A>): Promise<void> {
    const { limits, clock, budget } = this.#context;
    const backoff = Math.min(limits.backoffMaxMs, limits.backoffBaseMs * 2 ** (this.#attempts - 1));
    const asked = tried.answer ? waitOf(tried.answer, clock.now()) : 0;
    const delayMs = clock.random() * backoff + asked;
    if (this.#attempts >= limits.attemptsMax) throw this.#error(verdict.as, tried, "attempts");
    if (delayMs >= this.#left()) throw this.#error(verdict.as, tried, "deadline");
    if (!budget.spend()) throw this.#error(verdict.as, tried, "budget");
    const [attempt, status, error] = [this.#attempts, tried.answer?.status, tried.cause];
    this.#observe({ type: "retry", attempt, delayMs, status, error });
    await clock.sleep(delayMs, this.#signal);
  }

  /** Polls a handle until the outcome is there. The operation itself is not sent again. */
  async #poll(handle: string, accepted: Tried<A>): Promise<Completed<A>> {
    const { limits, clock } = this.#context;
    let last = accepted;
    for (;;) {
      const asked = last.answer ? waitOf(last.answer, clock.now()) : 0;
      const delay = clock.random() * limits.backoffBaseMs + (asked || POLL_MS);
      if (delay >= this.#left()) throw this.#error("in_progress", last, "deadline");
      await clock.sleep(delay, this.#signal);
      this.#observe({ type: "poll" });
      last = await this.#try({}, handle);
      const verdict = last.answer ? verdictOfPoll(last.answer) : UNANSWERED;
      if (verdict.do === "finish" || verdict.do === "fail") return this.#end(verdict, last);
    }
  }

  /** Sends one request, within the time for an attempt. */
  async #try(headers: Record<string, string>, poll?: string): Promise<Tried<A>> {
    const { limits, clock } = this.#context;
    const controller = new AbortController();
    const aborted = () => controller.abort(this.#signal?.reason);
    this.#signal?.throwIfAborted();
    this.#signal?.addEventListener("abort", aborted, { once: true });
    const timeout = Math.min(limits.attemptTimeoutMs, this.#left());
    const cancel = clock.after(timeout, () => {
      controller.abort(new DOMException(`no answer within ${timeout} ms`, "TimeoutError"));
    });
    try {
      const { signal } = controller;
      const attempt = poll === undefined ? { headers, signal } : { headers, signal, poll };
      return { answer: await this.#exchange(attempt) };
    } catch (cause) {
      this.#signal?.throwIfAborted();
      return { cause };
    } finally {
      cancel();
      this.#signal?.removeEventListener("abort", aborted);
    }
  }

  #end(verdict: Verdict & { do: "finish" | "fail" }, tried: Tried<A>): Completed<A> {
    if (verdict.do === "fail" || !tried.answer) {
      throw this.#error(verdict.do === "fail" ? verdict.as : "unavailable", tried);
    }
    const reference = tried.answer.header("idempotency-reference") ?? undefined;
    this.#observe({ type: "end", attempts: this.#attempts, kind: "ok", reference });
    return { answer: tried.answer, attempts: this.#attempts };
  }

  #error(kind: keyof typeof ERRORS, tried: Tried<A>, reason?: EndReason): CallError {
    const { answer, cause } = tried;
    const facts: Facts = { key: this.#key, attempts: this.#attempts, reason, cause };
    if (answer) {
      facts.problem = problemOf(answer);
      facts.status = answer.status;
      facts.reference = answer.header("idempotency-reference") ?? facts.problem?.reference;
      facts.replayed = isReplayed(answer);
      facts.response = answer;
    }
    const { reference } = facts;
    this.#observe({ type: "end", attempts: this.#attempts, kind, reference });
    return new ERRORS[kind](facts);
  }

  #left(): number {
    return this.#deadline - this.#context.clock.monotonic();
  }

  /** Tells the observer. An error of the observer must not end a call. */
  #observe(event: CallEvent): void {
    try {
      this.#context.observe?.(event);
    } catch {
      // Nothing else can be told.
    }
  }
}

/** The result of one request: an answer, or the error of the connection. */
interface Tried<A> {
  readonly answer?: A;
  readonly cause?: unknown;
}

const UNANSWERED = { do: "retry", as: "unavailable" } as const;
