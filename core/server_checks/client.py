"""A client for checks: no redirects, no endless waiting, every surprise a :class:`CheckFailed`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import requests

from core.server_checks.results import CheckFailed

SHOWN_CHARACTERS: Final = 300
TOKEN_HEADER: Final = "X-Auth-Token"  # noqa: S105 - the name of a header


@dataclass(slots=True, kw_only=True)
class CheckedServer:
    """A server that is checked.

    Attributes:
        base_url: With the path below which it is served, if any.
        token: Sent as ``X-Auth-Token``; empty sends none.
        headers: Sent with each request.
        timeout_seconds: Limit for one request.
    """

    base_url: str
    token: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float = 30.0
    session: requests.Session = field(default_factory=requests.Session)

    def answer(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> requests.Response:
        """Send a request, and return the answer.

        Args:
            path: After the base URL.
            headers: Sent with this one besides.

        Raises:
            CheckFailed: There is none.
        """
        sent = {**self.headers, **(headers or {})}
        if self.token:
            sent[TOKEN_HEADER] = self.token
        try:
            return self.session.request(
                method,
                self.base_url.rstrip("/") + path,
                json=body,
                headers=sent,
                timeout=self.timeout_seconds,
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise CheckFailed(f"{method} {path}: no answer: {type(error).__name__}") from error


def shown_text(response: requests.Response) -> str:
    """Return the beginning of a body, for people."""
    return response.text[:SHOWN_CHARACTERS].strip()


def json_of(response: requests.Response, asked: str) -> Any:  # Any: decoded JSON
    """Return the JSON of an answer.

    Args:
        asked: What was asked, for people.

    Raises:
        CheckFailed: It has none.
    """
    try:
        return response.json()
    except requests.JSONDecodeError as error:
        raise CheckFailed(f"{asked}: the body is no JSON: {shown_text(response)}") from error
