import type { Problem } from "./errors.js";

/** An answer with its whole body. */
export interface Answer {
  readonly status: number;
  header(name: string): string | null;
  /** The body, if it is JSON. */
  readonly json: unknown;
}

/** What follows an answer. */
export type Verdict =
  | { do: "finish" }
  | { do: "poll"; handle: string }
  | { do: "retry"; as: "unavailable" | "in_progress" | "outcome_unknown" }
  | { do: "fail"; as: "mismatch" | "outcome_unknown" | "refused" };

const RETRYABLE = new Set([408, 425, 429, 502, 503, 504]);

/** Decides what follows the answer to an operation. */
export function verdictOf(answer: Answer): Verdict {
  const { status } = answer;
  const code = problemOf(answer)?.code;
  if (code === "idempotency_payload_mismatch") return { do: "fail", as: "mismatch" };
  // A recorded answer is the outcome, whatever its status: a retry would get it again.
  if (isReplayed(answer)) return status < 400 ? { do: "finish" } : { do: "fail", as: "refused" };
  const handle = answer.header("location");
  if (status === 202 && handle?.includes("/.onetake/operations/")) return { do: "poll", handle };
  if (status < 400) return { do: "finish" };
  switch (code) {
    case "request_in_progress":
    case "in_progress_timeout":
      return { do: "retry", as: "in_progress" };
    case "outcome_unknown":
    case "outcome_pending":
      return { do: "retry", as: "outcome_unknown" };
    case "previous_attempt_failed":
      return { do: "fail", as: "outcome_unknown" };
    case "misconfigured":
      return { do: "fail", as: "refused" };
  }
  if (RETRYABLE.has(status)) return { do: "retry", as: "unavailable" };
  if (status < 500) return { do: "fail", as: "refused" };
  // Any other 5xx leaves the outcome open, unless the answer says that the key was released.
  const isReleased = answer.header("onetake-outcome") === "release";
  return isReleased ? { do: "retry", as: "unavailable" } : { do: "fail", as: "outcome_unknown" };
}

/** Decides what follows the answer to a poll of a handle. */
export function verdictOfPoll(answer: Answer): Verdict {
  const running = (answer.json as { status?: unknown } | undefined)?.status === "running";
  if (answer.status === 200 && running && !isReplayed(answer)) {
    return { do: "retry", as: "in_progress" };
  }
  // The outcome has expired or belongs to another caller. Sending the operation again could run it
  // twice.
  if (problemOf(answer)?.code === "operation_not_found") {
    return { do: "fail", as: "outcome_unknown" };
  }
  const verdict = verdictOf(answer);
  return verdict.do === "poll" ? { do: "retry", as: "in_progress" } : verdict;
}

/** Returns true if the answer is a recorded one. */
export function isReplayed(answer: Answer): boolean {
  return answer.header("idempotent-replayed") === "true";
}

/** Returns the problem document of an answer, also in Stripe's format. */
export function problemOf(answer: Answer): Problem | undefined {
  if (answer.status < 400 || typeof answer.json !== "object" || answer.json === null) return;
  const document = answer.json as { error?: unknown; message?: unknown; code?: unknown };
  const error = document.error;
  const members = typeof error === "object" && error !== null ? error : document;
  const { code, message } = members as { code?: unknown; message?: unknown };
  if (typeof code !== "string") return;
  return message === undefined || "detail" in members
    ? (members as Problem)
    : ({ ...members, detail: message } as Problem);
}

/** Returns the milliseconds for which the server asks to wait, or 0. */
export function waitOf(answer: Answer, now: number): number {
  return Math.max(retryAfter(answer, now), rateLimit(answer));
}

function retryAfter(answer: Answer, now: number): number {
  const text = answer.header("retry-after")?.trim() ?? "";
  if (/^\d+$/.test(text)) return Number(text) * 1000;
  // A date has a comma and a year; `Date.parse` also accepts much that is not one.
  const date = /^[A-Z][a-z]{2}, .* GMT$/.test(text) ? Date.parse(text) : NaN;
  return Number.isNaN(date) ? 0 : Math.max(0, date - now);
}

/** Reads `RateLimit: "policy";r=0;t=5`, and the older `RateLimit-Remaining` and `-Reset`. */
function rateLimit(answer: Answer): number {
  const waits = (answer.header("ratelimit") ?? "").split(",").map((item) => {
    const seconds = /;\s*t=(\d+)/.exec(item)?.[1];
    return /;\s*r=0(?!\d)/.test(item) && seconds ? Number(seconds) * 1000 : 0;
  });
  const reset = answer.header("ratelimit-reset") ?? "";
  if (answer.header("ratelimit-remaining") === "0" && /^\d+$/.test(reset)) {
    waits.push(Number(reset) * 1000);
  }
  return Math.max(...waits);
}
