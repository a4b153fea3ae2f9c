"""Writing and dumping hosts: zone, capacity, traits, restrictions (spec region-file, rules)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from django.db.models import Q

from hosts.domain.capacity import (
    DISK_GB,
    MEMORY_MB,
    MIB,
    VCPU,
    HostInventory,
    HostResource,
    allowed_projects,
    resources_of,
    shown_ratio,
)
from hosts.domain.overcommit import decided_ratios
from hosts.models import Aggregate, Host, HostState, HostStatus
from hosts.region.described import is_taken_from_objects, keep_described
from hosts.region.inventory import (
    AGGREGATES,
    COMPUTE_BINARY,
    HYPERVISORS,
    MAX_AMOUNT,
    PROVIDERS,
    SERVICES,
    Hypervisor,
    Provider,
    ProviderTree,
    read_hypervisors,
    read_providers,
    read_services,
)
from hosts.region.merging import Merge, merge
from hosts.region.node import ID_MAX, Json, Node
from hosts.region.prune import is_list_believed, prune_rows
from hosts.region.registry import DumpOptions, Phase, RegionSection, Step, registry
from hosts.region.run import ImportRun
from hosts.region.staging import StagingTable, as_json
from hosts.region.tables import TableSection
from journal.statements import execute, fetch_rows

HOST_COLUMNS: Final = (
    "name",
    "openstack_id",
    "service_host",
    "service_id",
    "zone",
    "hypervisor_type",
    "cpu_arch",
    "state",
    "status",
    "disabled_reason",
    "total_vcpus",
    "total_memory_bytes",
    "total_disk_gib",
    "reserved_vcpus",
    "reserved_memory_bytes",
    "reserved_disk_gib",
    "vcpus_ratio",
    "memory_ratio",
    "disk_ratio",
    "effective_vcpus",
    "effective_memory_bytes",
    "effective_disk_gib",
    "traits",
    "aggregate_uuids",
    "allowed_projects",
    "provider_uuid",
    "provider_inventories",
    "provider_traits",
    "nested_providers",
)
#: What operators order, and rules say, of hosts without an object of their own.
DECIDED_COLUMNS: Final = (
    "allowed_projects",
    "vcpus_ratio",
    "memory_ratio",
    "effective_vcpus",
    "effective_memory_bytes",
)
LOCK_HOSTS: Final = """
SELECT FROM hosts_host WHERE name = ANY(%(names)s) ORDER BY name FOR NO KEY UPDATE
"""
STAGE_AGAIN: Final = f"""
UPDATE stage_hosts_host SET {", ".join(f"{name} = %({name})s" for name in DECIDED_COLUMNS)}
 WHERE name = %(name)s
"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class _Decided:
    """What stands whatever the lists say of a host.

    Attributes:
        projects: Whom it is for; None leaves that to the lists.
    """

    ratios: Mapping[str, Decimal] = field(default_factory=dict)
    projects: list[str] | None = None


UNDECIDED: Final = _Decided()


def _aggregate_row(node: Node) -> tuple[object, ...]:
    metadata = node.text_map("metadata", required=True)
    node.child("metadata").text("availability_zone", default="")
    return (
        node.text("uuid", max_length=ID_MAX),
        node.integer("id") if node.has("id") else None,
        node.text("name"),
        as_json(metadata),
        node.texts("hosts"),
    )


def _aggregate_element(aggregate: Aggregate) -> Json:
    number = aggregate.nova_number
    return {
        **({} if number is None else {"id": number}),
        "uuid": aggregate.uuid,
        "name": aggregate.name,
        "hosts": aggregate.host_names,
        "metadata": aggregate.metadata,
    }


AGGREGATE_TABLE: Final = TableSection(
    path=AGGREGATES,
    order=40,
    model=Aggregate,
    columns=("uuid", "nova_number", "name", "metadata", "host_names"),
    unique={"uuid": "aggregate"},
    row=_aggregate_row,
    element=_aggregate_element,
)


