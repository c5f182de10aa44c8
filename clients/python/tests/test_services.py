from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from fastapi import Depends, FastAPI

from onetake.fastapi import OnetakeMiddleware, Operation, Reconciled, add_reconcile, operation

DERIVED = "3f6e277c-ac68-44a0-b80b-1417955e0d84"
HEADERS = {
    "Idempotency-Key": "6f1c8d6a-3a09-4b6e-9c8f-2d1f5e7b8a90",
    "Idempotency-Fence": "18446744073709551615",
    "Idempotency-Derived-Key": DERIVED,
}
DESCRIBED = {
    "key": HEADERS["Idempotency-Key"],
    "fence": 18446744073709551615,
    "derived_key": DERIVED,
    "step": "7ea19fb2-56ba-4aa6-80aa-cade2facfd7e",
    "undo": "ced33355-2859-46b1-ac0b-970637b65976",
}


def find(derived_key: str) -> Reconciled:
    if derived_key == "broken":
        raise LookupError("database")
    if derived_key == "done":
        return Reconciled("record", 201, {"charge": 1}, {"Location": "/charges/1"})
    return Reconciled("release" if derived_key == "never" else "unknown")


def described(current: Operation) -> dict[str, object]:
    current.outcome = "release"
    found: dict[str, object] = {
        "key": current.key,
        "fence": current.fence,
        "derived_key": current.derived_key,
    }
    if current.derived_key:
        found["step"] = current.step_key("charge-card")
        found["undo"] = current.compensation_key("charge-card")
    return found


def fastapi_client(find=find):
    app = FastAPI()
    app.add_middleware(OnetakeMiddleware)

    @app.post("/charges")
    def charge(current: Operation = Depends(operation)):  # noqa: B008
        return described(current)

    add_reconcile(app, "/reconcile/{derived_key}", find)

    def request(method, path, headers=None):
        async def call():
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                response = await client.request(method, path, headers=headers)
            return response.status_code, response.headers, response.content

        return asyncio.run(call())

    return request


def django_client():
    import django
    from django.conf import settings
    from django.http import JsonResponse
    from django.test import Client
    from django.urls import path

    from onetake.django import reconcile_view

    patterns = (
        path("charges", lambda request: JsonResponse(described(request.onetake))),
        path("reconcile/<derived_key>", reconcile_view(find)),
    )
    urls = type("Urls", (), {"urlpatterns": patterns})

    if not settings.configured:
        settings.configure(
            ALLOWED_HOSTS=["*"], MIDDLEWARE=["onetake.django.OnetakeMiddleware"], ROOT_URLCONF=urls
        )
        django.setup()

    def request(method, path, headers=None):
        response = Client().generic(method, path, headers=headers)
        return response.status_code, response.headers, response.content

    return request


@pytest.fixture(params=[fastapi_client, django_client])
def ask(request):
    return request.param()


def test_a_handler_knows_the_attempt_and_says_what_became_of_it(ask):
    status, headers, body = ask("POST", "/charges", HEADERS)
    assert (status, headers["Onetake-Outcome"]) == (200, "release")
    assert json.loads(body) == DESCRIBED
    _, _, body = ask("POST", "/charges")
    assert json.loads(body) == {"key": None, "fence": None, "derived_key": None}


def test_the_reconcile_endpoint_answers_as_the_gateway_expects(ask):
    status, headers, body = ask("GET", "/reconcile/done")
    assert (status, headers["Onetake-Outcome"], headers["Onetake-Status"]) == (200, "record", "201")
    assert (headers["Location"], json.loads(body)) == ("/charges/1", {"charge": 1})
    for key, status, outcome in [
        ("never", 404, "release"),
        ("other", 503, "unknown"),
        ("broken", 503, "unknown"),
    ]:
        found, headers, _ = ask("GET", f"/reconcile/{key}")
        assert (found, headers["Onetake-Outcome"]) == (status, outcome)


def test_an_asynchronous_function_can_be_asked():
    async def later(derived_key: str) -> Reconciled:
        return find(derived_key)

    assert fastapi_client(later)("GET", "/reconcile/never")[0] == 404


def test_a_step_needs_a_derived_key():
    with pytest.raises(ValueError, match="did not pass the gateway"):
        Operation().step_key("charge-card")
