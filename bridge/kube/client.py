"""Requests to one cluster: server-side apply, reads, deletions, Events (docs/bridge.md).

All go through the official dynamic client by their paths: it asks no cluster for its kinds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import DynamicApiError
from urllib3.exceptions import HTTPError

from bridge.kube.login import ClusterUnavailable, log_in
from journal.errors import HeadroomError

MANAGER: Final = "headroom-bridge"
STATUS_MANAGER: Final = "headroom-bridge-status"
APPLY: Final = "application/apply-patch+yaml"
JSON_PATCH: Final = "application/json-patch+json"
MERGE: Final = "application/merge-patch+json"
CREATED: Final = 201
NOT_FOUND: Final = 404
CONFLICT: Final = 409
#: Cause of a conflict with another field manager.
OWNED: Final = "FieldManagerConflict"
#: Answers that are about the object itself; all others are about the cluster, or about us.
REFUSALS: Final = frozenset({400, 413, 422})

Json = dict[str, Any]  # Any: what JSON holds


class ObjectRefused(HeadroomError):  # noqa: N818 - says what is the case
    """A cluster does not take this object as it is."""

    code = "object_refused"


class ObjectChanged(HeadroomError):  # noqa: N818 - says what is the case
    """Somebody else wrote or deleted an object since we did, or owns fields of it (``owned``)."""

    code = "object_changed"


class Unexpected(ClusterUnavailable):
    """An object is there, or as it is, or absent against what the request is for."""

    code = "object_unexpected"


class ClusterClient:
    """One cluster; safe for threads."""

    def __init__(
        self,
        *,
        kubeconfig: Path | None,
        context: str,
        timeout_seconds: float,
        threads: int,
        is_in_pod: bool | None = None,
    ) -> None:
        """Read who we are there; nothing is sent.

        Args:
            is_in_pod: It is the cluster of our pod; left out, that is so without a kubeconfig.

        Raises:
            ClusterUnavailable: the kubeconfig cannot be read, or we are in no pod.
        """
        api = log_in(
            kubeconfig=kubeconfig,
            context=context,
            is_in_pod=kubeconfig is None if is_in_pod is None else is_in_pod,
            threads=threads,
        )
        api.user_agent = MANAGER
        self._client = DynamicClient(  # type: ignore[no-untyped-call]  # theirs
            api, discoverer=_discover_nothing
        )
        self._timeout_seconds = timeout_seconds

    def close(self) -> None:
        """Close connections."""
        self._client.client.close()

    def open(
        self,
        method: str,
        path: str,
        body: Any = None,  # Any: what JSON holds
        *,
        silence_seconds: float | None = None,
        **options: Any,  # Any: theirs
    ) -> Any:  # Any: urllib3's
        """Send a request; return the response, which the caller reads.

        Args:
            silence_seconds: Longest wait for a next piece; the usual timeout when left out.
            options: Parameters as the dynamic client calls them.

        Raises:
            Unexpected: an object is there, changed or absent.
            ObjectRefused: an object is not valid.
            ClusterUnavailable: there is no answer, or another that is no success (``answered``).
        """
        wait = (
            (self._timeout_seconds, silence_seconds) if silence_seconds else self._timeout_seconds
        )
        try:
            return self._client.request(
                method, path, body, serialize=False, _request_timeout=wait, **options
            )
        except DynamicApiError as error:
            raise _failure(error) from error
        except (HTTPError, OSError) as error:
            raise ClusterUnavailable(f"{path}: no answer: {error}") from error

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,  # Any: what JSON holds
        **options: Any,  # Any: theirs
    ) -> tuple[int, Json]:
        """Send a request as :meth:`open` does; return status and document of the answer.

        Raises:
            ClusterUnavailable: likewise, and the answer breaks or is no JSON.
        """
        answer = self.open(method, path, body, **options)
        try:
            return answer.status, orjson.loads(answer.data)
        except (HTTPError, OSError, orjson.JSONDecodeError) as error:
            answer.close()
            raise ClusterUnavailable(f"{path}: the answer broke: {error}") from error

    def apply(
        self,
        path: str,
        manifest: Json,
        *,
        manager: str = MANAGER,
        force: bool = True,
        dry_run: bool = False,
    ) -> tuple[Json, bool]:
        """Apply an object; return it as the cluster has it now, and whether it is new.

        Args:
            path: Of the object, or of its status.
            manifest: With ``metadata.resourceVersion`` it is applied to that version alone, but
                made anew where the object is gone.
            force: Take fields that others own; else they are a conflict.
            dry_run: Only say what would become of it.

        Raises:
            ObjectChanged: it has another version, or is there and others own fields of it.
            ObjectRefused: the object is not valid.
            ClusterUnavailable: anything else.
        """
        options = {"force_conflicts": force, "dry_run": "All" if dry_run else None}
        status, document = self._change(path, manifest, APPLY, manager, **options)
        return document, status == CREATED

    def patch(self, path: str, version: str, steps: list[Json]) -> Json:
        """Take the steps of a JSON patch to one version of an object; return what it is then.

        Raises:
            ObjectChanged: it has another version, or is gone.
            ObjectRefused: the object is not valid then.
            ClusterUnavailable: anything else.
        """
        lock = {"op": "replace", "path": "/metadata/resourceVersion", "value": version}
        return self._change(path, [lock, *steps], JSON_PATCH, MANAGER)[1]

    def merge(self, path: str, part: Json, *, manager: str) -> Json:
        """Set fields of an object, remove those that are None; return what it is then.

        Raises:
            ObjectChanged: it is gone.
            ObjectRefused: the object is not valid then.
            ClusterUnavailable: anything else.
        """
        return self._change(path, part, MERGE, manager)[1]

    def _change(
        self,
        path: str,
        body: Any,  # Any: what JSON holds
        content_type: str,
        manager: str,
        **options: Any,  # Any: theirs
    ) -> tuple[int, Json]:
        try:
            return self.request(
                "PATCH", path, body, content_type=content_type, field_manager=manager, **options
            )
        except Unexpected as error:
            raise ObjectChanged(error.message, owned=error.facts["owned"]) from error

    def get(self, path: str) -> Json | None:
        """Return an object, None when there is none.

        Raises:
            ClusterUnavailable: its kind is unknown, or anything else is wrong.
        """
        try:
            return self.request("GET", path)[1]
        except Unexpected as error:
            if error.facts["answered"] == NOT_FOUND:
                return None
            raise

    def delete(self, path: str) -> None:
        """Delete an object; that it is gone already is fine.

        Raises:
            ClusterUnavailable: anything is wrong.
        """
        try:
            self.request("DELETE", path)
        except Unexpected as error:
            if error.facts["answered"] != NOT_FOUND:
                raise

    def create(self, path: str, manifest: Json) -> None:
        """Create an object; that one of its name is there is fine.

        Raises:
            ObjectRefused: the object is not valid.
            ClusterUnavailable: anything else.
        """
        try:
            self.request("POST", path, manifest, field_manager=MANAGER)
        except Unexpected as error:
            if error.facts["answered"] != CONFLICT:
                raise


def kind_path(group: str, version: str, plural: str, name: str = "", sub: str = "") -> str:
    """Return the address of a kind of a group, of one object, or of its ``status``."""
    parts = ["/apis", group, version, plural, *(quote(part) for part in (name, sub) if part)]
    return "/".join(parts)


def _discover_nothing(_client: object, _cache_file: object) -> None:
    """Leave out that the client asks for all kinds of a cluster, and keeps them in a file."""


def _failure(error: DynamicApiError) -> HeadroomError:
    try:
        document = orjson.loads(error.body or b"{}")
    except orjson.JSONDecodeError:
        document = {"message": error.body}
    document = document if isinstance(document, dict) else {}
    details = document.get("details") or {}
    causes = {cause.get("reason") for cause in details.get("causes") or ()}
    # A 404 that names no object is about its kind.
    is_about_object = error.status == NOT_FOUND and details.get("name")
    kind: type[HeadroomError] = ClusterUnavailable
    if error.status == CONFLICT or is_about_object:
        kind = Unexpected
    elif error.status in REFUSALS:
        kind = ObjectRefused
    message = f"{error.status}: {document.get('message') or error.reason}"
    return kind(message, answered=error.status, owned=OWNED in causes)