class _Membership:
    """Which aggregates a host is in: by service host first, then by hypervisor name."""

    def __init__(self, hypervisors: list[Hypervisor], aggregates: Iterable[Aggregate]) -> None:
        service_hosts = {hypervisor.service_host for hypervisor in hypervisors}
        names = {hypervisor.name for hypervisor in hypervisors}
        self.by_service: dict[str, list[Aggregate]] = defaultdict(list)
        self.by_name: dict[str, list[Aggregate]] = defaultdict(list)
        self.unmatched: list[tuple[str, str]] = []
        for aggregate in aggregates:
            for host_name in aggregate.host_names:
                if host_name in service_hosts:
                    self.by_service[host_name].append(aggregate)
                elif host_name in names:
                    self.by_name[host_name].append(aggregate)
                else:
                    self.unmatched.append((aggregate.name, host_name))

    def of(self, hypervisor: Hypervisor) -> list[Aggregate]:
        """Return the aggregates of a hypervisor, by name."""
        found = [
            *self.by_service.get(hypervisor.service_host, ()),
            *self.by_name.get(hypervisor.name, ()),
        ]
        return sorted(found, key=lambda aggregate: (aggregate.name, aggregate.uuid))


def _staying_aggregates(run: ImportRun) -> Iterator[Aggregate]:
    """Yield aggregates by name, without those that are removed after hosts were written."""
    gone: set[str] = set()
    if run.prunes(AGGREGATES) and is_list_believed(run, section=AGGREGATES, model=Aggregate):
        listed = {uuid for (uuid,) in fetch_rows("SELECT uuid FROM stage_hosts_aggregate")}
        stored = Aggregate.objects.order_by("uuid").values_list("uuid", flat=True)
        gone = set(run.gone(AGGREGATES, [uuid for uuid in stored if uuid not in listed]))
    for aggregate in Aggregate.objects.order_by("name", "uuid"):
        if aggregate.uuid not in gone:
            yield aggregate


def _write_hosts(run: ImportRun) -> None:
    hypervisors: list[Hypervisor] = run.stash[HYPERVISORS]
    # Staged here: a host's row needs what four sections said.
    stage = StagingTable(run, table="hosts_host", columns=HOST_COLUMNS)
    decided = _decided()
    tree: ProviderTree = run.stash[PROVIDERS]
    membership = _Membership(hypervisors, _staying_aggregates(run))
    used_roots = set()

    def row_of(hypervisor: Hypervisor, decided: _Decided) -> tuple[object, ...]:
        root = tree.root_of(hypervisor)
        nested, aggregates = tree.nested_in(root), membership.of(hypervisor)
        return _host_row(run, hypervisor, root, nested, aggregates, decided=decided)

    def keep_decided(names: list[str]) -> None:
        """Stage hosts again of which something was decided since; nobody decides it now."""
        fetch_rows(LOCK_HOSTS, {"names": names})
        now = _decided(names)
        others = {
            name for name in names if now.get(name, UNDECIDED) != decided.get(name, UNDECIDED)
        }
        for hypervisor in hypervisors if others else ():
            if hypervisor.name in others:
                row = row_of(hypervisor, now.get(hypervisor.name, UNDECIDED))
                execute(STAGE_AGAIN, dict(zip(HOST_COLUMNS, row, strict=True)))

    for hypervisor in hypervisors:
        root = tree.root_of(hypervisor)
        if root is not None:
            used_roots.add(root.uuid)
        stage.add(row_of(hypervisor, decided.get(hypervisor.name, UNDECIDED)))
    stage.finish()
    keep_described(run)
    merge(
        run,
        Merge(
            table="hosts_host",
            key="name",
            columns=HOST_COLUMNS,
            on_insert={"maintenance": "''", "generation": "1"},
            has_generation=True,
            host="id",
            zone="zone",
            writing=keep_decided,
        ),
        section=HYPERVISORS,
    )
    for aggregate_name, host_name in membership.unmatched:
        run.report.keep(
            AGGREGATES, aggregate_name, "unknown_host", f"lists {host_name}, which is no hypervisor"
        )
    for provider in sorted(tree.by_uuid.values(), key=lambda each: each.name):
        if provider.root_uuid not in used_roots:
            run.report.skip(
                PROVIDERS, provider.name, "unknown_host", f"{provider.uuid} is no hypervisor's"
            )


