"""Listing and watching objects of one kind at a Kubernetes API server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from django.conf import settings
from kubernetes.client import ApiClient
from urllib3 import Timeout
from urllib3.exceptions import HTTPError

from bridge.kube.door import Door, kind_path
from bridge.kube.login import ClusterUnavailable, log_in, login_headers
from journal.errors import HeadroomError

Json = Any  # bodies keep the API's own shapes

WATCH_SECONDS: Final = 300
"""The API server ends a watch after that; asking anew costs nothing."""
MOST_LINE_BYTES: Final = 64 << 20
READ_BYTES: Final = 1 << 16


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

    def __init__(self, api: ApiClient, path: str) -> None:
        """Remember where they are.

        Args:
            path: Path of their list.
        """
        self._client = api
        self._path = path
        chosen = settings.HEADROOM.hypervisors
        self._wait = Timeout(connect=chosen.timeout_seconds, read=chosen.timeout_seconds)
        self._silence = Timeout(connect=chosen.timeout_seconds, read=chosen.silence_seconds)

    def page(self, *, limit: int, following: str = "") -> Page:
        """Return a page of the list.

        Raises:
            Expired: The list changed too much since its first page.
            ClusterUnavailable: No answer, or none that is a list.
        """
        asked = {"limit": str(limit)} | ({"continue": following} if following else {})
        response = self._get(asked, timeout=self._wait)
        try:
            body = orjson.loads(response.read(decode_content=True))
        except (HTTPError, OSError, ValueError) as error:
            raise ClusterUnavailable(f"{self._path}: the list broke: {error}") from error
        finally:
            response.release_conn()
        body = body if isinstance(body, dict) else {}
        objects, metadata = body.get("items"), body.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        version = metadata.get("resourceVersion")
        if not isinstance(objects, list) or not isinstance(version, str) or not version:
            raise ClusterUnavailable(f"{self._path}: the answer is no list of objects")
        return Page(objects=objects, version=version, following=metadata.get("continue") or "")

    def watch(self, version: str) -> Watch:
        """Return a watch of what changes after a resource version, with bookmarks.

        Raises:
            Expired: That is too long ago.
            ClusterUnavailable: No answer.
        """
        asked = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        return Watch(self._get(asked, timeout=self._silence))

    def close(self) -> None:
        """Close all connections."""
        self._client.rest_client.pool_manager.clear()

    def _get(self, asked: Mapping[str, str], *, timeout: Timeout) -> Any:  # Any: urllib3's
        headers = {"Accept": "application/json", **login_headers(self._client)}
        url = f"{self._client.configuration.host}{self._path}?{urlencode(asked)}"
        try:
            response = self._client.rest_client.pool_manager.request(
                "GET", url, headers=headers, timeout=timeout, preload_content=False, retries=False
            )
            if response.status == HTTPStatus.OK:
                return response
            told = response.read(500, decode_content=True).decode(errors="replace")
            response.close()
        except (HTTPError, OSError) as error:
            raise ClusterUnavailable(f"{self._path}: {error}") from error
        if response.status == HTTPStatus.GONE:
            raise Expired(f"{self._path}: the API server does not know that far back")
        raise ClusterUnavailable(f"{self._path}: status {response.status}: {told}")


def hypervisors_api() -> ObjectsApi:
    """Return the Hypervisor objects of the cluster that the settings name.

    Raises:
        ClusterUnavailable: They name none.
    """
    chosen = settings.HEADROOM.hypervisors
    kubeconfig = _kubeconfig()
    api = log_in(
        kubeconfig=kubeconfig,
        context=chosen.context,
        is_in_pod=kubeconfig is None and bool(os.environ.get("KUBERNETES_SERVICE_HOST")),
        threads=1,
    )
    return ObjectsApi(api, object_path())


def hypervisors_door() -> Door:
    """Return the way to write in the same objects; safe for threads.

    Raises:
        ClusterUnavailable: The settings name no cluster.
    """
    chosen = settings.HEADROOM.hypervisors
    return Door(
        kubeconfig=_kubeconfig(),
        context=chosen.context,
        timeout_seconds=chosen.timeout_seconds,
        threads=chosen.write_threads,
    )


def object_path(name: str = "", sub: str = "") -> str:
    """Return the address of the objects, of one, or of its status."""
    chosen = settings.HEADROOM.hypervisors
    return kind_path(chosen.group, chosen.version, "hypervisors", name, sub)


def _kubeconfig() -> Path | None:
    chosen: Path | None = settings.HEADROOM.hypervisors.kubeconfig
    named = os.environ.get("KUBECONFIG")
    return chosen or (Path(named) if named else None)
