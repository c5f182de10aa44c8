"""For services with FastAPI or Starlette."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .operation import Operation, Reconciled

__all__ = ["OnetakeMiddleware", "Operation", "Reconciled", "add_reconcile", "operation"]

Reconcile = Callable[[str], Reconciled | Awaitable[Reconciled]]


class OnetakeMiddleware:
    """Middleware that sets `request.state.onetake`, and `Onetake-Outcome` of the response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        current = Operation.of(Headers(scope=scope).get)
        scope.setdefault("state", {})["onetake"] = current

        async def send_outcome(message: Message) -> None:
            if message["type"] == "http.response.start" and current.outcome is not None:
                MutableHeaders(scope=message)["Onetake-Outcome"] = current.outcome
            await send(message)

        await self._app(scope, receive, send_outcome)


def operation(request: Request) -> Operation:
    """Return the operation of a request: `Annotated[Operation, Depends(operation)]`."""
    found = request.state.onetake
    assert isinstance(found, Operation), "add OnetakeMiddleware to the app"
    return found


def add_reconcile(app: Any, path: str, find: Reconcile) -> None:
    """Add the route that the gateway asks, such as `/reconcile/{derived_key}`."""

    async def reconcile(request: Request) -> Response:
        try:
            found = find(request.path_params["derived_key"])
            result = await found if inspect.isawaitable(found) else found
        except Exception:  # noqa: BLE001 (a function that fails does not know the outcome)
            result = Reconciled("unknown")
        status, headers, body = result.answer()
        return Response(body, status, headers)

    app.router.add_route(path, reconcile, methods=["GET"], include_in_schema=False)
