"""Time and randomness of a client."""

from __future__ import annotations

import random
import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Time and randomness. Tests replace them."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back. Deadlines are measured with it."""

    def now(self) -> float:
        """Return the seconds since the epoch. Only dates in headers and new keys depend on it."""

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> None:
        """Wait, or return early when `stop` is set."""

    async def sleep_async(self, seconds: float) -> None:
        """Wait in an asynchronous task."""

    def random(self) -> float:
        """Return a number from 0 to 1."""


class SystemClock:
    """The clock and the random source of the platform."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> None:
        if stop is None:
            time.sleep(seconds)
        else:
            stop.wait(seconds)

    async def sleep_async(self, seconds: float) -> None:
        # httpx depends on anyio, which works with asyncio and trio.
        import anyio

        await anyio.sleep(seconds)

    def random(self) -> float:
        return random.random()  # noqa: S311 (jitter needs no secret)
