"""Listing and watching objects of one kind at a Kubernetes API server.

The official client brings configuration, certificates and tokens; bodies are read as plain JSON, as
a page of a list has thousands of VMs in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from django.conf import settings
from kubernetes import client, config
from urllib3 import Timeout
from urllib3.exceptions import HTTPError
from yaml import YAMLError

from journal.errors import HeadroomError

Json = Any  # bodies keep the API's own shapes

WATCH_SECONDS: Final = 300
"""The API server ends a watch after that; asking anew costs nothing."""
MOST_LINE_BYTES: Final = 64 << 20
READ_BYTES: Final = 1 << 16


class KubernetesUnreachable(HeadroomError):  # noqa: N818 - says what happened
    """The API server did not answer, or not with what was asked for."""

    code = "kubernetes_unreachable"


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
            KubernetesUnreachable: It broke, was silent for too long, or speaks no JSON.
        """
        waiting = b""
        try:
            for chunk in self._response.stream(READ_BYTES, decode_content=True):
                *lines, waiting = (waiting + chunk).split(b"\n")
                yield from (orjson.loads(line) for line in lines if line)
                if len(waiting) > MOST_LINE_BYTES:
                    raise KubernetesUnreachable("an event of the watch has no end")
        except (HTTPError, OSError, ValueError) as error:
            raise KubernetesUnreachable(f"the watch broke: {error}") from error
        finally:
            self._response.close()

    def stop(self) -> None:
        """Let the thread that reads its events find its end."""
        with suppress(OSError, ValueError, RuntimeError):
            self._response.shutdown()


class ObjectsApi:
    """Objects of one kind, cluster-scoped."""

    def __init__(self, configuration: client.Configuration, path: str) -> None:
        """Remember where they are.

        Args:
            path: Path of their list.
        """
        self._client = client.ApiClient(configuration)
        self._path = path
        chosen = settings.HEADROOM.hypervisors
        self._wait = Timeout(connect=chosen.timeout_seconds, read=chosen.timeout_seconds)
        self._silence = Timeout(connect=chosen.timeout_seconds, read=chosen.silence_seconds)

    def page(self, *, limit: int, following: str = "") -> Page:
        """Return a page of the list.

        Raises:
            Expired: The list changed too much since its first page.
            KubernetesUnreachable: No answer, or none that is a list.
        """
        asked = {"limit": str(limit)} | ({"continue": following} if following else {})
        response = self._get(asked, timeout=self._wait)
        try:
            body = orjson.loads(response.read(decode_content=True))
        except (HTTPError, OSError, ValueError) as error:
            raise KubernetesUnreachable(f"{self._path}: the list broke: {error}") from error
        finally:
            response.release_conn()
        body = body if isinstance(body, dict) else {}
        objects, metadata = body.get("items"), body.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        version = metadata.get("resourceVersion")
        if not isinstance(objects, list) or not isinstance(version, str) or not version:
            raise KubernetesUnreachable(f"{self._path}: the answer is no list of objects")
        return Page(objects=objects, version=version, following=metadata.get("continue") or "")

    def watch(self, version: str) -> Watch:
        """Return a watch of what changes after a resource version, with bookmarks.

        Raises:
            Expired: That is too long ago.
            KubernetesUnreachable: No answer.
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
        configuration = self._client.configuration
        # Tokens are renewed as they are asked for.
        logins = configuration.auth_settings().values()
        headers = {"Accept": "application/json"} | {one["key"]: one["value"] for one in logins}
        url = f"{configuration.host}{self._path}?{urlencode(asked)}"
        try:
            response = self._client.rest_client.pool_manager.request(
                "GET", url, headers=headers, timeout=timeout, preload_content=False, retries=False
            )
            if response.status == HTTPStatus.OK:
                return response
            told = response.read(500, decode_content=True).decode(errors="replace")
            response.close()
        except (HTTPError, OSError) as error:
            raise KubernetesUnreachable(f"{self._path}: {error}") from error
        if response.status == HTTPStatus.GONE:
            raise Expired(f"{self._path}: the API server does not know that far back")
        raise KubernetesUnreachable(f"{self._path}: status {response.status}: {told}")


def hypervisors_api() -> ObjectsApi:
    """Return the Hypervisor objects of the cluster that the settings name.

    Raises:
        KubernetesUnreachable: They name none.
    """
    chosen = settings.HEADROOM.hypervisors
    configuration = client.Configuration()
    try:
        if chosen.kubeconfig or os.environ.get("KUBECONFIG") or not _is_in_cluster():
            config.load_kube_config(  # type: ignore[no-untyped-call]  # the library has no types
                config_file=str(chosen.kubeconfig) if chosen.kubeconfig else None,
                context=chosen.context or None,
                client_configuration=configuration,
                persist_config=False,
            )
        else:
            config.load_incluster_config(  # type: ignore[no-untyped-call]  # as above
                client_configuration=configuration
            )
    except (config.ConfigException, YAMLError, OSError, ValueError) as error:
        raise KubernetesUnreachable(f"no API server is configured: {error}") from error
    return ObjectsApi(configuration, f"/apis/{chosen.group}/{chosen.version}/hypervisors")


def _is_in_cluster() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
