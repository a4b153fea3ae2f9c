"""A LIQUID client for checks: one method per endpoint, every surprise a :class:`CheckFailed`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.server_checks.client import CheckedServer, json_of, shown_text
from core.server_checks.results import CheckFailed

JsonObject = dict[str, Any]  # Any: decoded JSON
HTTP_OK: Final = 200


class LiquidServer(CheckedServer):
    """A server that speaks LIQUID below ``/commitments/v1``."""

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
        asked = f"{method} {path}"
        response = self.answer(method, f"/commitments/v1/{path}", body)
        if response.status_code != HTTP_OK:
            raise CheckFailed(f"{asked}: status {response.status_code}: {shown_text(response)}")
        answer = json_of(response, asked)
        if not isinstance(answer, dict):
            raise CheckFailed(f"{asked}: the body is no JSON object")
        return answer
