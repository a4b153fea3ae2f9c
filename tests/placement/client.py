"""An OpenStack client of the Placement API, over the test client of Django."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import orjson
from django.db import connection
from django.test import Client

from config.sections_placement import PlacementSettings

LATEST = "1.39"


def uuid() -> str:
    return str(uuid4())


class Answer:
    """What came back: status, headers, and the JSON of the body."""

    def __init__(self, response: Any) -> None:
        self.status = int(response.status_code)
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self.content: bytes = response.content

    @property
    def json(self) -> Any:
        return orjson.loads(self.content)

    @property
    def error(self) -> dict[str, Any]:
        (error,) = self.json["errors"]
        return dict(error)


class PlacementClient:
    """Sends requests with a token and a version."""

    def __init__(
        self,
        version: str = LATEST,
        token: str = "admin",  # noqa: S107 - of an open server
        **headers: str,
    ) -> None:
        self.client = Client(raise_request_exception=False)
        self.version = version
        self.token = token
        self.headers = headers

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        version: str | None = None,
        **extra: Any,
    ) -> Answer:
        headers = {"OpenStack-API-Version": f"placement {version or self.version}", **self.headers}
        if self.token:
            headers["X-Auth-Token"] = self.token
        headers |= {name.replace("_", "-"): value for name, value in extra.items()}
        arguments: dict[str, Any] = {"headers": headers}
        if body is not None:
            data = body if isinstance(body, bytes) else orjson.dumps(body)
            arguments |= {"data": data, "content_type": "application/json"}
        return Answer(self.client.generic(method, f"/placement{path}", **arguments))

    def get(self, path: str, **extra: Any) -> Answer:
        return self.call("GET", path, **extra)

    def put(self, path: str, body: object = None, **extra: Any) -> Answer:
        return self.call("PUT", path, body, **extra)

    def post(self, path: str, body: object = None, **extra: Any) -> Answer:
        return self.call("POST", path, body, **extra)

    def delete(self, path: str, **extra: Any) -> Answer:
        return self.call("DELETE", path, **extra)

    def make_provider(self, name: str = "", parent: str | None = None, **inventory: Any) -> str:
        """Create a provider; keyword arguments are totals, or inventories, by class."""
        provider = uuid()
        body = {"name": name or provider, "uuid": provider, "parent_provider_uuid": parent}
        assert self.post("/resource_providers", body).status == 200
        if inventory:
            self.set_inventory(provider, **inventory)
        return provider

    def generation(self, provider: str) -> int:
        return int(self.get(f"/resource_providers/{provider}").json["generation"])

    def set_inventory(self, provider: str, **inventory: Any) -> None:
        body = {
            "resource_provider_generation": self.generation(provider),
            "inventories": {
                name: given if isinstance(given, dict) else {"total": given}
                for name, given in inventory.items()
            },
        }
        answer = self.put(f"/resource_providers/{provider}/inventories", body)
        assert answer.status == 200, answer.content

    def allocate(
        self,
        consumer: str,
        allocations: dict[str, dict[str, int]],
        *,
        generation: int | None = None,
        version: str = "1.28",
        **extra: Any,
    ) -> Answer:
        body = consumer_body(allocations, generation=generation, version=version, **extra)
        return self.put(f"/allocations/{consumer}", body, version=version)

    def used(self, provider: str) -> dict[str, int]:
        return dict(self.get(f"/resource_providers/{provider}/usages").json["usages"])

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        answer = self.get(f"/allocations/{consumer}").json
        return {key: value["resources"] for key, value in answer["allocations"].items()}


def consumer_body(
    allocations: dict[str, dict[str, int]],
    *,
    generation: int | None = None,
    version: str = "1.28",
    **extra: Any,
) -> dict[str, Any]:
    """Return the body of a consumer's allocations."""
    body: dict[str, Any] = {
        "allocations": {key: {"resources": amounts} for key, amounts in allocations.items()},
        "project_id": "p",
        "user_id": "u",
        **extra,
    }
    if int(version.split(".")[1]) >= 28:
        body["consumer_generation"] = generation
    return body


def drift() -> list[tuple[Any, ...]]:
    """Return inventories whose ``used`` is not the sum of their allocations, and stray rows."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT i.provider_id, i.resource_class_id, i.used, coalesce(sum(a.used), 0)
              FROM placement_inventory i
              LEFT JOIN placement_allocation a ON a.provider_id = i.provider_id
               AND a.resource_class_id = i.resource_class_id
             GROUP BY i.id HAVING i.used <> coalesce(sum(a.used), 0)
             UNION ALL
            SELECT k.id, NULL, NULL, NULL FROM placement_consumer k
             WHERE NOT EXISTS (SELECT FROM placement_allocation a WHERE a.consumer_id = k.id)
            """
        )
        return list(cursor.fetchall())


def placement_settings(settings: Any, **fields: Any) -> None:
    """Change settings of the Placement API for a test."""
    current = settings.HEADROOM
    placement = PlacementSettings.model_validate({**current.placement.model_dump(), **fields})
    settings.HEADROOM = current.model_copy(update={"placement": placement, "auth": "noauth"})