def _host_row(
    run: ImportRun,
    hypervisor: Hypervisor,
    root: Provider | None,
    nested: list[Provider],
    aggregates: list[Aggregate],
    *,
    decided: _Decided,
) -> tuple[object, ...]:
    traits = {trait for provider in ([root] if root else []) + nested for trait in provider.traits}
    vcpus, memory, disk = _resources(run, hypervisor, root, decided.ratios)
    return (
        hypervisor.name,
        hypervisor.openstack_id,
        hypervisor.service_host,
        hypervisor.service_id,
        _zone(run, hypervisor, aggregates),
        hypervisor.hypervisor_type,
        hypervisor.cpu_arch,
        _known(hypervisor.state, HostState.values, HostState.UNKNOWN),
        _known(hypervisor.status, HostStatus.values, HostStatus.DISABLED),
        hypervisor.disabled_reason,
        *(resource.total for resource in (vcpus, memory, disk)),
        *(resource.reserved for resource in (vcpus, memory, disk)),
        *(shown_ratio(resource.ratio) for resource in (vcpus, memory, disk)),
        *(resource.effective for resource in (vcpus, memory, disk)),
        sorted(traits),
        sorted(
            {aggregate.uuid for aggregate in aggregates} | set(root.aggregate_uuids if root else ())
        ),
        list(allowed_projects(aggregate.metadata for aggregate in aggregates))
        if decided.projects is None
        else decided.projects,
        root.uuid if root else "",
        as_json(root.stored_inventories if root else {}),
        list(root.traits) if root else [],
        as_json([_stored_child(child) for child in nested]),
    )


def _zone(run: ImportRun, hypervisor: Hypervisor, aggregates: list[Aggregate]) -> str:
    zones: Mapping[str, str] = run.stash[SERVICES]
    named = {
        aggregate.metadata["availability_zone"]: None
        for aggregate in aggregates
        if aggregate.metadata.get("availability_zone")
    }
    if len(named) > 1:
        listed = ", ".join(named)
        run.report.keep(HYPERVISORS, hypervisor.name, "several_zones", f"{listed}; first taken")
    zone = next(iter(named), "") or zones.get(hypervisor.service_host, "")
    if not zone:
        run.report.keep(HYPERVISORS, hypervisor.name, "no_zone", "no aggregate or service says it")
    return zone[:255]


def _decided(names: Collection[str] | None = None) -> dict[str, _Decided]:
    """Return what is decided by host, of some or of all; objects of hosts say it themselves."""
    rows = Host.objects.filter(
        Q(ordered_overcommit__isnull=False)
        | Q(ruled_overcommit__isnull=False)
        | Q(ordered_projects__isnull=False),
        is_self_described=False,
    )
    if names is not None:
        rows = rows.filter(name__in=names)
    stored = rows.values_list("name", "ruled_overcommit", "ordered_overcommit", "ordered_projects")
    return {
        name: _Decided(decided_ratios(ruled, ordered), projects)
        for name, ruled, ordered, projects in stored
    }


