"""A client of a Placement API for checks: every surprise is a :class:`CheckFailed`."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from core.server_checks.client import CheckedServer, json_of, shown_text
from core.server_checks.results import CheckFailed

MODE_HEADER: Final = "X-Cortex-Feature-Mode"
#: Generations of consumers and reshapes are in it; older services before us speak it as well.
VERSION: Final = "placement 1.36"


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
class PlacementServer(CheckedServer):
    """A Placement API.

    Attributes:
        mode: The mode that each request asks for; empty leaves it to the server.
    """

    mode: str = ""

    def send(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request.

        Raises:
            CheckFailed: There is no answer, or its body is no JSON.
        """
        headers = {"Accept": "application/json", "OpenStack-API-Version": VERSION, **self.headers}
        if self.mode:
            headers[MODE_HEADER] = self.mode
        response = self.answer(method, path, body, headers)
        is_read = response.status_code == HTTPStatus.OK
        return Answer(
            status=response.status_code,
            body=json_of(response, f"{method} {path}") if is_read else {},
            mode=response.headers.get(MODE_HEADER, ""),
            text=shown_text(response),
        )

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
