"""Two servers side by side: the reference Placement, and ours, sent the same requests."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from config.launcher.demo import ADDRESS

REQUEST_SECONDS = 60.0
TOKEN = "admin"  # noqa: S105 - noauth takes any name
MOUNT = "/placement"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to a Placement API; ``minor`` is the version's second number."""

    method: str
    path: str
    minor: int
    body: Any = None

    def __str__(self) -> str:
        body = "" if self.body is None else f" {json.dumps(self.body)}"
        return f"1.{self.minor} {self.method} {self.path}{body}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def error(self) -> Mapping[str, Any]:
        return dict(self.body["errors"][0]) if self.status >= 400 and self.body else {}


@dataclass(slots=True, kw_only=True)
class PlacementServer:
    """A Placement API below ``prefix`` of a local port, spoken to over one kept connection."""

    port: int
    prefix: str = ""
    token: str = TOKEN
    _link: http.client.HTTPConnection | None = field(default=None, init=False)

    def send(self, request: Request) -> Reply:
        headers = {
            "X-Auth-Token": self.token,
            "OpenStack-API-Version": f"placement 1.{request.minor}",
            "Accept": "application/json",
        }
        content = None
        if request.body is not None:
            content = json.dumps(request.body).encode()
            headers["Content-Type"] = "application/json"
        for _ in range(2):
            if self._link is None:
                self._link = http.client.HTTPConnection(ADDRESS, self.port, timeout=REQUEST_SECONDS)
            try:
                self._link.request(
                    request.method, self.prefix + request.path, body=content, headers=headers
                )
                response = self._link.getresponse()
                text = response.read()
                break
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self.close()  # the server ended the idle connection: nothing was done
        names = {name.lower(): words for name, words in response.getheaders()}
        decoded = json.loads(text) if text else None
        return Reply(status=response.status, headers=names, body=decoded)

    def get(self, path: str, minor: int = 36) -> Any:
        reply = self.send(Request(method="GET", path=path, minor=minor))
        assert reply.status == 200, reply
        return reply.body

    def wipe(self) -> None:
        """Remove all that the API can remove."""
        providers = self.get("/resource_providers")["resource_providers"]
        for row in providers:
            for consumer in self.get(f"/resource_providers/{row['uuid']}/allocations")[
                "allocations"
            ]:
                self._delete(f"/allocations/{consumer}")
        parents = {row["uuid"]: row["parent_provider_uuid"] for row in providers}
        while parents:
            for leaf in set(parents) - set(parents.values()):
                self._delete(f"/resource_providers/{leaf}")
                del parents[leaf]
        for trait in self.get("/traits?name=startswith:CUSTOM_")["traits"]:
            self._delete(f"/traits/{trait}")
        for row in self.get("/resource_classes")["resource_classes"]:
            if row["name"].startswith("CUSTOM_"):
                self._delete(f"/resource_classes/{row['name']}")

    def _delete(self, path: str) -> None:
        reply = self.send(Request(method="DELETE", path=path, minor=36))
        assert reply.status in {204, 404}, (path, reply)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


def canonical(body: Any) -> Any:
    """Return an answer with every list that has no order sorted, so that ``==`` compares content.

    Links keep their order, which is part of the contract.
    """
    if isinstance(body, dict):
        return {key: inner if key == "links" else canonical(inner) for key, inner in body.items()}
    if isinstance(body, list):
        return sorted((canonical(inner) for inner in body), key=_sorted_text)
    return body


def _sorted_text(content: Any) -> str:
    return json.dumps(content, sort_keys=True)


def without_prefix(body: Any, prefix: str) -> Any:
    """Return an answer whose links start at the root, wherever the API is mounted."""
    if isinstance(body, dict):
        return {
            key: inner.removeprefix(prefix)
            if key == "href" and isinstance(inner, str)
            else without_prefix(inner, prefix)
            for key, inner in body.items()
        }
    if isinstance(body, list):
        return [without_prefix(inner, prefix) for inner in body]
    return body
