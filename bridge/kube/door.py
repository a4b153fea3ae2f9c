"""Requests to one cluster: server-side apply, reads, deletions, Events (docs/bridge.md)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import orjson
import urllib3

from bridge.kube.login import ClusterUnavailable, log_in, login_headers
from journal.errors import HeadroomError

MANAGER: Final = "headroom-bridge"
STATUS_MANAGER: Final = "headroom-bridge-status"
APPLY: Final = "application/apply-patch+yaml"
JSON_PATCH: Final = "application/json-patch+json"
OK: Final = 200
CREATED: Final = 201
ACCEPTED: Final = 202
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


class Door:
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
        self._client = log_in(
            kubeconfig=kubeconfig,
            context=context,
            is_in_pod=kubeconfig is None if is_in_pod is None else is_in_pod,
            threads=threads,
        )
        self._timeout_seconds = timeout_seconds
        self._url = self._client.configuration.host.rstrip("/")
        self._timeout = urllib3.Timeout(total=timeout_seconds)

    def close(self) -> None:
        """Close connections."""
        self._client.rest_client.pool_manager.clear()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,  # Any: what JSON holds
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> tuple[int, Json]:
        """Send a request; return status and document of the answer, whatever the status.

        Raises:
            ClusterUnavailable: there is no answer, or one that is no JSON.
        """
        headers = self._headers(accept)
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            answer = self._client.rest_client.pool_manager.request(
                method,
                self._address(path, query),
                body=None if body is None else orjson.dumps(body),
                headers=headers,
                timeout=self._timeout,
                retries=False,
            )
            return answer.status, orjson.loads(answer.data) if answer.data else {}
        except (urllib3.exceptions.HTTPError, orjson.JSONDecodeError) as error:
            raise ClusterUnavailable(f"no answer: {error}") from error

    def open(
        self, path: str, *, query: Mapping[str, str], accept: str, silence_seconds: float | None
    ) -> Any:  # Any: urllib3's
        """Ask for what is long or has no end; return the response, which the caller reads.

        Args:
            silence_seconds: Longest wait for a next piece; the usual timeout when left out.

        Raises:
            ClusterUnavailable: there is no answer.
        """
        wait = urllib3.Timeout(
            connect=self._timeout_seconds, read=silence_seconds or self._timeout_seconds
        )
        try:
            return self._client.rest_client.pool_manager.request(
                "GET",
                self._address(path, query),
                headers=self._headers(accept),
                timeout=wait,
                preload_content=False,
                retries=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterUnavailable(f"{path}: {error}") from error

    def _headers(self, accept: str) -> dict[str, str]:
        return {"Accept": accept, "User-Agent": MANAGER, **login_headers(self._client)}

    def _address(self, path: str, query: Mapping[str, str] | None) -> str:
        return f"{self._url}{path}" + (f"?{urlencode(query)}" if query else "")

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
        query = {"fieldManager": manager, "force": str(force).lower()}
        if dry_run:
            query["dryRun"] = "All"
        status, document = self.request("PATCH", path, manifest, query=query, content_type=APPLY)
        if status in (OK, CREATED):
            return document, status == CREATED
        if status == CONFLICT or (status == NOT_FOUND and _is_about_object(document)):
            raise ObjectChanged(_message(status, document), owned=_is_owned(document))
        raise _failure(status, document)

    def patch(self, path: str, version: str, steps: list[Json]) -> Json:
        """Take the steps of a JSON patch to one version of an object; return what it is then.

        Raises:
            ObjectChanged: it has another version, or is gone.
            ObjectRefused: the object is not valid then.
            ClusterUnavailable: anything else.
        """
        lock = {"op": "replace", "path": "/metadata/resourceVersion", "value": version}
        status, document = self.request(
            "PATCH", path, [lock, *steps], query={"fieldManager": MANAGER}, content_type=JSON_PATCH
        )
        if status == OK:
            return document
        if status == CONFLICT or (status == NOT_FOUND and _is_about_object(document)):
            raise ObjectChanged(_message(status, document))
        raise _failure(status, document)

    def get(self, path: str) -> Json | None:
        """Return an object, None when there is none.

        Raises:
            ClusterUnavailable: its kind is unknown, or anything else is wrong.
        """
        status, document = self.request("GET", path)
        if status == OK:
            return document
        if status == NOT_FOUND and _is_about_object(document):
            return None
        raise _failure(status, document)

    def delete(self, path: str) -> None:
        """Delete an object; that it is gone already is fine.

        Raises:
            ClusterUnavailable: anything is wrong.
        """
        status, document = self.request("DELETE", path)
        if status in (OK, ACCEPTED) or (status == NOT_FOUND and _is_about_object(document)):
            return
        raise _failure(status, document)

    def create(self, path: str, manifest: Json) -> None:
        """Create an object; that one of its name is there is fine.

        Raises:
            ObjectRefused: the object is not valid.
            ClusterUnavailable: anything else.
        """
        status, document = self.request("POST", path, manifest, query={"fieldManager": MANAGER})
        if status not in (OK, CREATED, ACCEPTED, CONFLICT):
            raise _failure(status, document)


def kind_path(group: str, version: str, plural: str, name: str = "", sub: str = "") -> str:
    """Return the address of a kind of a group, of one object, or of its ``status``."""
    parts = ["/apis", group, version, plural, *(quote(part) for part in (name, sub) if part)]
    return "/".join(parts)


def _is_about_object(document: Json) -> bool:
    """Return whether a 404 names an object; that of an unknown kind does not."""
    return bool((document.get("details") or {}).get("name"))


def _is_owned(document: Json) -> bool:
    """Return whether a conflict is about fields of other managers, not about the object."""
    causes = (document.get("details") or {}).get("causes") or ()
    return any(cause.get("reason") == OWNED for cause in causes)


def _message(status: int, document: Json) -> str:
    return f"{status}: {document.get('message', 'no message')}"


def _failure(status: int, document: Json) -> HeadroomError:
    kind = ObjectRefused if status in REFUSALS else ClusterUnavailable
    return kind(_message(status, document), answered=status)
