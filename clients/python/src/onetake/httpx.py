"""Transports for httpx, sync and async.

POST, PUT, PATCH and DELETE get a key and are retried. A refusal (4xx) is returned as a response, as
before. A call without a definite answer raises a `CallError`.
"""

from __future__ import annotations

import threading

import httpx

from .call import KEYED_METHODS, Call, Failed, Onetake, Outcome, Reply, Send, Sleep
from .errors import BodyNotReplayable, Refused
from .verdict import Answer

_Ended = tuple[httpx.Response, Outcome]

__all__ = ["AsyncOnetakeTransport", "OnetakeTransport", "outcome_of"]


def outcome_of(response: httpx.Response) -> Outcome | None:
    """Return the outcome of a call with a key, or None if the call had none."""
    outcome = response.extensions.get("onetake")
    return outcome if isinstance(outcome, Outcome) else None


class OnetakeTransport(httpx.BaseTransport):
    """A transport for `httpx.Client`."""

    def __init__(
        self,
        onetake: Onetake | None = None,
        inner: httpx.BaseTransport | None = None,
        *,
        stop: threading.Event | None = None,
    ) -> None:
        self._onetake = onetake or Onetake()
        self._inner = inner or httpx.HTTPTransport()
        self._stop = stop

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, with retries if its method has a key."""
        if request.method not in KEYED_METHODS:
            return self._inner.handle_request(request)
        _check(request.stream)
        body = request.read()
        return _finish(request, self._drive(request, body))

    def _drive(self, request: httpx.Request, body: bytes) -> _Ended:
        steps = Call(self._onetake, request.headers.get("idempotency-key")).steps()
        reply: Reply | None = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                answer, outcome = end.value
                return answer.response, outcome
            except Refused as refused:
                return _refused(self._onetake, refused)
            if isinstance(step, Sleep):
                self._onetake.clock.sleep(step.seconds, self._stop)
                reply = None
            else:
                reply = self._send(request, body, step)
            if self._stop is not None and self._stop.is_set():
                raise httpx.RequestError("the queue was stopped", request=request)

    def _send(self, request: httpx.Request, body: bytes, step: Send) -> Reply:
        end = self._onetake.clock.monotonic() + step.timeout_seconds
        try:
            request = _attempt(self._onetake, request, body, step)
            response = self._inner.handle_request(request)
            try:
                # A connection that breaks in the body is a failed attempt, so it is read here.
                stream = response.stream
                assert isinstance(stream, httpx.SyncByteStream)
                chunks = []
                for chunk in stream:
                    chunks.append(chunk)
                    _check_time(self._onetake, end, request)
            finally:
                response.close()
        except httpx.TransportError as error:
            return Failed(error)
        return _answer(request, response, b"".join(chunks))

    def close(self) -> None:
        """Close the inner transport."""
        self._inner.close()


class AsyncOnetakeTransport(httpx.AsyncBaseTransport):
    """A transport for `httpx.AsyncClient`."""

    def __init__(
        self, onetake: Onetake | None = None, inner: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._onetake = onetake or Onetake()
        self._inner = inner or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, with retries if its method has a key."""
        if request.method not in KEYED_METHODS:
            return await self._inner.handle_async_request(request)
        _check(request.stream)
        body = await request.aread()
        return _finish(request, await self._drive(request, body))

    async def _drive(self, request: httpx.Request, body: bytes) -> _Ended:
        steps = Call(self._onetake, request.headers.get("idempotency-key")).steps()
        reply: Reply | None = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                answer, outcome = end.value
                return answer.response, outcome
            except Refused as refused:
                return _refused(self._onetake, refused)
            if isinstance(step, Sleep):
                await self._onetake.clock.sleep_async(step.seconds)
                reply = None
            else:
                reply = await self._send(request, body, step)

    async def _send(self, request: httpx.Request, body: bytes, step: Send) -> Reply:
        end = self._onetake.clock.monotonic() + step.timeout_seconds
        try:
            request = _attempt(self._onetake, request, body, step)
            response = await self._inner.handle_async_request(request)
            try:
                stream = response.stream
                assert isinstance(stream, httpx.AsyncByteStream)
                chunks = []
                async for chunk in stream:
                    chunks.append(chunk)
                    _check_time(self._onetake, end, request)
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            return Failed(error)
        return _answer(request, response, b"".join(chunks))

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self._inner.aclose()


def _refused(onetake: Onetake, error: Refused) -> _Ended:
    """Return a refusal as a response, unless the caller wants an error."""
    if onetake.raise_refused:
        raise error
    outcome = Outcome(error.key, error.replayed, error.reference, error.attempts)
    return error.response, outcome


def _check(stream: object) -> None:
    """Refuse a body that can be read only once, before anything is sent."""
    is_form = type(stream).__module__ == "httpx._multipart"
    if not isinstance(stream, httpx.ByteStream) and not is_form:
        raise BodyNotReplayable()


def _attempt(onetake: Onetake, request: httpx.Request, body: bytes, step: Send) -> httpx.Request:
    headers = request.headers.copy()
    headers.update(onetake.headers())
    headers.update(step.headers)
    timeouts = dict(request.extensions.get("timeout", {}))
    for name in ("connect", "read", "write", "pool"):
        own = timeouts.get(name)
        left = step.timeout_seconds
        timeouts[name] = left if own is None else min(own, left)
    extensions = {**request.extensions, "timeout": timeouts}
    if step.poll is None:
        return httpx.Request(
            request.method, request.url, headers=headers, content=body, extensions=extensions
        )
    url = request.url.join(step.poll)
    # Credentials go to the server of the operation only.
    if _origin(url) != _origin(request.url):
        raise httpx.UnsupportedProtocol("the handle is on another server", request=request)
    for name in ("idempotency-key", "content-type", "content-length", "transfer-encoding"):
        headers.pop(name, None)
    return httpx.Request("GET", url, headers=headers, extensions=extensions)


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _check_time(onetake: Onetake, end: float, request: httpx.Request) -> None:
    """End an attempt whose body arrives too slowly."""
    if onetake.clock.monotonic() > end:
        raise httpx.ReadTimeout("the body did not arrive in time", request=request)


def _answer(request: httpx.Request, received: httpx.Response, raw: bytes) -> Answer:
    response = httpx.Response(
        received.status_code,
        headers=received.headers,
        stream=httpx.ByteStream(raw),
        extensions=dict(received.extensions),
        request=request,
    )

    def header(name: str) -> str | None:
        value: str | None = response.headers.get(name)
        return value

    # Problem documents are not compressed. A body that is, is not read as JSON.
    return Answer(response.status_code, header, raw, response)


def _finish(request: httpx.Request, ended: _Ended) -> httpx.Response:
    response, outcome = ended
    response.extensions["onetake"] = outcome
    response.request = request
    return response
