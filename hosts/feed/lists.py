"""The lists of a cloud that dumps and the feed read, each of them once here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import structlog
from django.conf import settings

from hosts.clients.listing import (
    COMPUTE,
    IDENTITY,
    IMAGE,
    LIMES,
    PLACEMENT,
    CloudReader,
    CloudUnreachable,
    listed,
    pages,
    pages_by_offset,
)
from hosts.domain.moving import IN_PROGRESS, RESIZE, is_in_progress
from hosts.region.flavors import FLAVORS, IMAGES, SERVER_GROUPS
from hosts.region.identity import DOMAINS, PROJECTS
from hosts.region.inventory import AGGREGATES, HYPERVISORS, PROVIDERS, SERVICES
from hosts.region.moving import MIGRATIONS, SOURCE_HOLDS, TARGET_HOLDS
from hosts.region.servers import SERVERS, VM_STATE

log = structlog.get_logger(__name__)

WORKERS: Final = 8
#: What hosts are made of; usages and allocations are for people and for what-if.
PARTS_OF_HOSTS: Final = ("inventories", "traits", "aggregates")
PARTS_OF_PROVIDERS: Final = (*PARTS_OF_HOSTS, "usages", "allocations")
COMMITMENTS: Final = "limes.commitments"
OWN_PLACEMENT: Final = "placement"
"""The source of allocations where the cloud's Placement is this one: it needs no telling."""

Json = Any  # bodies keep the APIs' own shapes
Reader = Callable[[CloudReader], Iterator[Json]]


class PassKind(StrEnum):
    """What is read in one pass, in the order in which a first day needs it."""

    IDENTITY = "identity"
    FLAVORS = "flavors"
    IMAGES = "images"
    HOSTS = "hosts"
    SERVERS = "servers"
    MIGRATIONS = "migrations"
    SERVER_GROUPS = "server_groups"
    CHANGES = "changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudList:
    """One list of a cloud.

    Attributes:
        section: Where its elements stand in a region file.
        kind: The pass that reads it; None for what only dumps hold.
        read: Yields its elements, each once, all pages.
        own: Path of one element, which answers 404 when there is none; empty where the list is one
            answer, which is whole or none.
        is_over: Asks whether an element that is not listed is over, where it has no path.
    """

    section: str
    kind: PassKind | None
    service: str
    read: Reader
    own: str = ""
    is_over: Callable[[CloudReader, str], bool] | None = None

    def path_of(self, element_id: str) -> str:
        """Return the path of one element."""
        return self.own.format(quote(element_id, safe=""))


def in_parallel(read: Callable[[Json], Json], elements: Iterable[Json]) -> Iterator[Json]:
    """Yield what is read for each element, in their order."""
    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        yield from pool.map(read, elements)


def bare_providers(cloud: CloudReader) -> list[Json]:
    """Return resource providers as their list has them.

    Raises:
        CloudUnreachable: It is not there, or one has no uuid to ask for more of it.
    """
    return _providers_at(cloud, "/resource_providers")


def provider_by_uuid(cloud: CloudReader, uuid: str) -> list[Json]:
    """Return one resource provider, as whoever may list them may; empty if there is none."""
    return _providers_at(cloud, f"/resource_providers?uuid={quote(uuid, safe='')}")


def _providers_at(cloud: CloudReader, path: str) -> list[Json]:
    found, _ = listed(cloud, PLACEMENT, path, "resource_providers")
    if not all(isinstance(provider.get("uuid"), str) for provider in found):
        raise CloudUnreachable(
            f"{PLACEMENT} {path}: a provider has no uuid", service=PLACEMENT, path=path
        )
    return found


def with_parts(
    cloud: CloudReader, bare: Iterable[Json], parts: Iterable[str] = PARTS_OF_HOSTS
) -> Iterator[Json]:
    """Yield resource providers with some of their sub-resources."""

    def complete(provider: Json) -> Json:
        root = f"/resource_providers/{provider['uuid']}"
        bodies = {part: cloud.get(PLACEMENT, f"{root}/{part}") for part in parts}
        return {**provider, **{part: body for part, body in bodies.items() if body is not None}}

    return in_parallel(complete, bare)


def _providers(cloud: CloudReader) -> Iterator[Json]:
    return with_parts(cloud, bare_providers(cloud))


def changed_servers(cloud: CloudReader, since: str) -> Iterator[Json]:
    """Yield the servers that changed since a time, also those that were deleted."""
    path = f"/servers/detail?all_tenants=1&changes-since={quote(since)}"
    return pages(cloud, COMPUTE, path, "servers")


def _identity(cloud: CloudReader, kind: str) -> Iterator[Json]:
    path = f"/{kind}"
    asked: set[str] = set()
    while path:
        if path in asked:
            raise CloudUnreachable(
                f"{IDENTITY} {path}: this page is said to follow itself",
                service=IDENTITY,
                path=path,
            )
        asked.add(path)
        found, body = listed(cloud, IDENTITY, path, kind)
        yield from found
        path = (body.get("links") or {}).get("next") or ""
    if body.get("truncated"):
        raise CloudUnreachable(
            f"{IDENTITY} /{kind}: Keystone cut the list short (its setting list_limit)",
            service=IDENTITY,
            path=f"/{kind}",
        )


def _whole(service: str, path: str, key: str) -> Reader:
    return lambda cloud: iter(listed(cloud, service, path, key)[0])


def _paged(service: str, path: str, key: str) -> Reader:
    return lambda cloud: pages(cloud, service, path, key)


