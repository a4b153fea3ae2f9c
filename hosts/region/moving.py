"""Migrations in progress of a live cloud: who is on the way from where to where.

They live for minutes and say what only the cloud knows at the moment: no region file has them. One
that is listed no more and is over keeps its row until a reading of the VM list that began later
says where the VM is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from hosts.domain.capacity import MIB
from hosts.domain.moving import RESIZE, is_in_progress
from hosts.models import Host, Instance, ServerMigration
from hosts.region.flavors import MAX_MEMORY_MIB
from hosts.region.node import ID_MAX, INT32_MAX, Node
from hosts.region.registry import Phase, RegionSection, Step, registry
from hosts.region.run import ImportRun
from hosts.region.writing import write_part
from journal.clock import database_now

MIGRATIONS: Final = "compute.migrations"
#: Beside what Nova says of a migration: what the VM holds on its source and on its target.
SOURCE_HOLDS: Final = "source_resources"
TARGET_HOLDS: Final = "target_resources"
COLUMNS: Final = (
    "vm_uuid",
    "migration_type",
    "status",
    "source_name",
    "target_name",
    "source_memory_bytes",
    "source_vcpus",
    "target_memory_bytes",
    "target_vcpus",
    "over_at",
)


class Size(NamedTuple):
    """What a VM takes on a host; nothing where nobody knows."""

    memory_bytes: int | None = None
    vcpus: int | None = None


UNKNOWN: Final = Size()


class Place(NamedTuple):
    """Where a VM is listed, by all names of that host, and its size."""

    names: frozenset[str]
    size: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMigration:
    """A migration as it is listed.

    Attributes:
        source_name: Hypervisor, else compute service; empty while Nova has not chosen one.
        target_name: Likewise.
        source_size: What is claimed on the source, where that was read.
        target_size: Likewise on the target.
    """

    uuid: str
    vm_uuid: str
    migration_type: str
    status: str
    source_name: str
    target_name: str
    source_size: Size
    target_size: Size


def register() -> None:
    """Register the section and steps of this module."""
    registry.add(
        RegionSection(path=MIGRATIONS, reader=_read, dumper=None),
        Step(
            Phase.WRITE,
            56,
            "migrations of VMs",
            _write,
            after=frozenset({MIGRATIONS}),
            is_divided=True,
        ),
        Step(
            Phase.PRUNE,
            56,
            "migrations of VMs",
            _prune,
            after=frozenset({MIGRATIONS}),
            is_divided=True,
        ),
    )


def _read(run: ImportRun) -> Callable[[Node], None]:
    listed: dict[str, ListedMigration] = {}
    run.stash[MIGRATIONS] = listed

    def read(node: Node) -> None:
        one = ListedMigration(
            uuid=node.text("uuid", max_length=ID_MAX),
            vm_uuid=node.text("instance_uuid", max_length=ID_MAX),
            migration_type=node.text("migration_type", default="", max_length=32),
            status=node.text("status", max_length=ID_MAX),
            source_name=_host_name(node, "source"),
            target_name=_host_name(node, "dest"),
            source_size=_size(node, SOURCE_HOLDS),
            target_size=_size(node, TARGET_HOLDS),
        )
        # Listed twice, it went on meanwhile: what was read later is newer.
        listed.pop(one.uuid, None)
        if is_in_progress(one.status):
            listed[one.uuid] = one

    return read


def _host_name(node: Node, side: str) -> str:
    return node.text(f"{side}_node", default="", max_length=255) or node.text(
        f"{side}_compute", default="", max_length=255
    )


def _size(node: Node, key: str) -> Size:
    if not node.has(key):
        return UNKNOWN
    held = node.child(key)
    return Size(
        held.integer("MEMORY_MB", high=MAX_MEMORY_MIB, default=0) * MIB,
        held.integer("VCPU", high=INT32_MAX, default=0)
        + held.integer("PCPU", high=INT32_MAX, default=0),
    )


def _write(run: ImportRun) -> None:
    listed: Mapping[str, ListedMigration] = run.stash[MIGRATIONS]
    counts = run.report.of(MIGRATIONS)
    created, updated = write_part(run, partial(_write_rows, listed))
    counts.created += created
    counts.updated += updated
    counts.unchanged += len(listed) - created - updated


def _write_rows(listed: Mapping[str, ListedMigration]) -> tuple[int, int]:
    """Write what is new or differs; return how many of each."""
    stored = ServerMigration.objects.select_for_update().in_bulk(list(listed), field_name="uuid")
    places = _places({one.vm_uuid for one in listed.values()})
    fresh, changed = [], []
    for uuid in sorted(listed):
        one, row = listed[uuid], stored.get(uuid)
        columns = _columns(one, row, places.get(one.vm_uuid))
        if row is None:
            fresh.append(ServerMigration(uuid=uuid, **columns))
        elif columns != {name: getattr(row, name) for name in COLUMNS}:
            for name, fact in columns.items():
                setattr(row, name, fact)
            changed.append(row)
    ServerMigration.objects.bulk_create(fresh)
    ServerMigration.objects.bulk_update(changed, COLUMNS)
    return len(fresh), len(changed)


def _places(vm_uuids: set[str]) -> dict[str, Place]:
    rows = Instance.objects.filter(openstack_id__in=vm_uuids).select_related("host")
    return {
        row.openstack_id: Place(
            frozenset({row.host.name, row.host.service_host} if row.host else {row.host_name}),
            Size(row.memory_bytes, row.vcpus),
        )
        for row in rows
    }


def _columns(
    one: ListedMigration, row: ServerMigration | None, place: Place | None
) -> dict[str, Any]:  # Any: several types
    """Return what a row has to say; sizes are what is claimed, else what was seen, else before."""
    source, target = _sizes(one, row, place)
    return {
        "vm_uuid": one.vm_uuid,
        "migration_type": one.migration_type,
        "status": one.status,
        "source_name": one.source_name,
        "target_name": one.target_name,
        "source_memory_bytes": source.memory_bytes,
        "source_vcpus": source.vcpus,
        "target_memory_bytes": target.memory_bytes,
        "target_vcpus": target.vcpus,
        "over_at": None,
    }


def _sizes(
    one: ListedMigration, row: ServerMigration | None, place: Place | None
) -> tuple[Size, Size]:
    if UNKNOWN not in (one.source_size, one.target_size):
        return one.source_size, one.target_size
    source, target = UNKNOWN, UNKNOWN
    if row is not None:
        source = Size(row.source_memory_bytes, row.source_vcpus)
        target = Size(row.target_memory_bytes, row.target_vcpus)
    if place is None:
        return source, target
    if one.migration_type != RESIZE:
        return place.size, place.size
    if one.source_name != one.target_name:
        if one.source_name in place.names:
            source = place.size
        elif one.target_name in place.names:
            target = place.size
    return source, target


def _prune(run: ImportRun) -> None:
    """Note which migrations are over: of VMs that are gone, and those that the cloud says are."""
    if not run.prunes(MIGRATIONS):
        return
    rows = ServerMigration.objects.filter(over_at=None).exclude(
        uuid__in=list(run.stash[MIGRATIONS])
    )
    absent = dict(rows.order_by("uuid").values_list("uuid", "vm_uuid"))
    vms = Instance.objects.filter(openstack_id__in=set(absent.values()))
    there = set(vms.values_list("openstack_id", flat=True))
    asked = [uuid for uuid, vm_uuid in absent.items() if vm_uuid in there]
    if over := sorted({*(absent.keys() - asked), *run.gone(MIGRATIONS, asked)}):
        run.report.of(MIGRATIONS).removed += write_part(run, partial(_end, over))


def _end(uuids: list[str]) -> int:
    ending = ServerMigration.objects.filter(uuid__in=uuids, over_at=None)
    return ending.update(over_at=database_now())


def host_ids_by_name(names: set[str]) -> dict[str, int]:
    """Return the keys of hosts by name of the hypervisor, or of a service that has just one."""
    by_service: dict[str, set[int]] = {}
    for host_id, service in Host.objects.filter(service_host__in=names).values_list(
        "pk", "service_host"
    ):
        by_service.setdefault(service, set()).add(host_id)
    own = Host.objects.filter(name__in=names).values_list("name", "pk")
    return {name: ids.pop() for name, ids in by_service.items() if len(ids) == 1} | dict(own)
