"""Headroom's API, asked with the login that the ``openstack`` client has anyway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from keystoneauth1.adapter import Adapter
from keystoneauth1.exceptions import ClientException
from osc_lib.exceptions import CommandError
from requests.exceptions import RequestException

PREFIX = "/api/v1"
TIMEOUT_SECONDS = 120
PAGE_ROWS = 1000
CHUNK_BYTES = 1 << 16


class Capacity:
    """Reads rows and asks questions; a refusal is a :class:`CommandError` with its reason."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def get(self, path: str, parameters: Mapping[str, Any] | None = None) -> Any:  # Any: JSON
        """Return the answer to a GET below ``/api/v1``."""
        return self._ask("GET", path, params=dict(parameters or {}))

    def post(self, path: str, question: Any) -> Any:  # Any: JSON
        """Return the answer to a question below ``/api/v1``."""
        return self._ask("POST", path, json=question)

    def rows(
        self, path: str, filters: Mapping[str, Any], *, most: int | None
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of a list, page by page, at most ``most`` of them."""
        return islice(self._rows(path, filters, most), most)

    def _rows(
        self, path: str, filters: Mapping[str, Any], most: int | None
    ) -> Iterator[dict[str, Any]]:
        page = self.get(path, {**filters, "limit": min(most or PAGE_ROWS, PAGE_ROWS)})
        yield from page["items"]
        while page["next"]:
            page = self.get(page["next"].partition(PREFIX)[2])
            yield from page["items"]

    def file(self, path: str, parameters: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield a file below ``/api/v1`` as it comes; one that breaks off is an error."""
        answer = self._send("GET", path, params=dict(parameters), stream=True, log=False)
        if not answer.ok:
            self._content(answer)
        try:
            yield from answer.iter_content(CHUNK_BYTES)
        except RequestException as error:
            raise CommandError(f"{answer.url}: the file broke off: {error}") from error

    def _ask(self, method: str, path: str, **more: Any) -> Any:
        return self._content(self._send(method, path, **more))

    def _send(self, method: str, path: str, **more: Any) -> Any:
        try:
            return self._adapter.request(
                PREFIX + path,
                method,
                raise_exc=False,
                redirect=False,
                timeout=TIMEOUT_SECONDS,
                **more,
            )
        except ClientException as error:
            raise CommandError(f"capacity: {error}") from error

    def _content(self, answer: Any) -> Any:
        try:
            content = answer.json()
            if answer.ok:
                return content
            raise CommandError(f"{content['detail']} ({answer.status_code}, {content['code']})")
        except (ValueError, KeyError, TypeError) as error:
            raise CommandError(
                f"{answer.url}: status {answer.status_code}, which is no answer of Headroom"
            ) from error


def capacity_of(manager: Any) -> Capacity:  # Any: it gets an attribute for each plug-in
    """Return the client that belongs to the manager of a command."""
    found: Capacity = manager.capacity
    return found
