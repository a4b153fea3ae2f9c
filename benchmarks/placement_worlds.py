"""The providers of ``bench placement``, written alike into our tables and the reference's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from django.db import connection

from benchmarks.bench_region import empty_database
from capacity.ledger.rooms import rebuild_host_capacity
from journal.actors import Actor
from placement.domain.capacity import InventoryAmounts
from placement.domain.transfer import ConsumerRecord, Contents, ProviderRecord
from placement.models import Origin, ResourceProvider
from placement.services.transfer import import_contents
from tests.factories import make_commitment, make_group, make_host, make_slot

SHARING = "MISC_SHARES_VIA_AGGREGATE"
FIRST_UUID = 1 << 100
PROJECT, USER = "bench-project", "bench-user"
HOSTS_PER_POOL = 49
CHILDREN_PER_HOST = 4
BUSY_SHARE = 3  # every third host has a VM
HOT_CAPACITY = 1_000_000
#: Claims that settle in the ledger, of a flavor of slots on every second host.
CLAIMS = "claims"
MOST_HOSTS = 1000
CLAIMED = {"VCPU": 1, "MEMORY_MB": 512}
HOST_GIB, HOST_VCPUS = 256, 1024
SLOT_GIB, SLOT_VCPUS = 64, 128
OWN_TABLES = (
    "placement_allocation_event",
    "placement_project_usage",
    "placement_allocation",
    "placement_consumer",
    "placement_inventory",
    "placement_provider_trait",
    "placement_provider_aggregate",
    "placement_aggregate",
    "placement_provider",
    "placement_change",
)
REFERENCE_TABLES = (
    "allocations",
    "consumers",
    "inventories",
    "resource_provider_traits",
    "resource_provider_aggregates",
    "placement_aggregates",
    "resource_providers",
    "projects",
    "users",
)
NUMBERED_TABLES = tuple(
    name for name in REFERENCE_TABLES if not name.startswith("resource_provider_")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Providers of one shape, and the candidates query that suits them.

    Attributes:
        shape: ``flat``, ``nested``, ``sharing`` or ``claims``: flat, and the providers are hosts of
            ours, with slots on every second one.
        contents: The providers, a third of the hosts in use.
        query: Query of ``/allocation_candidates`` at 1.36, without limit.
        hosts: Uuids of the roots that have VCPU.
    """

    shape: str
    contents: Contents
    query: str
    hosts: tuple[str, ...]

    @property
    def asked(self) -> dict[str, int]:
        """What a write takes of a host."""
        return CLAIMED if self.shape == CLAIMS else {"VCPU": 1}


def uuid_of(number: int) -> str:
    """Return the uuid that stands for a number."""
    return str(UUID(int=FIRST_UUID + number))


def make_world(shape: str, size: int) -> World:
    """Return about ``size`` providers of a shape."""
    makers = {"flat": _flat, "nested": _nested, "sharing": _sharing, CLAIMS: _flat}
    queries = {
        "flat": "resources=VCPU:2,MEMORY_MB:4096,DISK_GB:20",
        "nested": "resources=DISK_GB:20&resources_CPU=VCPU:2,MEMORY_MB:4096"
        "&resources_NET=SRIOV_NET_VF:1&group_policy=none",
        "sharing": "resources=VCPU:2,MEMORY_MB:4096,DISK_GB:20",
        CLAIMS: "resources=VCPU:2,MEMORY_MB:4096,DISK_GB:20",
    }
    providers = {record.uuid: record for record in makers[shape](size)}
    hosts = tuple(
        record.uuid for record in providers.values() if {"VCPU"} <= record.inventories.keys()
    )
    consumers = {
        record.uuid: record
        for record in (
            ConsumerRecord(
                uuid=uuid_of((1 << 40) + number),
                project=PROJECT,
                user=USER,
                allocations={host: {"VCPU": 4, "MEMORY_MB": 8192}},
            )
            for number, host in enumerate(hosts[::BUSY_SHARE])
        )
    }
    contents = Contents(providers=providers, consumers=consumers)
    return World(shape=shape, contents=contents, query=queries[shape], hosts=hosts)


