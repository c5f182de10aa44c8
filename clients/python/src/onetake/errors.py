"""The errors of this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: The limit that ended a call.
EndReason = Literal["attempts", "deadline", "budget"]


@dataclass(frozen=True)
class Facts:
    """What is known about a call that has no result."""

    #: The key of the operation. Keep it: only a retry with the same key is safe.
    key: str
    #: The number of times that the operation was sent.
    attempts: int
    #: The status of the last answer, if there was one.
    status: int | None = None
    #: The problem document of the last answer, if it has one.
    problem: Mapping[str, Any] | None = None
    #: The name of the operation for support.
    reference: str | None = None
    #: True if the answer is a recorded one.
    replayed: bool = False
    #: The limit that ended the call. None if the answer was final.
    reason: EndReason | None = None
    #: The last answer, as the wrapped library returned it.
    response: Any = None


class OnetakeError(Exception):
    """The base of all errors of this package."""


class CallError(OnetakeError):
    """A call that has no result."""

    kind = ""
    _text = ""

    def __init__(self, facts: Facts) -> None:
        words = [self._text.format(facts=facts)]
        if facts.problem and isinstance(facts.problem.get("detail"), str):
            words.append(facts.problem["detail"])
        if facts.reference:
            words.append(f"Reference: {facts.reference}.")
        super().__init__(" ".join(words))
        self.facts = facts
        self.key = facts.key
        self.attempts = facts.attempts
        self.status = facts.status
        self.problem = facts.problem
        self.reference = facts.reference
        self.replayed = facts.replayed
        self.reason = facts.reason
        self.response = facts.response


class Mismatch(CallError):
    """The key was used before with another payload. Nothing was run."""

    kind = "mismatch"
    _text = "The key was used before with another payload. A new operation needs a new key."


class InProgress(CallError):
    """The operation is still running."""

    kind = "in_progress"
    _text = "The operation is still running. Ask again later with the same key."


class OutcomeUnknown(CallError):
    """The operation may have had its effect, and nobody knows."""

    kind = "outcome_unknown"
    _text = (
        "The outcome is unknown: the operation may have had its effect. Do not pick a new key, "
        "because a new key could run the operation twice. Ask again later with the same key."
    )


class Refused(CallError):
    """A definite answer that is not a success. A retry would get it again."""

    kind = "refused"
    _text = "The operation was refused with status {facts.status}."


class Unavailable(CallError):
    """No definite answer within the limits of the call."""

    kind = "unavailable"
    _text = (
        "There was no definite answer (limit: {facts.reason}). The operation may have run. "
        "Try again later with the same key."
    )


class InvalidKey(OnetakeError, ValueError):
    """A key that cannot be sent. Nothing was sent."""


class BodyNotReplayable(OnetakeError, TypeError):
    """A body that can be read only once, so that it cannot be sent again. Nothing was sent."""

    def __init__(self) -> None:
        super().__init__(
            "The body is a stream, which cannot be sent again in a retry. "
            "Pass bytes, a string, a form or JSON."
        )


class StorageFailed(OnetakeError):
    """The queue's storage did not accept an intent. Nothing was applied or sent."""

    def __init__(self) -> None:
        super().__init__("The intent could not be stored, so it was neither applied nor sent.")
