/** A problem document of onetake (RFC 9457), or the same content in Stripe's format. */
export interface Problem {
  readonly code: string;
  readonly detail?: string;
  readonly reference?: string;
  readonly [member: string]: unknown;
}

/** The limit that ended a call: see {@link Limits}. */
export type EndReason = "attempts" | "deadline" | "budget";

/** The facts that every error of a call has. */
export interface Facts<A = unknown> {
  /** The key of the operation. Keep it: only a retry with the same key is safe. */
  key: string;
  /** The number of times that the operation was sent. */
  attempts: number;
  /** The status of the last answer, if there was one. */
  status?: number | undefined;
  /** The problem document of the last answer, if it has one. */
  problem?: Problem | undefined;
  /** The name of the operation for support. */
  reference?: string | undefined;
  /** True if the answer is a recorded one. */
  replayed?: boolean | undefined;
  /** The limit that ended the call. Absent if the answer was final. */
  reason?: EndReason | undefined;
  /** The last answer: a `Response`, or the response of the wrapped library. */
  response?: A | undefined;
  cause?: unknown;
}

/** The base of all errors of this package. */
export class OnetakeError extends Error {
  override name = "OnetakeError";
}

/** A call that has no result. */
export abstract class CallError extends OnetakeError implements Facts {
  abstract readonly kind: string;
  readonly key: string;
  readonly attempts: number;
  readonly status?: number | undefined;
  readonly problem?: Problem | undefined;
  readonly reference?: string | undefined;
  readonly replayed: boolean;
  readonly reason?: EndReason | undefined;
  readonly response?: unknown;

  constructor(text: string, facts: Facts) {
    const detail = facts.problem?.detail;
    const words = [text, detail, facts.reference && `Reference: ${facts.reference}.`];
    super(words.filter(Boolean).join(" "), { cause: facts.cause });
    this.key = facts.key;
    this.attempts = facts.attempts;
    this.status = facts.status;
    this.problem = facts.problem;
    this.reference = facts.reference;
    this.replayed = facts.replayed ?? false;
    this.reason = facts.reason;
    this.response = facts.response;
  }
}

/** The key was used before with another payload. Nothing was run. */
export class Mismatch extends CallError {
  override name = "Mismatch";
  readonly kind = "mismatch";
  constructor(facts: Facts) {
    super("The key was used before with another payload. A new operation needs a new key.", facts);
  }
}

/** The operation is still running. */
export class InProgress extends CallError {
  override name = "InProgress";
  readonly kind = "in_progress";
  constructor(facts: Facts) {
    super("The operation is still running. Ask again later with the same key.", facts);
  }
}

/** The operation may have had its effect, and nobody knows. */
export class OutcomeUnknown extends CallError {
  override name = "OutcomeUnknown";
  readonly kind = "outcome_unknown";
  constructor(facts: Facts) {
    super(
      "The outcome is unknown: the operation may have had its effect. Do not pick a new key, " +
        "because a new key could run the operation twice. Ask again later with the same key.",
      facts,
    );
  }
}

/** A definite answer that is not a success. A retry would get it again. */
export class Refused extends CallError {
  override name = "Refused";
  readonly kind = "refused";
  constructor(facts: Facts) {
    super(`The operation was refused with status ${facts.status}.`, facts);
  }
}

/** No definite answer within the limits of the call. */
export class Unavailable extends CallError {
  override name = "Unavailable";
  readonly kind = "unavailable";
  constructor(facts: Facts) {
    super(
      `There was no definite answer (limit: ${facts.reason}). The operation may have run. ` +
        "Try again later with the same key.",
      facts,
    );
  }
}

/** A key that cannot be sent. Nothing was sent. */
export class InvalidKey extends OnetakeError {
  override name = "InvalidKey";
}

/** A body that can be read only once, so that it cannot be sent again. Nothing was sent. */
export class BodyNotReplayable extends OnetakeError {
  override name = "BodyNotReplayable";
  constructor() {
    super(
      "The body is a stream, which cannot be sent again in a retry. Pass a string, bytes, a Blob, " +
        "URLSearchParams or FormData.",
    );
  }
}

/** The queue's storage did not accept an intent. Nothing was applied or sent. */
export class StorageFailed extends OnetakeError {
  override name = "StorageFailed";
  constructor(cause: unknown) {
    super("The intent could not be stored, so it was neither applied nor sent.", { cause });
  }
}
