"""For services with Django."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, HttpResponseBase

from .operation import Operation, Reconciled

__all__ = ["OnetakeMiddleware", "Operation", "Reconciled", "reconcile_view"]


class OnetakeMiddleware:
    """Middleware that sets `request.onetake`, and `Onetake-Outcome` of the response."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Handle a request."""
        current = Operation.of(request.headers.get)
        request.onetake = current  # type: ignore[attr-defined]
        response = self._get_response(request)
        if current.outcome is not None:
            response["Onetake-Outcome"] = current.outcome
        return response


def reconcile_view(find: Callable[[str], Reconciled]) -> Callable[..., HttpResponse]:
    """Return the view that the gateway asks, for `path("reconcile/<derived_key>", …)`."""

    def view(_request: HttpRequest, derived_key: str) -> HttpResponse:
        try:
            result = find(derived_key)
        except Exception:  # noqa: BLE001 (a function that fails does not know the outcome)
            result = Reconciled("unknown")
        status, headers, body = result.answer()
        return HttpResponse(body, status=status, headers=headers)

    return view
