"""Emptying a Placement server through its own API, and preparing scenes on it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Mapping
from typing import Any, Self

import httpx
from scenes import Held, Provider, Scene

FRESH = [
    "RP_UUID",
    "RP_NAME",
    "RP_UUID1",
    "RP_NAME1",
    "RP_UUID2",
    "RP_NAME2",
    "PARENT_PROVIDER_UUID",
    "ALT_PARENT_PROVIDER_UUID",
    "PROJECT_ID",
    "PROJECT_ID_ALT",
    "ADMIN_PROJECT_ID",
    "SERVICE_PROJECT_ID",
    "USER_ID",
    "USER_ID_ALT",
    "INSTANCE_UUID",
    "MIGRATION_UUID",
    "CONSUMER_UUID",
]
FIXED = {
    "CUSTOM_RES_CLASS": "CUSTOM_IRON_NFV",
    "CUSTOM_RES_CLASS1": "CUSTOM_IRON_NFV1",
    "CUSTOM_RES_CLASS2": "CUSTOM_IRON_NFV2",
}
WRITTEN = (200, 201, 204)
REMOVED = (204, 404)
LATEST = "1.36"
CUSTOM = "CUSTOM_"
TIMEOUT_SECONDS = 60.0
PLAIN = False  # plain HTTP on this machine: loading certificates would take longer than a test


class PreparationError(Exception):
    """The server refused what prepares a test file."""


class Preparer:
    """A Placement client that empties a server and seeds scenes; a context manager."""

    def __init__(self, url: str, token: str = "admin") -> None:  # noqa: S107 - noauth's user name
        headers = {"x-auth-token": token, "accept": "application/json"}
        self._http = httpx.Client(
            base_url=url.rstrip("/"), headers=headers, timeout=TIMEOUT_SECONDS, verify=PLAIN
        )
        self._known: set[str] = set()
        self._ids: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        version: str,
        body: Any = None,  # Any: any JSON
        expected: Collection[int] = WRITTEN,
    ) -> Any:  # Any: decoded JSON
        """Send one request and return the decoded answer, None without a body.

        Raises:
            PreparationError: the status is not one of the expected.
        """
        headers = {"openstack-api-version": f"placement {version}"}
        response = self._http.request(method, path, json=body, headers=headers)
        if response.status_code not in expected:
            raise PreparationError(
                f"{method} {path} at {version}: {response.status_code} {response.text[:400]}"
            )
        return response.json() if response.content else None

    def wipe(self) -> None:
        """Remove everything that the API can remove.

        Aggregates, projects, users and consumer types stay; no test sees them.
        """
        providers = self.call("GET", "/resource_providers", LATEST)["resource_providers"]
        for provider in providers:
            path = f"/resource_providers/{provider['uuid']}/allocations"
            for consumer in self.call("GET", path, LATEST)["allocations"]:
                self.call("DELETE", f"/allocations/{consumer}", LATEST, expected=REMOVED)
        self._delete_from_the_leaves(
            {row["uuid"]: row["parent_provider_uuid"] for row in providers}
        )
        for trait in self.call("GET", f"/traits?name=startswith:{CUSTOM}", LATEST)["traits"]:
            self.call("DELETE", f"/traits/{trait}", LATEST, expected=REMOVED)
        for row in self.call("GET", "/resource_classes", LATEST)["resource_classes"]:
            if row["name"].startswith(CUSTOM):
                self.call("DELETE", f"/resource_classes/{row['name']}", LATEST, expected=REMOVED)

    def _delete_from_the_leaves(self, parents: dict[str, str | None]) -> None:
        while parents:
            leaves = set(parents) - set(parents.values())
            if not leaves:
                raise PreparationError("the provider tree has a loop")
            for leaf in leaves:
                self.call("DELETE", f"/resource_providers/{leaf}", LATEST, expected=REMOVED)
                del parents[leaf]

    def seed(self, scene: Scene) -> None:
        """Set every variable that test files may use, and create what a scene describes."""
        os.environ.update({name: str(uuid.uuid4()) for name in FRESH})
        os.environ.update(FIXED)
        for name in (*scene.aggregates, *scene.fresh):
            os.environ[name] = str(uuid.uuid4())
        for name in scene.classes:
            self._need("resource_classes", name, "1.7")
        for provider in scene.providers:
            self._create(provider)
        for held in scene.held:
            self._allocate(held)
        for variable, name in scene.aliases.items():
            os.environ[variable] = self._ids[name]

    def _need(self, kind: str, name: str, version: str) -> None:
        if name.startswith(CUSTOM) and name not in self._known:
            self.call("PUT", f"/{kind}/{name}", version)
            self._known.add(name)

    def _create(self, provider: Provider) -> None:
        new = os.environ[provider.uuid_variable] if provider.uuid_variable else str(uuid.uuid4())
        name = os.environ[provider.name_variable] if provider.name_variable else provider.name
        self._ids[provider.name] = new
        body = {"name": name, "uuid": new}
        if provider.parent:
            body["parent_provider_uuid"] = self._ids[provider.parent]
        self.call("POST", "/resource_providers", "1.14", body)
        base = f"/resource_providers/{new}"
        if provider.aggregates:  # the old form leaves the generation alone
            aggregates = [os.environ[variable] for variable in provider.aggregates]
            self.call("PUT", f"{base}/aggregates", "1.1", aggregates)
        for resource_class, given in provider.inventories.items():
            self._need("resource_classes", resource_class, "1.7")
            fields = dict(given) if isinstance(given, Mapping) else {"total": given}
            fields.setdefault("max_unit", fields["total"])
            inventory = {"resource_class": resource_class, **fields}
            self.call("POST", f"{base}/inventories", "1.14", inventory)
        if provider.traits:
            for trait in provider.traits:
                self._need("traits", trait, "1.6")
            generation = len(provider.inventories)
            body_of_traits = {
                "traits": list(provider.traits),
                "resource_provider_generation": generation,
            }
            self.call("PUT", f"{base}/traits", "1.14", body_of_traits)
        for variable in provider.variables:
            os.environ[variable] = new

    def _allocate(self, held: Held) -> None:
        consumer = str(uuid.uuid4())
        project, user = (
            os.environ[text[1:]] if text.startswith("$") else text
            for text in (held.project, held.user)
        )
        body = {
            "allocations": {self._ids[held.provider]: {"resources": dict(held.resources)}},
            "project_id": project,
            "user_id": user,
            "consumer_generation": None,
        }
        self.call("PUT", f"/allocations/{consumer}", "1.28", body)  # below 1.38: no type
        if held.variable:
            os.environ[held.variable] = consumer