def _resources(
    run: ImportRun, hypervisor: Hypervisor, root: Provider | None, ordered: Mapping[str, Decimal]
) -> tuple[HostResource, HostResource, HostResource]:
    if root is not None and root.inventories:
        return resources_of(root.inventories, ordered)
    own = {
        VCPU: hypervisor.vcpus,
        MEMORY_MB: hypervisor.memory_mib,
        DISK_GB: hypervisor.local_gib,
    }
    found = {key: HostInventory(total=amount) for key, amount in own.items() if amount is not None}
    if VCPU not in found or MEMORY_MB not in found:
        run.report.keep(
            HYPERVISORS,
            hypervisor.name,
            "no_capacity",
            "neither its resource provider nor the hypervisor says what it has",
        )
    return resources_of(found, ordered)


def _known(text: str, known: list[str], otherwise: str) -> str:
    return text.lower() if text.lower() in known else otherwise


def _stored_child(child: Provider) -> Json:
    return {
        "uuid": child.uuid,
        "name": child.name,
        "parent_provider_uuid": child.parent_uuid or None,
        "root_provider_uuid": child.root_uuid,
        "inventories": child.stored_inventories,
        "traits": list(child.traits),
        "aggregates": list(child.aggregate_uuids),
    }


def _prune_hosts(run: ImportRun) -> None:
    if run.prunes(HYPERVISORS):
        prune_rows(
            run,
            section=HYPERVISORS,
            model=Host,
            key="name",
            spared=Q(is_self_described=True) if is_taken_from_objects() else None,
            zone_field="zone",
        )


def _dump_hypervisors(_: DumpOptions) -> Iterator[Json]:
    for host in Host.objects.order_by("name").iterator():
        item: dict[str, Json] = {
            "id": host.openstack_id,
            "hypervisor_hostname": host.name,
            "hypervisor_type": host.hypervisor_type,
            "state": host.state,
            "status": host.status,
            "service": {
                "host": host.service_host,
                "id": host.service_id,
                "disabled_reason": host.disabled_reason or None,
            },
        }
        if host.cpu_arch:
            item["cpu_info"] = {"arch": host.cpu_arch}
        if not host.provider_inventories and (host.total_vcpus or host.total_memory_bytes):
            item["vcpus"] = min(host.total_vcpus, MAX_AMOUNT)
            item["memory_mb"] = host.total_memory_bytes // MIB
            item["local_gb"] = min(host.total_disk_gib, MAX_AMOUNT)
        yield item


def _dump_services(_: DumpOptions) -> Iterator[Json]:
    seen = set()
    for host in Host.objects.exclude(zone="").order_by("service_host", "name").iterator():
        if host.service_host not in seen:
            seen.add(host.service_host)
            yield {
                "binary": COMPUTE_BINARY,
                "host": host.service_host,
                "zone": host.zone,
                "state": host.state,
                "status": host.status,
            }


def _dump_providers(_: DumpOptions) -> Iterator[Json]:
    for host in Host.objects.exclude(provider_uuid="").order_by("name").iterator():
        yield {
            "uuid": host.provider_uuid,
            "name": host.name,
            "parent_provider_uuid": None,
            "root_provider_uuid": host.provider_uuid,
            "inventories": {"inventories": host.provider_inventories},
            "traits": {"traits": host.provider_traits},
            "aggregates": {"aggregates": host.aggregate_uuids},
        }
        for child in host.nested_providers:
            yield {
                **child,
                "inventories": {"inventories": child["inventories"]},
                "traits": {"traits": child["traits"]},
                "aggregates": {"aggregates": child["aggregates"]},
            }


def register() -> None:
    """Register the sections and steps of this module."""
    registry.add(
        *AGGREGATE_TABLE.parts(),
        RegionSection(path=HYPERVISORS, reader=read_hypervisors, dumper=_dump_hypervisors),
        RegionSection(path=SERVICES, reader=read_services, dumper=_dump_services),
        RegionSection(path=PROVIDERS, reader=read_providers, dumper=_dump_providers),
        Step(
            Phase.WRITE, 45, "hosts", _write_hosts, after=frozenset({HYPERVISORS}), is_divided=True
        ),
        Step(Phase.PRUNE, 45, "hosts", _prune_hosts, is_divided=True),
    )
