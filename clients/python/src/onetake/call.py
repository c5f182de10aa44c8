"""One call: attempts, delays and polls. Drivers do the input and output."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from .clock import Clock, SystemClock
from .errors import (
    CallError,
    EndReason,
    Facts,
    InProgress,
    Mismatch,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from .keys import Intent
from .verdict import (
    UNANSWERED,
    Answer,
    ErrorKind,
    Verdict,
    problem_of,
    verdict_of,
    verdict_of_poll,
    wait_of,
)

#: The time between two polls, if the server does not name one, in seconds.
POLL_SECONDS = 1.0

_ERRORS: Mapping[ErrorKind, type[CallError]] = {
    "mismatch": Mismatch,
    "in_progress": InProgress,
    "outcome_unknown": OutcomeUnknown,
    "refused": Refused,
    "unavailable": Unavailable,
}


class Budget:
    """A token bucket for retries. All calls of a client share it.

    `ratio` is the number of retries that each call earns: 0.1 means that retries are at most 10 %
    of calls. `reserve` is the largest number of retries that can be saved up.
    """

    def __init__(
        self, reserve: float = 10, ratio: float = 0.1, initial: float | None = None
    ) -> None:
        self._reserve = reserve
        self._ratio = ratio
        self._tokens = reserve if initial is None else initial
        self._lock = threading.Lock()

    def earn(self) -> None:
        """Count a call."""
        with self._lock:
            self._tokens = min(self._reserve, self._tokens + self._ratio)

    def spend(self) -> bool:
        """Take one retry. Return False if none is left."""
        with self._lock:
            # Sums of 0.1 are a little less than a whole number.
            if self._tokens < 1 - 1e-9:
                return False
            self._tokens -= 1
            return True


@dataclass(frozen=True)
class Limits:
    """The limits of one call."""

    #: The time for the whole call. It is sent as `X-Request-Timeout-Ms`.
    deadline_seconds: float = 30.0
    #: The time for one attempt.
    attempt_timeout_seconds: float = 10.0
    #: The largest number of attempts, the first one included.
    attempts_max: int = 8
    #: The largest delay before the first retry. It doubles with each retry.
    backoff_base_seconds: float = 0.2
    #: The largest delay before any retry.
    backoff_max_seconds: float = 5.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{field.name} must be a positive number, not {value}")


@dataclass(frozen=True)
class Event:
    """What a call does. For logs and traces; it holds no key, header or body."""

    #: `attempt`, `retry`, `poll` or `end`.
    type: str
    #: The number of the attempt.
    attempt: int
    #: `retry`: the delay before the next attempt.
    delay_seconds: float | None = None
    #: The status of the answer, if there was one.
    status: int | None = None
    #: `end`: `ok`, or the kind of the error.
    kind: str | None = None
    #: The name of the operation for support.
    reference: str | None = None


class Onetake:
    """The settings of a client. All transports that use it share its retry budget."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        budget: Budget | None = None,
        headers: Callable[[], Mapping[str, str]] | None = None,
        observe: Callable[[Event], None] | None = None,
        raise_refused: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.budget = budget or Budget()
        #: Headers that are made for each attempt, such as a credential that must be fresh.
        self.headers = headers or dict
        self.observe = observe
        #: Raise `Refused` for a refusal (4xx) instead of returning the response.
        self.raise_refused = raise_refused
        self.clock: Clock = clock or SystemClock()

    def intent(self) -> Intent:
        """Make an intent with a new key. Call it when the user acts."""
        return Intent.new(self.clock)


@dataclass(frozen=True)
class Outcome:
    """What is known about a call, beside its response."""

    key: str
    #: True if the operation had run before, and this is its recorded response.
    replayed: bool
    #: The name of the operation for support.
    reference: str | None
    attempts: int


@dataclass(frozen=True)
class Send:
    """A request to send: the operation itself, or a poll of its handle."""

    headers: Mapping[str, str]
    timeout_seconds: float
    #: The location of the handle, as the server sent it. None in attempts of the operation.
    poll: str | None = None


@dataclass(frozen=True)
class Sleep:
    """A delay."""

    seconds: float


@dataclass(frozen=True)
class Failed:
    """A request without an answer."""

    cause: Exception


Reply = Answer | Failed
Steps = Generator[Send | Sleep, "Reply | None", "tuple[Answer, Outcome]"]

