"""Asking the other Placement by ourselves: what it holds, and writes that are sent again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import orjson

from core.conf import headroom
from placement.clients.reference_api import (
    NEWEST_USED,
    OK,
    OLDEST_USABLE,
    Json,
    PeerError,
    StepSeen,
    consumer_of,
    provider_of,
    read_api,
)
from placement.domain.transfer import ConsumerRecord, Contents, ProviderRecord
from placement.gateway.asking import UNAUTHORIZED, NoAccountError, headers_of, token_of
from placement.gateway.current import options_of
from placement.gateway.upstream import Upstream, UpstreamAnswer

READERS: Final = 8
SENDERS: Final = 16
NOT_FOUND: Final = 404

Item = TypeVar("Item")
Found = TypeVar("Found")


class Peer:
    """The other Placement of the settings; threads may share it.

    Args:
        upstream: Sends requests to it.
        token: Returns a token; told whether the last one was refused.
    """

    def __init__(self, upstream: Upstream, token: Callable[[bool], str]) -> None:
        self._upstream = upstream
        self._token = token
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="cutover")
        self._senders = ThreadPoolExecutor(SENDERS, thread_name_prefix="cutover-mirror")
        self._newest: tuple[int, int] | None = None

    def newest(self) -> tuple[int, int]:
        """Return the newest version that it knows.

        Raises:
            PeerError: it does not answer as a Placement, or is too old.
        """
        if self._newest is None:
            document = self._decoded("/", self._sent("GET", "/", None))
            try:
                major, minor = document["versions"][0]["max_version"].split(".")
                self._newest = int(major), int(minor)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise PeerError("the address does not answer like a Placement service") from error
        if self._newest < (1, OLDEST_USABLE):
            raise PeerError(
                f"the service knows versions up to 1.{self._newest[1]}, 1.{OLDEST_USABLE} is needed"
            )
        return self._newest

    def get(self, path: str) -> Json:
        """Return what it answers to a read.

        Raises:
            PeerError: it does not answer, or not with 200.
        """
        return self._decoded(path, self._sent("GET", path, self._minor()))

    def find(self, path: str) -> Json | None:
        """Return what it answers to a read; nothing for 404.

        Raises:
            PeerError: as :meth:`get`.
        """
        answer = self._sent("GET", path, self._minor())
        return None if answer.status == NOT_FOUND else self._decoded(path, answer)

    def send(self, method: str, target: str, minor: int, body: bytes) -> UpstreamAnswer:
        """Send a write, and return whatever it answers.

        Raises:
            PlacementError: there is no answer.
        """
        return self._sent(method, target, minor, body)

    def rows(self) -> dict[str, Json]:
        """Return all providers as it lists them, by UUID."""
        listed = self.get("/resource_providers")["resource_providers"]
        return {row["uuid"]: row for row in listed}

    def tree(self, uuid: str) -> dict[str, Json]:
        """Return the providers of the tree that one is in, by UUID; none if there is none."""
        listed = self.get(f"/resource_providers?in_tree={uuid}")["resource_providers"]
        return {row["uuid"]: row for row in listed}

    def names(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the resource classes and the traits that it knows."""
        classes = self.get("/resource_classes")["resource_classes"]
        traits = self.get("/traits")["traits"]
        return frozenset(row["name"] for row in classes), frozenset(traits)

    def provider(
        self, uuid: str, row: Json | None = None
    ) -> tuple[ProviderRecord, dict[str, Json]] | None:
        """Return a provider and what consumers hold of it; nothing if there is none.

        Args:
            uuid: Of the provider.
            row: As a list has it; asked for when left out.
        """
        row = row or self.find(f"/resource_providers/{uuid}")
        if row is None:
            return None
        try:
            return provider_of(self.get, row)
        except PeerError:
            if self.find(f"/resource_providers/{uuid}") is None:
                return None
            raise

    def consumer(self, uuid: str) -> ConsumerRecord | None:
        """Return a consumer; nothing if it holds nothing."""
        return consumer_of(self.get, uuid)

    def contents(self, seen: StepSeen) -> Contents:
        """Return all it holds, through its API."""
        return read_api(_AsAdapter(self), seen)

    def each(self, work: Callable[[Item], Found], items: Sequence[Item]) -> list[Found]:
        """Return what work returns for each item, done by several threads."""
        return list(self._pool.map(work, items))

    def begin(self, work: Callable[[], Found]) -> Future[Found]:
        """Have one of as many threads as there are senders do something."""
        return self._senders.submit(work)

    def close(self) -> None:
        """End threads and connections."""
        self._pool.shutdown(cancel_futures=True)
        self._senders.shutdown(cancel_futures=True)
        self._upstream.close()

    def _minor(self) -> int:
        return min(self.newest()[1], NEWEST_USED)

    def _sent(
        self, method: str, target: str, minor: int | None, body: bytes = b""
    ) -> UpstreamAnswer:
        for is_refused in (False, True):
            headers = headers_of(self._token(is_refused), minor, body)
            answer = self._upstream.send(method, target, headers=headers, body=body)
            if answer.status != UNAUTHORIZED:
                break
        return answer

    @staticmethod
    def _decoded(path: str, answer: UpstreamAnswer) -> Json:
        if answer.status != OK:
            told = answer.body[:200].decode(errors="replace")
            raise PeerError(f"GET {path} answered {answer.status}: {told}")
        try:
            return orjson.loads(answer.body)
        except orjson.JSONDecodeError as error:
            raise PeerError(f"GET {path} answered no JSON") from error


_shared: tuple[object, Peer] | None = None
_lock: Final = threading.Lock()


def shared_peer() -> Peer:
    """Return the other Placement of the settings for all threads of this process.

    Raises:
        NoAccountError: as :func:`opened_peer`.
    """
    global _shared  # noqa: PLW0603 - one per process
    gateway = headroom().gateway
    with _lock:
        if _shared is None or _shared[0] != (gateway, os.getpid()):
            _shared = (gateway, os.getpid()), Peer(Upstream(options_of(gateway)), token_of(gateway))
        return _shared[1]


class _AsAdapter:
    """A peer where a keystoneauth adapter is asked for."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def get(self, url: str, **options: Any) -> Any:  # Any: like a requests.Response
        """Send a GET request."""
        version = options["headers"].get("OpenStack-API-Version", "")
        minor = int(version.rpartition(".")[2]) if version else None
        return _Response(self._peer._sent("GET", url, minor))  # noqa: SLF001 - the same module


class _Response:
    def __init__(self, answer: UpstreamAnswer) -> None:
        self.status_code = answer.status
        self.text = answer.body.decode(errors="replace")
        self.json = lambda: orjson.loads(answer.body)


@contextmanager
def opened_peer() -> Iterator[Peer]:
    """Yield the other Placement of the settings.

    Raises:
        NoAccountError: nothing says by which account, or there is no other Placement.
    """
    gateway = headroom().gateway
    if not gateway.upstream_url:
        raise NoAccountError("there is no other Placement: HEADROOM_GATEWAY__UPSTREAM_URL is empty")
    peer = Peer(Upstream(options_of(gateway)), token_of(gateway))
    try:
        yield peer
    finally:
        peer.close()
