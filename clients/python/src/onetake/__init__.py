"""Safe retries: a key per intent, a retry budget, and an optimistic queue."""

from .call import Budget, Event, Limits, Onetake, Outcome
from .clock import Clock, SystemClock
from .errors import (
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
)
from .keys import Intent, compensation_key, step_key

__all__ = [
    "BodyNotReplayable",
    "Budget",
    "CallError",
    "Clock",
    "Event",
    "InProgress",
    "Intent",
    "InvalidKey",
    "Limits",
    "Mismatch",
    "Onetake",
    "OnetakeError",
    "Outcome",
    "OutcomeUnknown",
    "Refused",
    "StorageFailed",
    "SystemClock",
    "Unavailable",
    "compensation_key",
    "step_key",
]
