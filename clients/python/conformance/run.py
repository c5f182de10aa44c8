"""Run the suite: `python run.py SERVER SCENARIOS [NAME…]`.

Prints one JSON line per client and scenario.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import requests

from onetake import Budget, CallError, Limits, Onetake
from onetake.call import Outcome
from onetake.httpx import AsyncOnetakeTransport, OnetakeTransport
from onetake.httpx import outcome_of as outcome_of_httpx
from onetake.queue import Actions, Queue, QueuedRequest, SqliteStore
from onetake.requests import OnetakeAdapter
from onetake.requests import outcome_of as outcome_of_requests
from virtual_clock import VirtualClock

BODY = '{"amount":10}'
HEADERS = {"Content-Type": "application/json"}

# Reading the certificates of the system takes longer than a scenario, and none is needed.
CONTROL = httpx.Client(verify=False, timeout=60)

Seen = dict[str, Any]


class Run:
    """One run of a scenario on the server."""

    def __init__(self, server: str, scenario: str) -> None:
        started = CONTROL.post(f"{server}/-/runs/{scenario}").raise_for_status().json()
        self.url = server + started["path"]
        self._report = f"{server}/-/runs/{started['run']}"

    def report(self) -> list[dict[str, Any]]:
        requests: list[dict[str, Any]] = (
            httpx.get(self._report).raise_for_status().json()["requests"]
        )
        return requests


def onetake_of(settings: dict[str, Any], clock: VirtualClock) -> Onetake:
    limits = Limits(
        deadline_seconds=settings["deadline_ms"] / 1000,
        attempt_timeout_seconds=settings["attempt_timeout_ms"] / 1000,
        attempts_max=settings["attempts_max"],
        backoff_base_seconds=settings["backoff_base_ms"] / 1000,
        backoff_max_seconds=settings["backoff_max_ms"] / 1000,
    )
    budget = Budget(**settings["budget"])
    return Onetake(limits, budget=budget, raise_refused=True, clock=clock)


def headers_of(settings: dict[str, Any]) -> dict[str, str]:
    return HEADERS | ({"Idempotency-Key": settings["key"]} if "key" in settings else {})


def seen_of(status: int, outcome: Outcome | None) -> Seen:
    assert outcome is not None
    return {"kind": "ok", "status": status, **vars(outcome)}


def seen_of_error(error: CallError) -> Seen:
    problem = error.problem or {}
    return {"kind": error.kind, "code": problem.get("code"), **vars(error.facts)}


class Timeouts(httpx.BaseTransport):
    """A transport whose timeouts advance the virtual clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._inner = httpx.HTTPTransport(verify=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return self._inner.handle_request(request)
        except httpx.TimeoutException:
            self._clock.advance(request.extensions["timeout"]["read"])
            raise


class AsyncTimeouts(httpx.AsyncBaseTransport):
    """The same for asynchronous clients."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._inner = httpx.AsyncHTTPTransport(verify=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await self._inner.handle_async_request(request)
        except httpx.TimeoutException:
            self._clock.advance(request.extensions["timeout"]["read"])
            raise


class TimeoutsAdapter(OnetakeAdapter):
    """An adapter whose timeouts advance the virtual clock."""

    def _try(self, request: Any, step: Any, timeout: Any, others: Any) -> Any:
        reply = super()._try(request, step, timeout, others)
        if isinstance(getattr(reply, "cause", None), requests.Timeout):
            self._onetake.clock.advance(step.timeout_seconds)  # type: ignore[attr-defined]
        return reply


def through_httpx(run: Run, settings: dict[str, Any], clock: VirtualClock) -> list[Seen]:
    seen = []
    transport = OnetakeTransport(onetake_of(settings, clock), Timeouts(clock))
    with httpx.Client(transport=transport, timeout=None) as client:
        for _ in range(settings["calls"]):
            try:
                response = client.post(
                    f"{run.url}/charges", content=BODY, headers=headers_of(settings)
                )
                seen.append(seen_of(response.status_code, outcome_of_httpx(response)))
            except CallError as error:
                seen.append(seen_of_error(error))
    return seen


def through_httpx_async(run: Run, settings: dict[str, Any], clock: VirtualClock) -> list[Seen]:
    async def calls() -> list[Seen]:
        seen = []
        transport = AsyncOnetakeTransport(onetake_of(settings, clock), AsyncTimeouts(clock))
        async with httpx.AsyncClient(transport=transport, timeout=None) as client:
            for _ in range(settings["calls"]):
                try:
                    response = await client.post(
                        f"{run.url}/charges", content=BODY, headers=headers_of(settings)
                    )
                    seen.append(seen_of(response.status_code, outcome_of_httpx(response)))
                except CallError as error:
                    seen.append(seen_of_error(error))
        return seen

    return asyncio.run(calls())


def through_requests(run: Run, settings: dict[str, Any], clock: VirtualClock) -> list[Seen]:
    seen = []
    with requests.Session() as session:
        session.mount("http://", TimeoutsAdapter(onetake_of(settings, clock)))
        for _ in range(settings["calls"]):
            try:
                response = session.post(
                    f"{run.url}/charges", data=BODY, headers=headers_of(settings)
                )
                seen.append(seen_of(response.status_code, outcome_of_requests(response)))
            except CallError as error:
                seen.append(seen_of_error(error))
    return seen


def through_queue(run: Run, settings: dict[str, Any], clock: VirtualClock) -> list[Seen]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "queue.db")
        if "kill_after_requests" in settings:
            return killed(run, settings["kill_after_requests"], path)
        store = SqliteStore(path)
        queue = Queue(store, onetake_of(settings, clock), transport=Timeouts(clock))
        seen: dict[str, str] = {}
        actions = Actions(
            apply=lambda intent: seen.update({intent.key: "pending"}),
            confirm=lambda intent, _: seen.update({intent.key: "applied"}),
            revert=lambda intent, _: seen.update({intent.key: "reverted"}),
            unknown=lambda intent, _: seen.update({intent.key: "unknown"}),
        )
        for _ in range(settings["calls"]):
            request = QueuedRequest(f"{run.url}/charges", headers=HEADERS, body=BODY)
            queue.submit("cart", request, actions)
        with queue:
            assert queue.idle(60), "the queue does not become idle"
        store.close()
        return [{"kind": kind} for kind in seen.values()]


def killed(run: Run, requests: int, path: Path) -> list[Seen]:
    """Kill a process with a queue on disk, and start it again."""
    worker = str(Path(__file__).with_name("worker.py"))

    def command(mode: str) -> list[str]:
        return [sys.executable, worker, mode, str(path), f"{run.url}/charges"]

    with subprocess.Popen(command("submit")) as first:
        while len(run.report()) < requests:
            assert first.poll() is None, "the process ended before it was killed"
            time.sleep(0.01)
        first.kill()
    second = subprocess.run(command("resume"), check=True, capture_output=True, text=True)
    return [{"kind": kind} for kind in second.stdout.split()]


def named(keys: list[str | None]) -> list[str | None]:
    """Replace each key that a client made by a letter."""
    letters: dict[str, str] = {}
    return [
        key if key is None or len(key) != 36 else letters.setdefault(key, chr(97 + len(letters)))
        for key in keys
    ]


def differences(
    expect: dict[str, Any], report: list[dict[str, Any]], clock: VirtualClock, results: list[Seen]
) -> list[str]:
    """Return the differences between what is expected and what happened."""
    actual: dict[str, Any] = {
        "requests": len(report),
        "keys": named([request["key"] for request in report]),
        "methods": [request["method"] for request in report],
        "delays_ms": clock.delays_ms,
        "timeouts_ms": [request["timeout_ms"] for request in report],
        "results": [
            {name: seen.get(name) for name in expected}
            for expected, seen in zip(expect["results"], results, strict=False)
        ],
    }
    if len(results) != len(expect["results"]):
        actual["results"] = results
    return [
        f"{name}: expected {json.dumps(value)}, got {json.dumps(actual[name], default=str)}"
        for name, value in expect.items()
        if actual[name] != value
    ]


CLIENTS: dict[str, dict[str, Callable[[Run, dict[str, Any], VirtualClock], list[Seen]]]] = {
    "send": {
        "python httpx": through_httpx,
        "python httpx async": through_httpx_async,
        "python requests": through_requests,
    },
    "queue": {"python httpx": through_queue},
}


def main() -> int:
    server, file, *names = sys.argv[1:]
    document = json.loads(Path(file).read_text(encoding="utf-8"))
    failed = 0
    for scenario in document["scenarios"]:
        if names and scenario["name"] not in names:
            continue
        settings = {**document["defaults"], **scenario.get("client", {})}
        for client, play in CLIENTS[settings["through"]].items():
            clock = VirtualClock(settings["random"], settings.get("wall_clock"))
            try:
                run = Run(server, scenario["name"])
                results = play(run, settings, clock)
                why = differences(scenario["expect"], run.report(), clock, results)
            except Exception as error:  # noqa: BLE001 (the other scenarios go on)
                why = [repr(error)]
            failed += bool(why)
            line = {"client": client, "scenario": scenario["name"], "ok": not why, "why": why}
            print(json.dumps(line), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
