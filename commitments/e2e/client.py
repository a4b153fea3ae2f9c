"""A LIQUID client for checks: one method per endpoint, every surprise a :class:`CheckFailed`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import requests

JsonObject = dict[str, Any]  # Any: decoded JSON
HTTP_OK = 200
SHOWN_CHARACTERS = 300
TOKEN_HEADER = "X-Auth-Token"  # noqa: S105 - the name of a header


class CheckFailed(Exception):  # noqa: N818 - the outcome of a check, not a defect of ours
    """The server did not do what a check asks of it; the text says what it did instead."""


@dataclass(slots=True, kw_only=True)
class LiquidServer:
    """A server that speaks LIQUID below ``/commitments/v1``.

    Attributes:
        base_url: Scheme, host and port, without a path.
        token: Sent as ``X-Auth-Token``; empty sends none.
        timeout_seconds: Limit for one request.
    """

    base_url: str
    token: str = ""
    timeout_seconds: float = 30.0
    session: requests.Session = field(default_factory=requests.Session)

    def info(self) -> JsonObject:
        """Return the ServiceInfo."""
        return self._object("GET", "info")

    def report_capacity(self, zones: Sequence[str]) -> JsonObject:
        """Return the capacity report for ``zones``."""
        return self._object("POST", "report-capacity", {"allAZs": list(zones)})

    def report_usage(self, project_id: str, zones: Sequence[str]) -> JsonObject:
        """Return a project's usage report for ``zones``."""
        return self._object("POST", f"projects/{project_id}/report-usage", {"allAZs": list(zones)})

    def change(self, body: Mapping[str, Any]) -> str:
        """Send a change request.

        Returns:
            The rejection reason; empty when it was accepted.
        """
        reason = self._object("POST", "change-commitments", body).get("rejectionReason", "")
        if not isinstance(reason, str):
            raise CheckFailed(f"change-commitments: rejectionReason is no text: {reason!r}")
        return reason

    def _object(self, method: str, path: str, body: object = None) -> JsonObject:
        url = f"{self.base_url.rstrip('/')}/commitments/v1/{path}"
        headers = {TOKEN_HEADER: self.token} if self.token else {}
        try:
            response = self.session.request(
                method,
                url,
                json=body,
                headers=headers,
                timeout=self.timeout_seconds,
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise CheckFailed(f"{method} {path}: no answer: {type(error).__name__}") from error
        if response.status_code != HTTP_OK:
            text = response.text[:SHOWN_CHARACTERS].strip()
            raise CheckFailed(f"{method} {path}: status {response.status_code}: {text}")
        try:
            answer = response.json()
        except requests.JSONDecodeError as error:
            raise CheckFailed(f"{method} {path}: the body is no JSON") from error
        if not isinstance(answer, dict):
            raise CheckFailed(f"{method} {path}: the body is no JSON object")
        return answer
