from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from pydantic import SecretStr

from console.api.views import ReadViewSet
from journal.conf import AccessToken
from tests.admin.conftest import region
from tests.api.liquid_client import ADMIN, MEMBER, VIEWER

__all__ = ["region"]

ROLES = {
    ADMIN: "cloud_resource_admin",
    VIEWER: "cloud_resource_viewer",
    MEMBER: "member",
}


@pytest.fixture(autouse=True)
def _tokens(settings: Any) -> None:
    tokens = tuple(
        AccessToken(token=SecretStr(token), name=role, roles=(role,))
        for token, role in ROLES.items()
    )
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"auth": "token", "tokens": tokens})


def ask(path: str, *, token: str = VIEWER, method: str = "GET", **headers: str) -> Any:
    """Send a request without a body."""
    sent = {"X-Auth-Token": token, **headers} if token else headers
    return Client(raise_request_exception=False).generic(method, path, headers=sent)


def page(path: str) -> dict[str, Any]:
    """Return a list as it is answered."""
    response = ask(path)
    assert response.status_code == 200, response.content
    content: dict[str, Any] = response.json()
    return content


def walked(path: str) -> list[dict[str, Any]]:
    """Return the rows of all pages from this one on."""
    rows, further = [], path
    while further:
        content = page(further)
        rows += content["items"]
        further = content["next"]
    return rows


def key_field(view: type[ReadViewSet]) -> str:
    """Return which field of a row stands in its path."""
    fields = view.serializer_class().fields.items()
    lookup = {"pk": "id"}.get(view.lookup_field, view.lookup_field)
    return next(name for name, field in fields if field.source == lookup)


def problem(response: Any, status: int) -> dict[str, Any]:
    """Check that an answer is problem details, and return them."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    content: dict[str, Any] = response.json()
    assert content["status"] == status
    assert {"type", "title", "detail", "code", "request_id"} <= set(content)
    return content