#: The methods that get a key. Other requests pass through unchanged.
KEYED_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Call:
    """One call, as a generator: it yields requests and delays, and gets answers."""

    def __init__(self, onetake: Onetake, key: str | None) -> None:
        self._onetake = onetake
        self._key = (onetake.intent() if key is None else Intent(key)).key
        self._deadline = onetake.clock.monotonic() + onetake.limits.deadline_seconds
        self._attempts = 0

    def steps(self) -> Steps:
        """Run the call. Raise a `CallError` if it has no result."""
        self._onetake.budget.earn()
        while True:
            self._attempts += 1
            self._observe("attempt")
            millis = max(1, math.floor(self._left() * 1000 + 1e-6))
            headers = {"Idempotency-Key": self._key, "X-Request-Timeout-Ms": str(millis)}
            reply = yield Send(headers, self._timeout())
            verdict = verdict_of(reply) if isinstance(reply, Answer) else UNANSWERED
            if verdict.do == "poll":
                return (yield from self._poll(verdict.handle, reply))
            if verdict.do != "retry":
                return self._end(verdict, reply)
            delay = self._backoff(verdict.kind, reply)
            yield Sleep(delay)

    def _backoff(self, kind: ErrorKind, reply: Reply | None) -> float:
        """Return the delay before the next attempt, or end the call if a limit is reached."""
        limits, clock = self._onetake.limits, self._onetake.clock
        doubled: float = limits.backoff_base_seconds * 2 ** (self._attempts - 1)
        backoff = min(limits.backoff_max_seconds, doubled)
        asked = wait_of(reply, clock.now()) if isinstance(reply, Answer) else 0.0
        delay = clock.random() * backoff + asked
        if self._attempts >= limits.attempts_max:
            raise self._error(kind, reply, "attempts")
        if delay >= self._left():
            raise self._error(kind, reply, "deadline")
        if not self._onetake.budget.spend():
            raise self._error(kind, reply, "budget")
        status = reply.status if isinstance(reply, Answer) else None
        self._observe("retry", delay_seconds=delay, status=status)
        return delay

    def _poll(self, handle: str, reply: Reply | None) -> Steps:
        """Poll a handle until the outcome is there. The operation itself is not sent again."""
        limits, clock = self._onetake.limits, self._onetake.clock
        while True:
            asked = wait_of(reply, clock.now()) if isinstance(reply, Answer) else 0.0
            delay = clock.random() * limits.backoff_base_seconds + (asked or POLL_SECONDS)
            if delay >= self._left():
                raise self._error("in_progress", reply, "deadline")
            yield Sleep(delay)
            self._observe("poll")
            reply = yield Send({}, self._timeout(), handle)
            verdict = verdict_of_poll(reply) if isinstance(reply, Answer) else UNANSWERED
            if verdict.do != "retry":
                return self._end(verdict, reply)

    def _end(self, verdict: Verdict, reply: Reply | None) -> tuple[Answer, Outcome]:
        if verdict.do == "fail" or not isinstance(reply, Answer):
            raise self._error(verdict.kind, reply)
        outcome = self._outcome(reply)
        self._observe("end", kind="ok", reference=outcome.reference, status=reply.status)
        return reply, outcome

    def _outcome(self, answer: Answer) -> Outcome:
        reference = answer.header("idempotency-reference")
        return Outcome(self._key, answer.replayed, reference, self._attempts)

    def _error(
        self, kind: ErrorKind, reply: Reply | None, reason: EndReason | None = None
    ) -> CallError:
        facts = Facts(self._key, self._attempts, reason=reason)
        if isinstance(reply, Answer):
            problem = problem_of(reply)
            reference = reply.header("idempotency-reference") or (problem or {}).get("reference")
            facts = Facts(
                self._key,
                self._attempts,
                reply.status,
                problem,
                reference,
                reply.replayed,
                reason,
                reply.response,
            )
        self._observe("end", kind=kind, reference=facts.reference, status=facts.status)
        error = _ERRORS[kind](facts)
        if isinstance(reply, Failed):
            error.__cause__ = reply.cause
        return error

    def _timeout(self) -> float:
        return min(self._onetake.limits.attempt_timeout_seconds, self._left())

    def _left(self) -> float:
        return self._deadline - self._onetake.clock.monotonic()

    def _observe(self, type: str, **more: Any) -> None:
        """Tell the observer. Its error must not end a call."""
        if self._onetake.observe is None:
            return
        with contextlib.suppress(Exception):
            self._onetake.observe(Event(type, self._attempts, **more))
