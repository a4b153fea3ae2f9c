"""What Nova and Placement say of one compute host, and what they are asked to do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlencode

from hosts.clients.listing import (
    COMPUTE,
    IMAGE,
    NOT_FOUND,
    PLACEMENT,
    CloudUnreachable,
    CloudWriter,
    Json,
    Refusal,
    listed,
)
from hosts.domain.lifecycle import ProbeVM, Service

#: Of the console, which may be long.
_LINES: Final = 50
_CUSTOM: Final = "CUSTOM_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """What is booted to see whether a host can.

    Attributes:
        name: Of the VM; its host name, which its console shows.
        flavor: Id or name, as is ``image``.
        network: Uuid, ``none`` or ``auto``.
    """

    name: str
    flavor: str
    image: str
    network: str


class ComputeHost:
    """A compute host in the cloud; refusals come as text, which is empty when all was taken.

    Every call may raise :class:`CloudUnreachable`.
    """

    def __init__(
        self, cloud: CloudWriter, name: str, *, provider_uuid: str, test: TrialPlan
    ) -> None:
        """Remember of which.

        Args:
            cloud: Who is asked, with the rights of an administrator.
            name: Of its compute service.
            provider_uuid: Its root resource provider.
            test: What is booted on it; VMs of this name, of the login's project, are ours.
        """
        self._cloud, self._name, self._provider, self._test = cloud, name, provider_uuid, test

    def service(self) -> Service | None:
        """Return its compute service, None where there is none."""
        found = self._service()
        if found is None:
            return None
        return Service(
            is_enabled=found.get("status") == "enabled",
            is_up=found.get("state") == "up",
            is_forced_down=bool(found.get("forced_down")),
            updated_at=_time(found.get("updated_at")),
        )

    def zones(self) -> Mapping[str, str]:
        """Return aggregates by name, with the zone that each gives."""
        return {
            str(one["name"]): str(one.get("availability_zone") or "") for one in self._aggregates()
        }

    def aggregates(self) -> tuple[str, ...]:
        """Return the names of those that it is in."""
        return tuple(
            str(one["name"]) for one in self._aggregates() if self._name in (one["hosts"] or ())
        )

    def vms(self) -> int:
        """Return how many VMs it has, up to a page."""
        query = urlencode({"all_tenants": "true", "host": self._name, "limit": 100})
        found, _ = listed(self._cloud, COMPUTE, f"/servers?{query}", "servers")
        return len(found)

    def test_vms(self) -> tuple[ProbeVM, ...]:
        """Return the test VMs that there are, with what their consoles show."""
        query = urlencode({"name": f"^{self._test.name}$"})
        found, _ = listed(self._cloud, COMPUTE, f"/servers/detail?{query}", "servers")
        return tuple(self._test_vm(one) for one in found if one.get("name") == self._test.name)

    def traits(self) -> tuple[str, ...]:
        """Return the traits of its resource provider."""
        return tuple(self._traits()["traits"])

    def has_provider(self) -> bool:
        """Return whether its resource provider is there."""
        return bool(self._provider) and self._get_provider() is not None

    def enable(self) -> str:
        """Let its service take VMs, and not be forced down."""
        return self._of_service("PUT", {"status": "enabled", "forced_down": False})

    def delete_service(self) -> str:
        """Delete its compute service, which Nova refuses while it has VMs."""
        return self._of_service("DELETE", None)

    def change_aggregate(self, name: str, *, joins: bool) -> str:
        """Add it to an aggregate, or remove it from there."""
        found = next((one for one in self._aggregates() if one["name"] == name), None)
        if found is None:
            return f"there is no aggregate {name}"
        action = "add_host" if joins else "remove_host"
        path = f"/os-aggregates/{quote(str(found['id']))}/action"
        return _said(self._cloud.change(COMPUTE, "POST", path, {action: {"host": self._name}}))

    def boot_test_vm(self) -> str:
        """Ask for a test VM on it, past the scheduler."""
        test = self._test
        service = self._service()
        flavor, image = self._flavor(test.flavor), self._image(test.image)
        if service is None or not flavor or not image:
            return f"there is no service of it, no flavor {test.flavor} or no image {test.image}"
        is_word = test.network in {"none", "auto"}
        body = {
            "name": test.name,
            "flavorRef": flavor,
            "imageRef": image,
            "availability_zone": f"{service['zone']}:{self._name}",
            "networks": test.network if is_word else [{"uuid": test.network}],
        }
        return _said(self._cloud.change(COMPUTE, "POST", "/servers", {"server": body}))

    def delete_vm(self, uuid: str) -> str:
        """Delete a test VM."""
        return _gone(self._cloud.change(COMPUTE, "DELETE", f"/servers/{quote(uuid)}", None))

    def add_traits(self, names: Sequence[str]) -> str:
        """Give its resource provider traits, beside those that it has."""
        for name in names:
            if name.startswith(_CUSTOM):
                path = f"/traits/{quote(name)}"
                if said := _said(self._cloud.change(PLACEMENT, "PUT", path, None)):
                    return said
        now = self._traits()
        body = {
            "resource_provider_generation": now["resource_provider_generation"],
            "traits": sorted({*now["traits"], *names}),
        }
        return _said(self._cloud.change(PLACEMENT, "PUT", f"{self._provider_path}/traits", body))

    def delete_provider(self) -> str:
        """Delete its resource providers, and what consumers hold of these alone.

        A consumer that holds something elsewhere lives: then nothing is deleted.
        """
        tree = self._tree()
        consumers: set[str] = set()
        for uuid in tree:
            held = self._cloud.get(PLACEMENT, f"/resource_providers/{quote(uuid)}/allocations")
            consumers |= set((held or {}).get("allocations", {}))
        for consumer in sorted(consumers):
            mine = self._cloud.get(PLACEMENT, f"/allocations/{quote(consumer)}") or {}
            if set(mine.get("allocations", {})) - set(tree):
                return f"consumer {consumer} holds something of this and of other hosts"
        for consumer in sorted(consumers):
            path = f"/allocations/{quote(consumer)}"
            if said := _gone(self._cloud.change(PLACEMENT, "DELETE", path, None)):
                return said
        for uuid in tree:
            path = f"/resource_providers/{quote(uuid)}"
            if said := _gone(self._cloud.change(PLACEMENT, "DELETE", path, None)):
                return said
        return ""

    @property
    def _provider_path(self) -> str:
        return f"/resource_providers/{quote(self._provider)}"

    def _service(self) -> Json:
        query = urlencode({"host": self._name, "binary": "nova-compute"})
        found, _ = listed(self._cloud, COMPUTE, f"/os-services?{query}", "services")
        return next((one for one in found if one.get("host") == self._name), None)

    def _of_service(self, method: str, body: Json) -> str:
        service = self._service()
        if service is None:
            return "" if method == "DELETE" else "Nova has no compute service of it"
        path = f"/os-services/{quote(str(service['id']))}"
        said = self._cloud.change(COMPUTE, method, path, body)
        return _gone(said) if method == "DELETE" else _said(said)

    def _aggregates(self) -> list[Json]:
        found, _ = listed(self._cloud, COMPUTE, "/os-aggregates", "aggregates")
        return found

    def _test_vm(self, server: Json) -> ProbeVM:
        uuid, status = str(server["id"]), str(server.get("status", "UNKNOWN"))
        since = _time(server.get("OS-SRV-USG:launched_at")) or _time(server.get("created"))
        if since is None:
            path = f"/servers/{uuid}"
            raise CloudUnreachable(
                f"{COMPUTE} {path}: no time at which it was made", service=COMPUTE, path=path
            )
        return ProbeVM(
            uuid=uuid,
            name=self._test.name,
            status=status,
            since=since,
            is_deleting=server.get("OS-EXT-STS:task_state") == "deleting",
            console=self._console(uuid) if status == "ACTIVE" else "",
            fault=str((server.get("fault") or {}).get("message", "")),
        )

    def _console(self, uuid: str) -> str:
        path = f"/servers/{quote(uuid)}/action"
        said = self._cloud.ask(COMPUTE, path, {"os-getConsoleOutput": {"length": _LINES}})
        return "" if isinstance(said, Refusal) else str(said.get("output", ""))

    def _flavor(self, wanted: str) -> str:
        by_id = self._cloud.get(COMPUTE, f"/flavors/{quote(wanted)}")
        if by_id is not None:
            return wanted
        found, _ = listed(self._cloud, COMPUTE, "/flavors?is_public=None", "flavors")
        return next((str(one["id"]) for one in found if one["name"] == wanted), "")

    def _image(self, wanted: str) -> str:
        by_id = self._cloud.get(IMAGE, f"/images/{quote(wanted)}")
        if by_id is not None:
            return wanted
        query = urlencode({"name": wanted, "status": "active", "sort": "created_at:desc"})
        found, _ = listed(self._cloud, IMAGE, f"/images?{query}", "images")
        return str(found[0]["id"]) if found else ""

    def _get_provider(self) -> Json:
        return self._cloud.get(PLACEMENT, self._provider_path)

    def _traits(self) -> Json:
        path = f"{self._provider_path}/traits"
        found = self._cloud.get(PLACEMENT, path) if self._provider else None
        if found is None:
            raise CloudUnreachable(
                f"{PLACEMENT} {path}: the host has no resource provider",
                service=PLACEMENT,
                path=path,
            )
        return found

    def _tree(self) -> list[str]:
        """Return the uuids of its resource providers, each before what is above it."""
        path = f"/resource_providers?in_tree={quote(self._provider)}"
        found, _ = listed(self._cloud, PLACEMENT, path, "resource_providers")
        above = {str(one["uuid"]): one.get("parent_provider_uuid") for one in found}

        def depth(uuid: str) -> int:
            parent = above.get(uuid)
            return 0 if parent is None else 1 + depth(parent)

        return sorted(above, key=depth, reverse=True)


def _said(refusal: Refusal | None) -> str:
    return "" if refusal is None else f"refused ({refusal.status}): {refusal.message}"


def _gone(refusal: Refusal | None) -> str:
    """Return what is said to a deletion; what is gone already is no trouble."""
    return "" if refusal is not None and refusal.status == NOT_FOUND else _said(refusal)


def _time(told: object) -> datetime | None:
    """Return a time of Nova, which is UTC and does not always say so."""
    try:
        found = datetime.fromisoformat(str(told))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