def _amounts(**totals: int) -> dict[str, InventoryAmounts]:
    return {
        name: InventoryAmounts(total=total, allocation_ratio=16.0 if name == "VCPU" else 1.0)
        for name, total in totals.items()
    }


def _flat(size: int) -> Iterator[ProviderRecord]:
    inventories = _amounts(VCPU=64, MEMORY_MB=262144, DISK_GB=2000)
    for number in range(size):
        yield ProviderRecord(
            uuid=uuid_of(number),
            name=f"host-{number}",
            inventories=inventories,
            traits=frozenset({"HW_CPU_X86_AVX", "COMPUTE_NODE"}),
            aggregates=frozenset({uuid_of((1 << 50) + number % 3)}),
        )


def _nested(size: int) -> Iterator[ProviderRecord]:
    """Hosts with two NUMA cells and a network port below each: five providers a tree."""
    cell = _amounts(VCPU=32, MEMORY_MB=131072)
    for number in range(max(1, size // (CHILDREN_PER_HOST + 1))):
        root = uuid_of(number * 8)
        yield ProviderRecord(uuid=root, name=f"host-{number}", inventories=_amounts(DISK_GB=2000))
        for place in range(CHILDREN_PER_HOST // 2):
            below = uuid_of(number * 8 + 1 + place)
            yield ProviderRecord(
                uuid=below,
                name=f"host-{number}-cell-{place}",
                parent=root,
                inventories=cell,
                traits=frozenset({"HW_NUMA_ROOT"}),
            )
            yield ProviderRecord(
                uuid=uuid_of(number * 8 + 4 + place),
                name=f"host-{number}-port-{place}",
                parent=below,
                inventories=_amounts(SRIOV_NET_VF=8),
            )


def _sharing(size: int) -> Iterator[ProviderRecord]:
    """Hosts without disk, 49 to a shared pool."""
    for number in range(size):
        pool, place = divmod(number, HOSTS_PER_POOL + 1)
        aggregate = frozenset({uuid_of((1 << 50) + pool)})
        if place == HOSTS_PER_POOL or (number == size - 1 and place):
            yield ProviderRecord(
                uuid=uuid_of(number),
                name=f"pool-{pool}",
                inventories=_amounts(DISK_GB=1_000_000),
                traits=frozenset({SHARING}),
                aggregates=aggregate,
            )
        else:
            yield ProviderRecord(
                uuid=uuid_of(number),
                name=f"host-{number}",
                inventories=_amounts(VCPU=64, MEMORY_MB=262144),
                aggregates=aggregate,
            )


def with_hot_provider(world: World) -> tuple[World, str]:
    """Return the world with one more provider that has room for every write, and its uuid."""
    uuid = uuid_of(1 << 45)
    room = _amounts(VCPU=HOT_CAPACITY, MEMORY_MB=HOT_CAPACITY * CLAIMED["MEMORY_MB"])
    record = ProviderRecord(uuid=uuid, name="hot", inventories=room)
    providers = {**world.contents.providers, uuid: record}
    contents = Contents(providers=providers, consumers=world.contents.consumers)
    return (
        World(shape=world.shape, contents=contents, query=world.query, hosts=world.hosts),
        uuid,
    )


def fill_ours(world: World) -> None:
    """Replace all providers and consumers of our tables."""
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(OWN_TABLES)} RESTART IDENTITY CASCADE")
    import_contents(world.contents, actor=Actor(name="bench"), request_id="bench")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def fill_hosts(world: World) -> None:
    """Make the providers hosts of ours, every second with a slot of the project that writes."""
    empty_database()
    make_group("bench", flavors=[("claimed", CLAIMED["MEMORY_MB"], CLAIMED["VCPU"])])
    commitment = make_commitment(group="bench", project_id=PROJECT, amount_gib=SLOT_GIB)
    for number, record in enumerate(world.contents.providers.values()):
        is_hot = record.uuid not in world.hosts
        host = make_host(
            record.name,
            openstack_id=record.uuid,
            memory_gib=HOT_CAPACITY if is_hot else HOST_GIB,
            vcpus=HOT_CAPACITY if is_hot else HOST_VCPUS,
        )
        if not is_hot and number % 2:
            make_slot(commitment, host, index=number, memory_gib=SLOT_GIB, vcpus=SLOT_VCPUS)
    fill_ours(world)
    ResourceProvider.objects.update(origin=Origin.HOST)
    rebuild_host_capacity()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def fill_reference(conninfo: str, world: World) -> None:
    """Replace all providers and consumers of the reference's tables."""
    with psycopg.connect(conninfo) as link:
        link.execute(f"TRUNCATE {', '.join(REFERENCE_TABLES)} RESTART IDENTITY CASCADE".encode())
        _fill_reference_tables(link, world.contents)
        for table in REFERENCE_TABLES:
            link.execute(f"UPDATE {table} SET created_at = now()".encode())  # noqa: S608 - ours
        for table in NUMBERED_TABLES:  # the service goes on counting after our rows
            link.execute(
                f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), "  # noqa: S608 - ours
                f"(SELECT coalesce(max(id), 1) FROM {table}))".encode()
            )
    with psycopg.connect(conninfo, autocommit=True) as link:
        link.execute("ANALYZE")


def _fill_reference_tables(link: psycopg.Connection[Any], contents: Contents) -> None:
    classes = dict(link.execute("SELECT name, id FROM resource_classes").fetchall())
    traits = dict(link.execute("SELECT name, id FROM traits").fetchall())
    providers = list(contents.providers.values())
    ids = {record.uuid: number for number, record in enumerate(providers, 1)}
    roots: dict[str, int] = {}
    for record in providers:
        roots[record.uuid] = roots[record.parent] if record.parent else ids[record.uuid]
    _copy(
        link,
        "resource_providers (id, uuid, name, generation, root_provider_id, parent_provider_id)",
        (
            (ids[r.uuid], r.uuid, r.name, 0, roots[r.uuid], ids[r.parent] if r.parent else None)
            for r in providers
        ),
    )
    _copy(
        link,
        "inventories (resource_provider_id, resource_class_id, total, reserved, min_unit, max_unit,"
        " step_size, allocation_ratio)",
        (
            (
                ids[r.uuid], classes[name], f.total, f.reserved, f.min_unit, f.max_unit,
                f.step_size, f.allocation_ratio,
            )
            for r in providers
            for name, f in r.inventories.items()
        ),
    )  # fmt: skip
    _copy(
        link,
        "resource_provider_traits (resource_provider_id, trait_id)",
        ((ids[r.uuid], traits[name]) for r in providers for name in sorted(r.traits)),
    )
    groups = sorted({uuid for r in providers for uuid in r.aggregates})
    numbers = {uuid: number for number, uuid in enumerate(groups, 1)}
    _copy(link, "placement_aggregates (id, uuid)", ((numbers[uuid], uuid) for uuid in groups))
    _copy(
        link,
        "resource_provider_aggregates (resource_provider_id, aggregate_id)",
        ((ids[r.uuid], numbers[uuid]) for r in providers for uuid in sorted(r.aggregates)),
    )
    link.execute("INSERT INTO projects (id, external_id) VALUES (1, %s)", [PROJECT])
    link.execute("INSERT INTO users (id, external_id) VALUES (1, %s)", [USER])
    consumers = list(contents.consumers.values())
    _copy(
        link,
        "consumers (id, uuid, project_id, user_id, generation)",
        ((number, r.uuid, 1, 1, 1) for number, r in enumerate(consumers, 1)),
    )
    _copy(
        link,
        "allocations (resource_provider_id, consumer_id, resource_class_id, used)",
        (
            (ids[provider], r.uuid, classes[name], used)
            for r in consumers
            for provider, held in r.allocations.items()
            for name, used in held.items()
        ),
    )


def _copy(link: psycopg.Connection[Any], target: str, rows: Iterable[Sequence[object]]) -> None:
    with link.cursor() as cursor, cursor.copy(f"COPY {target} FROM STDIN".encode()) as copy:
        for row in rows:
            copy.write_row(row)
