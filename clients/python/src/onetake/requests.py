"""An adapter for requests.

POST, PUT, PATCH and DELETE get a key and are retried. A refusal (4xx) is returned as a response, as
before. A call without a definite answer raises a `CallError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter

from .call import KEYED_METHODS, Call, Failed, Onetake, Outcome, Reply, Send, Sleep
from .errors import BodyNotReplayable, Refused
from .verdict import Answer

__all__ = ["OnetakeAdapter", "outcome_of"]


def outcome_of(response: requests.Response) -> Outcome | None:
    """Return the outcome of a call with a key, or None if the call had none."""
    outcome = getattr(response, "onetake", None)
    return outcome if isinstance(outcome, Outcome) else None


class OnetakeAdapter(HTTPAdapter):
    """An adapter: `session.mount("https://", OnetakeAdapter())`."""

    def __init__(self, onetake: Onetake | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._onetake = onetake or Onetake()

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: float | tuple[float, float] | tuple[float, None] | None = None,
        verify: bool | str = True,
        cert: bytes | str | tuple[bytes | str, bytes | str] | None = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Send a request, with retries if its method has a key."""
        others: dict[str, Any] = {"verify": verify, "cert": cert, "proxies": proxies}
        if request.method not in KEYED_METHODS:
            return super().send(request, stream=stream, timeout=timeout, **others)
        if not isinstance(request.body, (bytes, str, type(None))):
            raise BodyNotReplayable()
        key = request.headers.get("Idempotency-Key")
        steps = Call(self._onetake, key.decode() if isinstance(key, bytes) else key).steps()
        reply: Reply | None = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                answer, outcome = end.value
                return _finish(answer.response, outcome, request)
            except Refused as refused:
                if self._onetake.raise_refused:
                    raise
                found = (refused.key, refused.replayed, refused.reference, refused.attempts)
                return _finish(refused.response, Outcome(*found), request)
            if isinstance(step, Sleep):
                self._onetake.clock.sleep(step.seconds)
                reply = None
            else:
                reply = self._try(request, step, timeout, others)

    def _try(
        self,
        request: requests.PreparedRequest,
        step: Send,
        timeout: float | tuple[float, float] | tuple[float, None] | None,
        others: dict[str, Any],
    ) -> Reply:
        clock = self._onetake.clock
        end = clock.monotonic() + step.timeout_seconds
        try:
            attempt = self._attempt(request, step)
            limits = _shorter(timeout, step.timeout_seconds)
            response = super().send(attempt, stream=True, timeout=limits, **others)
            # A connection that breaks in the body is a failed attempt, so it is read here.
            chunks = []
            for chunk in response.iter_content(64 << 10):
                chunks.append(chunk)
                if clock.monotonic() > end:
                    response.close()
                    raise requests.ReadTimeout("the body did not arrive in time")
        except requests.RequestException as error:
            return Failed(error)
        response._content = b"".join(chunks)
        return Answer(response.status_code, response.headers.get, response._content, response)

    def _attempt(self, request: requests.PreparedRequest, step: Send) -> requests.PreparedRequest:
        attempt = request.copy()
        attempt.headers.update(self._onetake.headers())
        attempt.headers.update(step.headers)
        if step.poll is not None:
            url = urljoin(request.url or "", step.poll)
            # Credentials go to the server of the operation only.
            if urlsplit(url)[:2] != urlsplit(request.url or "")[:2]:
                raise requests.exceptions.InvalidURL("the handle is on another server")
            attempt.method, attempt.url, attempt.body = "GET", url, None
            for name in ("Idempotency-Key", "Content-Type", "Content-Length", "Transfer-Encoding"):
                attempt.headers.pop(name, None)
        return attempt


def _shorter(
    timeout: float | tuple[float | None, float | None] | None, left: float
) -> tuple[float, float]:
    """Return the caller's timeouts for connecting and reading, but no longer than what is left."""
    connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
    return min(connect or left, left), min(read or left, left)


def _finish(
    response: requests.Response, outcome: Outcome, request: requests.PreparedRequest
) -> requests.Response:
    response.onetake = outcome  # type: ignore[attr-defined]
    response.request = request
    return response
