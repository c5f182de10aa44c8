"""For the service behind the gateway: what the gateway says, and what the service answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .keys import compensation_key, step_key

#: The service's own word about an attempt: see `Onetake-Outcome` in the gateway's documentation.
OutcomeWord = Literal["record", "release", "unknown"]


@dataclass
class Operation:
    """What the gateway says about the attempt that a request belongs to."""

    #: The client's key.
    key: str | None = None
    #: A number that is higher for every later attempt. A service can refuse lower ones.
    fence: int | None = None
    #: The key for the service's own calls. It is the same in every attempt.
    derived_key: str | None = None
    #: What became of the attempt. It is sent as `Onetake-Outcome`.
    outcome: OutcomeWord | None = None

    @classmethod
    def of(cls, header: Callable[[str], str | None]) -> Operation:
        """Read the headers of a request."""
        fence = header("idempotency-fence") or ""
        return cls(
            header("idempotency-key"),
            int(fence) if re.fullmatch(r"[0-9]{1,20}", fence) else None,
            header("idempotency-derived-key"),
        )

    def step_key(self, name: str) -> str:
        """Return the key for one of several calls. The name is the same in every attempt."""
        if self.derived_key is None:
            raise ValueError(
                "the request has no Idempotency-Derived-Key: it did not pass the gateway"
            )
        return step_key(self.derived_key, name)

    def compensation_key(self, name: str) -> str:
        """Return the key for the call that undoes a step."""
        return compensation_key(self.step_key(name))


@dataclass(frozen=True)
class Reconciled:
    """What became of an operation, as the service knows it.

    Warning: `release` says for certain that the operation had no effect and never will. The next
    retry runs it.
    """

    outcome: OutcomeWord
    #: `record`: the status of the operation's response.
    status: int = 200
    #: `record`: the body of the operation's response; anything but a string becomes JSON.
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def answer(self) -> tuple[int, dict[str, str], str]:
        """Return status, headers and body of the answer to the gateway's question."""
        if self.outcome != "record":
            status = 404 if self.outcome == "release" else 503
            return status, {"Onetake-Outcome": self.outcome}, ""
        headers = {
            "Content-Type": "application/json",
            **self.headers,
            "Onetake-Outcome": "record",
            "Onetake-Status": str(self.status),
        }
        body = self.body if isinstance(self.body, str) else json.dumps(self.body)
        return 200, headers, body
