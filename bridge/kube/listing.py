"""Listing and watching objects of one kind at a Kubernetes API server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import orjson
from urllib3.exceptions import HTTPError

from bridge.kube.client import ClusterClient
from bridge.kube.login import ClusterUnavailable
from journal.errors import HeadroomError

Json = Any  # bodies keep the API's own shapes

WATCH_SECONDS: Final = 300
"""The API server ends a watch after that; asking anew costs nothing."""
MOST_LINE_BYTES: Final = 64 << 20
READ_BYTES: Final = 1 << 16
#: With these, lists and events bear nothing of an object but its metadata.
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
METADATA_EVENTS: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
ADDED, MODIFIED, DELETED, BOOKMARK, ERROR = "ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"


class Expired(HeadroomError):  # noqa: N818 - says what happened
    """The API server does not know any more what changed since then (410): list again."""

    code = "kubernetes_expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of a list.

    Attributes:
        objects: Its objects.
        version: Resource version of the list: what changes later is watched from here.
        following: Names the next page; empty after the last.
    """

    objects: list[Json]
    version: str
    following: str


class Watch:
    """A watch that is open: its events, until the server ends it, it breaks, or it is stopped."""

    def __init__(self, response: Any) -> None:  # Any: urllib3's
        self._response = response

    def __iter__(self) -> Iterator[Json]:
        """Yield events as they come.

        Raises:
            ClusterUnavailable: It broke, was silent for too long, or speaks no JSON.
        """
        waiting = b""
        try:
            for chunk in self._response.stream(READ_BYTES, decode_content=True):
                *lines, waiting = (waiting + chunk).split(b"\n")
                yield from (orjson.loads(line) for line in lines if line)
                if len(waiting) > MOST_LINE_BYTES:
                    raise ClusterUnavailable("an event of the watch has no end")
        except (HTTPError, OSError, ValueError) as error:
            raise ClusterUnavailable(f"the watch broke: {error}") from error
        finally:
            self._response.close()

    def stop(self) -> None:
        """Let the thread that reads its events find its end."""
        with suppress(OSError, ValueError, RuntimeError):
            self._response.shutdown()


class ObjectsApi:
    """Objects of one kind, cluster-scoped."""

    def __init__(
        self,
        client: ClusterClient,
        path: str,
        *,
        silence_seconds: float,
        selector: str = "",
        is_whole: bool = True,
    ) -> None:
        """Remember where they are.

        Args:
            path: Path of their list.
            silence_seconds: After which a watch counts as broken.
            selector: Labels that they bear.
            is_whole: Whether all of an object is asked for, or its metadata.
        """
        self._client = client
        self._path = path
        self._silence_seconds = silence_seconds
        self._selector = selector or None
        self._is_whole = is_whole

    def page(self, *, limit: int, following: str = "") -> Page:
        """Return a page of the list.

        Raises:
            Expired: The list changed too much since its first page.
            ClusterUnavailable: No answer, or none that is a list.
        """
        with self._answers():
            _, body = self._client.request(
                "GET",
                self._path,
                limit=limit,
                _continue=following or None,
                **self._asked(METADATA_LIST),
            )
        body = body if isinstance(body, dict) else {}
        objects, metadata = body.get("items"), body.get("metadata")
        if objects is None and not self._is_whole:  # as the server says that there are none
            objects = []
        metadata = metadata if isinstance(metadata, dict) else {}
        version = metadata.get("resourceVersion")
        if not isinstance(objects, list) or not isinstance(version, str) or not version:
            raise ClusterUnavailable(f"{self._path}: the answer is no list of objects")
        return Page(objects=objects, version=version, following=metadata.get("continue") or "")

    def watch(self, version: str, *, seconds: int = WATCH_SECONDS) -> Watch:
        """Return a watch of what changes after a resource version, with bookmarks.

        Args:
            seconds: After which the server ends it.

        Raises:
            Expired: That is too long ago.
            ClusterUnavailable: No answer.
        """
        with self._answers():
            response = self._client.open(
                "GET",
                self._path,
                silence_seconds=self._silence_seconds,
                watch=True,
                allow_watch_bookmarks=True,
                resource_version=version,
                timeout_seconds=seconds,
                **self._asked(METADATA_EVENTS),
            )
        return Watch(response)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _asked(self, metadata: str) -> dict[str, Any]:  # Any: options of requests
        accept = "application/json" if self._is_whole else metadata
        return {"label_selector": self._selector, "header_params": {"Accept": accept}}

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Say of an answer that is no list whose it is, and when it is that of an old version."""
        try:
            yield
        except ClusterUnavailable as error:
            answered = error.facts.get("answered")
            if answered == HTTPStatus.GONE:
                message = f"{self._path}: the API server does not know that far back"
                raise Expired(message) from error
            if answered is not None:
                message = f"{self._path}: status {error.message}"
                raise ClusterUnavailable(message, answered=answered) from error
            raise


def event_of(event: Json) -> tuple[str, Json]:
    """Return type and object of an event of a watch.

    Raises:
        ClusterUnavailable: It is no event.
    """
    kind = event.get("type") if isinstance(event, dict) else None
    body = event.get("object") if isinstance(event, dict) else None
    if kind not in {ADDED, MODIFIED, DELETED, BOOKMARK, ERROR} or not isinstance(body, dict):
        raise ClusterUnavailable("the watch told something that is no event")
    return kind, body


def error_of(status: Json) -> HeadroomError:
    """Return what an event of the type ERROR tells, to be raised."""
    if status.get("code") == HTTPStatus.GONE:
        return Expired(str(status.get("message")))
    return ClusterUnavailable(f"the watch told of an error: {status.get('message')}")


def version_of(body: Json) -> str:
    """Return the resource version that an object names, empty when it names none."""
    metadata = body.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return version if isinstance(version, str) else ""
