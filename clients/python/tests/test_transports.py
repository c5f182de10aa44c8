"""What both libraries share: each test runs with httpx (sync, async) and requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import requests

from onetake import (
    BodyNotReplayable,
    InProgress,
    InvalidKey,
    Limits,
    Onetake,
    OutcomeUnknown,
    Unavailable,
)
from onetake.httpx import AsyncOnetakeTransport, OnetakeTransport
from onetake.requests import OnetakeAdapter

Request = Callable[..., Any]


def by_httpx(onetake: Onetake) -> Request:
    def request(method: str, url: str, **options: Any) -> httpx.Response:
        with httpx.Client(transport=OnetakeTransport(onetake)) as client:
            return client.request(method, url, **options)

    return request


def by_httpx_async(onetake: Onetake) -> Request:
    def request(method: str, url: str, **options: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = AsyncOnetakeTransport(onetake)
            async with httpx.AsyncClient(transport=transport) as client:
                return await client.request(method, url, **options)

        return asyncio.run(call())

    return request


def by_requests(onetake: Onetake) -> Request:
    def request(method: str, url: str, **options: Any) -> requests.Response:
        with requests.Session() as session:
            session.mount("http://", OnetakeAdapter(onetake))
            return session.request(method, url, **options)

    return request


@pytest.fixture(params=[by_httpx, by_httpx_async, by_requests])
def library(request) -> Callable[[Onetake], Request]:
    return request.param


def stream_of(library: Any) -> dict[str, Any]:
    async def chunks():
        yield b"x"

    if library is by_requests:
        return {"data": (piece for piece in [b"x"])}
    return {"content": chunks() if library is by_httpx_async else (piece for piece in [b"x"])}


def test_a_stream_is_refused_before_anything_is_sent(library, server):
    with pytest.raises(BodyNotReplayable):
        library(Onetake())("POST", server.url, **stream_of(library))
    assert server.received == []


def test_an_invalid_key_is_refused_before_anything_is_sent(library, server):
    with pytest.raises(InvalidKey):
        library(Onetake())("POST", server.url, headers={"Idempotency-Key": "short"})
    assert server.received == []


def test_every_attempt_has_the_same_bytes_also_of_a_form(library, server, clock):
    server.answers(503, 201)
    response = library(Onetake(clock=clock))("POST", server.url, files={"file": b"abc"})
    assert response.status_code == 201
    first, second = server.received
    assert first.body == second.body
    assert b"abc" in first.body
    assert first.headers["content-type"] == second.headers["content-type"]


def test_requests_that_change_nothing_pass_through_unchanged(library, server):
    server.answers(503)
    assert library(Onetake())("GET", server.url).status_code == 503
    assert server.keys == [None]


def test_a_refusal_is_a_response_as_before(library, server):
    server.answers(402)
    response = library(Onetake())("POST", server.url, json={"amount": 10})
    assert (response.status_code, response.json()) == (402, {"charge": 1})
    assert json.loads(server.received[0].body) == {"amount": 10}


def test_a_wall_clock_that_jumps_changes_neither_deadline_nor_delays(library, server, clock):
    server.answers(503, 503, 201)
    clock.wall = [0, 1e12, -1e9, 5]
    headers = {"Idempotency-Key": "0123456789abcdef"}
    assert library(Onetake(clock=clock))("POST", server.url, headers=headers).status_code == 201
    assert clock.slept == [0.1, 0.2]


def test_headers_are_made_for_each_attempt(library, server, clock):
    server.answers(503, 201)
    tokens = iter(["Bearer 1", "Bearer 2"])
    onetake = Onetake(clock=clock, headers=lambda: {"Authorization": next(tokens)})
    library(onetake)("POST", server.url)
    seen = [request.headers["authorization"] for request in server.received]
    assert seen == ["Bearer 1", "Bearer 2"]


def test_a_handle_on_another_server_is_not_asked(library, server, clock):
    other = "http://localhost" + server.url.removeprefix("http://127.0.0.1")
    location = {"Location": f"{other}/.onetake/operations/h"}
    server.handle = lambda _: (202, location, b"")
    onetake = Onetake(Limits(deadline_seconds=5), clock=clock)
    with pytest.raises(InProgress):
        library(onetake)("POST", server.url)
    assert len(server.received) == 1


def test_errors_say_what_to_do_and_hold_the_answer(library, server):
    problem = {"code": "previous_attempt_failed", "detail": "It broke.", "reference": "2KPP"}
    headers = {"Content-Type": "application/problem+json"}
    server.handle = lambda _: (500, headers, json.dumps(problem).encode())
    with pytest.raises(OutcomeUnknown, match=r"Do not pick.*It broke\. Reference: 2KPP"):
        library(Onetake())("POST", server.url)


def test_the_cause_of_an_unavailable_server_is_the_error_of_the_library(library, clock):
    onetake = Onetake(Limits(attempts_max=2), clock=clock)
    with pytest.raises(Unavailable) as caught:
        library(onetake)("POST", "http://127.0.0.1:9/")
    assert caught.value.attempts == 2
    assert isinstance(caught.value.__cause__, (httpx.ConnectError, requests.ConnectionError))


def test_an_observer_that_raises_does_not_end_a_call_and_sees_no_key(library, server, clock):
    server.answers(503, 201)
    events = []

    def observe(event):
        events.append(event)
        raise RuntimeError("observer")

    library(Onetake(clock=clock, observe=observe))("POST", server.url)
    assert [event.type for event in events] == ["attempt", "retry", "attempt", "end"]
    assert server.keys[0] not in repr(events)


def test_shorter_timeouts_of_the_library_hold_for_each_attempt(library, server, clock):
    import threading

    released = threading.Event()
    server.handle = lambda _: released.wait(30) and None
    onetake = Onetake(Limits(attempts_max=1), clock=clock)
    try:
        with pytest.raises(Unavailable) as caught:
            library(onetake)("POST", server.url, timeout=0.2)
    finally:
        released.set()
    assert isinstance(caught.value.__cause__, (httpx.TimeoutException, requests.Timeout))


@pytest.mark.parametrize(
    "limits",
    [{"deadline_seconds": 0}, {"attempts_max": -1}, {"backoff_base_seconds": float("nan")}],
)
def test_limits_must_be_positive_numbers(limits):
    with pytest.raises(ValueError, match="must be a positive number"):
        Limits(**limits)


def test_a_cancelled_task_ends_the_call(server, clock):
    server.answers(503)

    async def call() -> None:
        transport = AsyncOnetakeTransport(Onetake())
        async with httpx.AsyncClient(transport=transport) as client:
            await client.post(server.url, headers={"retry-after": "20"})

    async def cancel() -> None:
        task = asyncio.create_task(call())
        while not server.received:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
