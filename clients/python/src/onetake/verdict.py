"""Decisions about answers, without any input or output."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Literal

ErrorKind = Literal["mismatch", "in_progress", "outcome_unknown", "refused", "unavailable"]

_RETRYABLE = frozenset({408, 425, 429, 502, 503, 504})


@dataclass(frozen=True)
class Answer:
    """An answer with its whole body."""

    status: int
    header: Callable[[str], str | None]
    body: bytes
    #: The response, as the wrapped library returned it.
    response: Any

    @property
    def replayed(self) -> bool:
        """True if the answer is a recorded one."""
        return self.header("idempotent-replayed") == "true"

    def json(self) -> Any:
        """Return the value of a JSON body, or None."""
        if "json" not in (self.header("content-type") or ""):
            return None
        try:
            return json.loads(self.body)
        except ValueError:
            return None


@dataclass(frozen=True)
class Verdict:
    """What follows an answer."""

    do: Literal["finish", "poll", "retry", "fail"]
    kind: ErrorKind = "unavailable"
    handle: str = ""


UNANSWERED = Verdict("retry", "unavailable")

_BY_CODE: Mapping[str, Verdict] = {
    "request_in_progress": Verdict("retry", "in_progress"),
    "in_progress_timeout": Verdict("retry", "in_progress"),
    "outcome_unknown": Verdict("retry", "outcome_unknown"),
    "outcome_pending": Verdict("retry", "outcome_unknown"),
    "previous_attempt_failed": Verdict("fail", "outcome_unknown"),
    "misconfigured": Verdict("fail", "refused"),
}


def verdict_of(answer: Answer) -> Verdict:
    """Decide what follows the answer to an operation."""
    code = (problem_of(answer) or {}).get("code", "")
    if code == "idempotency_payload_mismatch":
        return Verdict("fail", "mismatch")
    # A recorded answer is the outcome, whatever its status: a retry would get it again.
    if answer.replayed:
        return Verdict("finish") if answer.status < 400 else Verdict("fail", "refused")
    handle = answer.header("location") or ""
    if answer.status == 202 and "/.onetake/operations/" in handle:
        return Verdict("poll", handle=handle)
    if answer.status < 400:
        return Verdict("finish")
    if code in _BY_CODE:
        return _BY_CODE[code]
    if answer.status in _RETRYABLE:
        return Verdict("retry", "unavailable")
    if answer.status < 500:
        return Verdict("fail", "refused")
    # Any other 5xx leaves the outcome open, unless the answer says that the key was released.
    if answer.header("onetake-outcome") == "release":
        return Verdict("retry", "unavailable")
    return Verdict("fail", "outcome_unknown")


def verdict_of_poll(answer: Answer) -> Verdict:
    """Decide what follows the answer to a poll of a handle."""
    value = answer.json()
    is_running = isinstance(value, dict) and value.get("status") == "running"
    if answer.status == 200 and is_running and not answer.replayed:
        return Verdict("retry", "in_progress")
    # The outcome has expired or belongs to another caller. Sending the operation again could run
    # it twice.
    if (problem_of(answer) or {}).get("code") == "operation_not_found":
        return Verdict("fail", "outcome_unknown")
    verdict = verdict_of(answer)
    return Verdict("retry", "in_progress") if verdict.do == "poll" else verdict


def problem_of(answer: Answer) -> Mapping[str, Any] | None:
    """Return the problem document of an answer, also in Stripe's format."""
    document = answer.json() if answer.status >= 400 else None
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    members = error if isinstance(error, dict) else document
    if not isinstance(members.get("code"), str):
        return None
    if "message" in members and "detail" not in members:
        return {**members, "detail": members["message"]}
    return members


def wait_of(answer: Answer, now: float) -> float:
    """Return the seconds for which the server asks to wait, or 0."""
    return max(_retry_after(answer, now), _rate_limit(answer))


def _retry_after(answer: Answer, now: float) -> float:
    text = (answer.header("retry-after") or "").strip()
    if re.fullmatch(r"[0-9]+", text):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _rate_limit(answer: Answer) -> float:
    """Read `RateLimit: "policy";r=0;t=5`, and the older `RateLimit-Remaining` and `-Reset`."""
    waits = [0.0]
    for item in (answer.header("ratelimit") or "").split(","):
        seconds = re.search(r";\s*t=([0-9]+)", item)
        if seconds and re.search(r";\s*r=0(?![0-9])", item):
            waits.append(float(seconds[1]))
    reset = answer.header("ratelimit-reset") or ""
    if answer.header("ratelimit-remaining") == "0" and re.fullmatch(r"[0-9]+", reset):
        waits.append(float(reset))
    return max(waits)
