"""A clock that a delay advances at once."""

from __future__ import annotations

import itertools
import threading
import time
from datetime import datetime


class VirtualClock:
    """Delays take no time. Timeouts of attempts take their real time: see `advance`."""

    def __init__(self, random: list[float], wall_clock: str | None = None) -> None:
        self.delays_ms: list[float] = []
        self._time = 0.0
        self._random = itertools.cycle(random)
        self._wall = (
            time.time()
            if wall_clock is None
            else datetime.fromisoformat(wall_clock.replace("Z", "+00:00")).timestamp()
        )

    def monotonic(self) -> float:
        return self._time

    def now(self) -> float:
        return self._wall

    def sleep(self, seconds: float, _stop: threading.Event | None = None) -> None:
        self.delays_ms.append(round(seconds * 1000, 6))
        self.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)

    def random(self) -> float:
        return next(self._random)

    def advance(self, seconds: float) -> None:
        """Count a timeout that was waited for."""
        self._time += seconds
