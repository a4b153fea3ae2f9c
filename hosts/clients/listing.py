"""What is read of a cloud, whoever asks it: bodies by path, lists by page (spec region-file)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from journal.errors import HeadroomError

Json = Any  # bodies keep the APIs' own shapes

IDENTITY: Final = "identity"
COMPUTE: Final = "compute"
IMAGE: Final = "image"
PLACEMENT: Final = "placement"
LIMES: Final = "resources"
NOT_FOUND: Final = 404
GONE_MARKER: Final = (400, NOT_FOUND)
"""What services answer when the element that a page should follow was deleted meanwhile."""
MOST_MARKERS: Final = 10
AT_ONCE: Final = 1000
"""Elements that a page asks for; the service may give fewer."""


class CloudUnreachable(HeadroomError):  # noqa: N818 - says what happened
    """The cloud could not be read; the message names service and path."""

    code = "cloud_unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a service says that does not do what it was asked."""

    status: int
    message: str


class CloudReader(Protocol):
    """Gets JSON bodies from the services of a cloud."""

    @property
    def region_name(self) -> str:
        """Name of the region, else of the cloud."""

    def get(self, service: str, path: str) -> Json:
        """Return the body of a GET, None for 404.

        Raises:
            CloudUnreachable: Another answer than success or 404, or none.
        """

    def has(self, service: str) -> bool:
        """Return whether the catalog lists a service."""


class CloudWriter(CloudReader, Protocol):
    """Reads a cloud's services and has them do something."""

    def change(self, service: str, method: str, path: str, body: Json) -> Refusal | None:
        """Send a body once; None when it was taken, else what the service says.

        Raises:
            CloudUnreachable: There was no answer, or the service is in trouble.
        """

    def ask(self, service: str, path: str, body: Json) -> Json | Refusal:
        """Send a question as a POST; return its answer, or what the service says instead.

        Raises:
            CloudUnreachable: As for changes.
        """


def listed(cloud: CloudReader, service: str, path: str, key: str) -> tuple[list[Json], Json]:
    """Return a list that every cloud has, and the body it came in.

    Raises:
        CloudUnreachable: It is not there, or it is no list: nothing may be concluded from that.
    """
    body = cloud.get(service, path)
    if body is None:
        raise CloudUnreachable(
            f"{service} {path}: status {NOT_FOUND}, but every cloud has this list",
            service=service,
            path=path,
            answer=NOT_FOUND,
        )
    found = body.get(key) if isinstance(body, dict) else None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise CloudUnreachable(
            f"{service} {path}: the answer has no list {key!r} of objects",
            service=service,
            path=path,
        )
    return found, body


def pages_by_offset(cloud: CloudReader, service: str, path: str, key: str) -> Iterator[Json]:
    """Yield the elements of a list that is paged by offset, each once, until a page is empty.

    Args:
        path: Path of the list.
        key: Key of the list in the body.
    """
    offset = 0
    seen: set[str] = set()
    separator = "&" if "?" in path else "?"
    while True:
        at = f"{path}{separator}limit={AT_ONCE}&offset={offset}"
        page, _ = listed(cloud, service, at, key)
        fresh = [item for item in page if str(item.get("id")) not in seen]
        if not fresh:
            return
        yield from fresh
        offset += len(page)
        seen |= {str(item.get("id")) for item in fresh}


def pages(
    cloud: CloudReader,
    service: str,
    path: str,
    key: str,
    *,
    marker: str = "id",
    limit: int = AT_ONCE,
) -> Iterator[Json]:
    """Yield the elements of a list that is paged by marker, until a page brings nothing new.

    Args:
        path: Path of the list.
        key: Key of the list in the body.
        marker: Field of an element that the next page starts after.
        limit: Elements to ask for at once.
    """
    separator = "&" if "?" in path else "?"
    start = f"{path}{separator}limit={limit}"
    before: list[str] = []
    seen: set[str] = set()
    while True:
        page = _page_after(cloud, service, start, key, before)
        found = [item for item in page if str(item.get(marker)) not in seen]
        if not found:
            return
        yield from found
        before = [str(item.get(marker)) for item in found]
        seen.update(before)


def _page_after(
    cloud: CloudReader, service: str, start: str, key: str, before: list[str]
) -> list[Json]:
    """Return the page after the last of some elements that is still there.

    Raises:
        CloudUnreachable: There is none, or every one of them went meanwhile.
    """
    markers = [f"&marker={last}" for last in reversed(before[-MOST_MARKERS:])] or [""]
    for number, after in enumerate(markers, start=1):
        try:
            page, _ = listed(cloud, service, start + after, key)
            break
        except CloudUnreachable as error:
            if number == len(markers) or error.facts.get("answer") not in GONE_MARKER:
                raise
    return page
