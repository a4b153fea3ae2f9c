"""A client of a Placement API for checks: every surprise is a :class:`CheckFailed`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import requests

SHOWN_CHARACTERS: Final = 300
TOKEN_HEADER: Final = "X-Auth-Token"  # noqa: S105 - the name of a header
MODE_HEADER: Final = "X-Cortex-Feature-Mode"
#: Generations of consumers and reshapes are in it; older services before us speak it as well.
VERSION: Final = "placement 1.36"


class CheckFailed(Exception):  # noqa: N818 - the outcome of a check, not a defect of ours
    """The server did not do what a check asks of it; the text says what it did instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server answered.

    Attributes:
        body: Decoded JSON; an empty object where there is none.
        mode: The mode that was asked for and taken; empty if none was.
    """

    status: int
    body: Any
    mode: str
    text: str


@dataclass(slots=True, kw_only=True)
class PlacementServer:
    """A Placement API.

    Attributes:
        base_url: With the path below which it is served.
        token: Sent as ``X-Auth-Token``; empty sends none.
        mode: The mode that each request asks for; empty leaves it to the server.
        headers: Sent with each request.
    """

    base_url: str
    token: str = ""
    mode: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float = 30.0
    session: requests.Session = field(default_factory=requests.Session)

    def send(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request.

        Raises:
            CheckFailed: There is no answer, or its body is no JSON.
        """
        headers = {"Accept": "application/json", "OpenStack-API-Version": VERSION, **self.headers}
        if self.token:
            headers[TOKEN_HEADER] = self.token
        if self.mode:
            headers[MODE_HEADER] = self.mode
        try:
            response = self.session.request(
                method,
                self.base_url.rstrip("/") + path,
                json=body,
                headers=headers,
                timeout=self.timeout_seconds,
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise CheckFailed(f"{method} {path}: no answer: {type(error).__name__}") from error
        text = response.text[:SHOWN_CHARACTERS].strip()
        answer: Any = {}  # Any: decoded JSON
        if response.status_code == HTTPStatus.OK:
            try:
                answer = response.json()
            except requests.JSONDecodeError as error:
                raise CheckFailed(f"{method} {path}: the body is no JSON: {text}") from error
        mode = response.headers.get(MODE_HEADER, "")
        return Answer(status=response.status_code, body=answer, mode=mode, text=text)

    def expect(self, statuses: tuple[int, ...], method: str, path: str, body: object = None) -> Any:
        """Send a request, and return the body of its answer.

        Raises:
            CheckFailed: Its status is none of ``statuses``.
        """
        answer = self.send(method, path, body)
        if answer.status not in statuses:
            wanted = " or ".join(map(str, statuses))
            raise CheckFailed(
                f"{method} {path}: status {answer.status} instead of {wanted}: {answer.text}"
            )
        return answer.body