def _server_groups(cloud: CloudReader) -> Iterator[Json]:
    path = "/os-server-groups?all_projects=True"
    return pages_by_offset(cloud, COMPUTE, path, "server_groups")


def _migrations(cloud: CloudReader) -> Iterator[Json]:
    """Yield migrations in progress, state after state: one that goes on meanwhile comes later.

    A list of all of them would hold whatever moved in the last years.
    """
    for status in IN_PROGRESS:
        path = f"/os-migrations?status={quote(status)}"
        for found in pages(cloud, COMPUTE, path, "migrations", marker="uuid"):
            if (
                found.get("migration_type") == RESIZE
                and settings.HEADROOM.allocation_source != OWN_PLACEMENT
            ):
                yield {**found, **_claims(cloud, found)}
            else:
                yield found


def _claims(cloud: CloudReader, migration: Json) -> Json:
    """Return what a VM that is resized holds on both hosts; nothing where nobody may know.

    Placement alone tells both sizes: the old one is the migration's, the new one the VM's.
    """
    sizes = {}
    for key, consumer in ((SOURCE_HOLDS, "uuid"), (TARGET_HOLDS, "instance_uuid")):
        try:
            body = cloud.get(PLACEMENT, f"/allocations/{quote(str(migration.get(consumer)))}")
            held = [one["resources"] for one in body["allocations"].values()]
        except (CloudUnreachable, LookupError, TypeError, AttributeError) as error:
            log.info(
                "feed_claims_unknown", vm_uuid=migration.get("instance_uuid"), error=str(error)
            )
            return {}
        if not held:
            return {}
        sizes[key] = {
            name: sum(one.get(name, 0) for one in held) for name in ("MEMORY_MB", "VCPU", "PCPU")
        }
    return sizes


def own_id_of_migration(uuid: object, vm_uuid: object) -> str:
    """Return by what :func:`migration_is_over` finds a migration."""
    return f"{vm_uuid}/{uuid}"


def migration_is_over(cloud: CloudReader, own_id: str) -> bool:
    """Return whether Nova says that a migration is over, or does not have it while it has the VM.

    Of cells that are down Nova lists no migration and of each VM only a name; a VM that is not
    there may only be hidden from us.
    """
    vm_uuid, _, uuid = own_id.partition("/")
    path = f"/os-migrations?instance_uuid={quote(vm_uuid, safe='')}"
    for found in pages(cloud, COMPUTE, path, "migrations", marker="uuid"):
        if found.get("uuid") == uuid:
            return not is_in_progress(str(found.get("status")))
    body = cloud.get(COMPUTE, f"/servers/{quote(vm_uuid, safe='')}")
    return body is not None and VM_STATE in body["server"]


def _commitments(cloud: CloudReader) -> Iterator[Json]:
    if not cloud.has(LIMES):
        return

    def read(project: Json) -> list[Json]:
        path = f"/domains/{project['domain_id']}/projects/{project['id']}/commitments"
        owner = {"project_id": project["id"], "domain_id": project["domain_id"]}
        # 404: Limes has not discovered the project yet, so it has no commitments.
        return [
            {**found, **owner} for found in (cloud.get(LIMES, path) or {}).get("commitments", [])
        ]

    for found in in_parallel(read, _identity(cloud, "projects")):
        yield from found


LISTS: Final = tuple(
    CloudList(section=section, kind=kind, service=service, read=read, own=own)
    for section, kind, service, read, own in (
        (
            DOMAINS,
            PassKind.IDENTITY,
            IDENTITY,
            partial(_identity, kind="domains"),
            "/domains/{}",
        ),
        (
            PROJECTS,
            PassKind.IDENTITY,
            IDENTITY,
            partial(_identity, kind="projects"),
            "/projects/{}",
        ),
        (
            FLAVORS,
            PassKind.FLAVORS,
            COMPUTE,
            _paged(COMPUTE, "/flavors/detail?is_public=None", "flavors"),
            "/flavors/{}",
        ),
        (
            HYPERVISORS,
            PassKind.HOSTS,
            COMPUTE,
            _paged(COMPUTE, "/os-hypervisors/detail", "hypervisors"),
            "/os-hypervisors/{}",
        ),
        (SERVICES, PassKind.HOSTS, COMPUTE, _whole(COMPUTE, "/os-services", "services"), ""),
        (AGGREGATES, PassKind.HOSTS, COMPUTE, _whole(COMPUTE, "/os-aggregates", "aggregates"), ""),
        (
            SERVERS,
            PassKind.SERVERS,
            COMPUTE,
            _paged(COMPUTE, "/servers/detail?all_tenants=1", "servers"),
            "/servers/{}",
        ),
        (SERVER_GROUPS, PassKind.SERVER_GROUPS, COMPUTE, _server_groups, "/os-server-groups/{}"),
        (IMAGES, PassKind.IMAGES, IMAGE, _paged(IMAGE, "/images", "images"), "/images/{}"),
        (PROVIDERS, PassKind.HOSTS, PLACEMENT, _providers, ""),
        (COMMITMENTS, None, LIMES, _commitments, ""),
    )
)
"""In the order of region files."""

MIGRATION_LIST: Final = CloudList(
    section=MIGRATIONS,
    kind=PassKind.MIGRATIONS,
    service=COMPUTE,
    read=_migrations,
    is_over=migration_is_over,
)
"""Of live clouds alone: no region file tells who is on the way."""
LIVE_LISTS: Final = (*LISTS, MIGRATION_LIST)


def lists_of(kind: PassKind) -> tuple[CloudList, ...]:
    """Return the lists that a full pass of a kind reads."""
    return tuple(each for each in LIVE_LISTS if each.kind is kind)
