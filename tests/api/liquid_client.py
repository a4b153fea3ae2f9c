"""Limes as tests play it."""

from __future__ import annotations

import json
from typing import Any

from django.test import Client

ADMIN = "admin-token-0123456789"
VIEWER = "viewer-token-0123456789"
MEMBER = "member-token-0123456789"
PROJECT = "2f6b5d0c8f0f4a0d9a3e6d1c7b5a4e11"
#: A request to each endpoint, by its name.
REQUESTS = {
    "info": ("GET", "v1/info", None),
    "report-capacity": ("POST", "v1/report-capacity", {}),
    "report-usage": ("POST", f"v1/projects/{PROJECT}/report-usage", {}),
    "quota": ("PUT", f"v1/projects/{PROJECT}/quota", {}),
    "change-commitments": ("POST", "v1/change-commitments", {"az": "az-a"}),
}
READS = {"info", "report-capacity", "report-usage"}


class LiquidClient:
    """Sends LIQUID requests the way Limes does."""

    info = "v1/info"
    capacity = "v1/report-capacity"
    change = "v1/change-commitments"

    @staticmethod
    def usage(project_id: str = PROJECT) -> str:
        return f"v1/projects/{project_id}/report-usage"

    @staticmethod
    def quota(project_id: str = PROJECT) -> str:
        return f"v1/projects/{project_id}/quota"

    def send(
        self, method: str, path: str, body: Any = None, *, token: str | None = ADMIN, **headers: str
    ) -> Any:
        """Send ``body``: bytes as they are, None as nothing, the rest as JSON."""
        content = b"" if body is None else body
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        names = {name.replace("_", "-"): text for name, text in headers.items()}
        if token is not None:
            names.setdefault("X-Auth-Token", token)
        client = Client(raise_request_exception=False, enforce_csrf_checks=True)
        return client.generic(
            method, f"/commitments/{path}", content, "application/json", headers=names
        )

    def get_info(self) -> dict[str, Any]:
        response = self.send("GET", self.info)
        assert response.status_code == 200, response.content
        answer: dict[str, Any] = response.json()
        return answer

    def report_capacity(self, *zones: str) -> dict[str, Any]:
        response = self.send("POST", self.capacity, {"allAZs": list(zones)})
        assert response.status_code == 200, response.content
        answer: dict[str, Any] = response.json()
        return answer

    def report_usage(self, *zones: str, project_id: str = PROJECT) -> dict[str, Any]:
        response = self.send("POST", self.usage(project_id), {"allAZs": list(zones)})
        assert response.status_code == 200, response.content
        answer: dict[str, Any] = response.json()
        return answer


def assert_text(response: Any, status: int, *words: str) -> None:
    """Check the shape of an error: plain text, one line, a request id, the words."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert response["X-Request-ID"]
    text = response.content.decode()
    assert text
    assert "\n" not in text
    for word in words:
        assert word in text
