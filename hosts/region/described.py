"""Hosts that an object of their own describes, beside what the cloud's lists say of them.

Whoever reads such objects hands :class:`DescribedHost` to :func:`described_sink`; the rest is the
way of every list: staged, compared, written in small parts, removed behind the same guard. What an
object says of its host is not undone by the lists of the cloud, which keep saying whether the
compute service is up and enabled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Final

from django.conf import settings
from django.db.models import QuerySet

from core.chunks import in_chunks
from hosts.domain.capacity import ONE
from hosts.domain.vm_list import ReportedVM
from hosts.feed.reported import keep_reported_instances
from hosts.feed.state import forget_pass
from hosts.models import Host
from hosts.region.described_cells import DescribedCell, keep_described_cells
from hosts.region.inventory import AGGREGATES
from hosts.region.merging import Merge, merge
from hosts.region.prune import is_believed, remove_rows
from hosts.region.registry import Phase, Step, registry
from hosts.region.run import ImportRun
from hosts.region.staging import StagingTable, as_json
from hosts.region.writing import ROWS_PER_PART, settle, write_part
from journal.statements import execute, fetch_rows

DESCRIBED: Final = "described_hosts"
REPORTED: Final = "described_hosts.vms"
CELLS: Final = "described_hosts.cells"
#: Of Hypervisor objects, among the passes of the feed.
HYPERVISOR_LISTS: Final = "hypervisors"
STAGE: Final = "stage_described_host"
AGGREGATE_STAGE: Final = "stage_described_aggregate"
#: What objects say; ``_write_hosts`` leaves these columns of their hosts alone.
OWNED: Final = (
    "openstack_id",
    "zone",
    "hypervisor_type",
    "cpu_arch",
    "total_vcpus",
    "total_memory_bytes",
    "reserved_vcpus",
    "reserved_memory_bytes",
    "vcpus_ratio",
    "memory_ratio",
    "effective_vcpus",
    "effective_memory_bytes",
    "traits",
    "aggregate_uuids",
    "allowed_projects",
)
COLUMNS: Final = (
    "name",
    *OWNED,
    "os_version",
    "maintenance",
    "high_availability",
    "building_block",
    "custom_traits",
    "conditions",
    "condition_reasons",
    "domain_capabilities",
    "reported_memory_bytes",
    "reported_vcpus",
    "is_self_described",
)
#: Of a host that nobody listed yet; the lists of the cloud say better, where they are read.
ON_INSERT: Final = {
    "service_host": "i.name",
    "service_id": "''",
    "state": "'up'",
    "status": "'enabled'",
    "disabled_reason": "''",
    "total_disk_gib": "0",
    "reserved_disk_gib": "0",
    "disk_ratio": "1",
    "effective_disk_gib": "0",
    "provider_uuid": "''",
    "provider_inventories": "'{}'",
    "provider_traits": "'{}'",
    "nested_providers": "'[]'",
    "generation": "1",
}
# Where the cloud's own lists are read, they say what aggregates are.
MERGE_AGGREGATES: Final = f"""
INSERT INTO hosts_aggregate AS known (uuid, name, metadata, host_names, created_at, updated_at)
SELECT told.uuid, told.name, told.metadata,
       ARRAY(SELECT host.name FROM hosts_host AS host
              WHERE told.uuid = ANY(host.aggregate_uuids) ORDER BY host.name),
       statement_timestamp(), statement_timestamp()
  FROM (SELECT DISTINCT ON (uuid) uuid, name, metadata FROM {AGGREGATE_STAGE}
         ORDER BY uuid, name) AS told
 ORDER BY told.uuid
ON CONFLICT (uuid) DO UPDATE
   SET name = excluded.name, metadata = excluded.metadata, host_names = excluded.host_names,
       updated_at = excluded.updated_at
 WHERE (known.name, known.metadata, known.host_names)
       IS DISTINCT FROM (excluded.name, excluded.metadata, excluded.host_names)
"""  # noqa: S608 - constants only
NO_LONGER: Final = """
UPDATE hosts_host
   SET is_self_described = false, os_version = '', high_availability = true,
       reported_memory_bytes = NULL, reported_vcpus = NULL,
       generation = generation + 1, updated_at = statement_timestamp()
 WHERE name = ANY(%s) AND is_self_described
RETURNING id
"""
KEEP_OWNED: Final = f"""
UPDATE stage_hosts_host AS listed
   SET ({", ".join(OWNED)}) = ({", ".join(f"host.{column}" for column in OWNED)})
  FROM hosts_host AS host WHERE host.name = listed.name AND host.is_self_described
"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedAggregate:
    """An aggregate as a host names it."""

    uuid: str
    name: str
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedHost:
    """What an object says of its host.

    Attributes:
        openstack_id: UUID of Nova's hypervisor; empty while there is none.
        maintenance: A value of :class:`hosts.models.Maintenance`.
        high_availability: Whether its VMs are to start elsewhere when it dies.
        effective_vcpus: What may be promised.
        effective_memory_bytes: Likewise.
        vcpus_ratio: Overcommit, at least 1.
        memory_ratio: Likewise.
        allowed_projects: UUIDs; empty means everybody.
        conditions: Condition type -> ``True``, ``False`` or ``Unknown``.
        condition_reasons: Condition type -> ``reason``, ``message``, those that are told.
        domain_capabilities: ``cpu_modes``, ``devices``, ``features``.
        building_block: Failure domain, rack; empty if unknown.
        reported_instances: Its own list of VMs; None where it reports none at all.
        reported_memory_bytes: What VMs take; None, together with the next, where it does not say.
        reported_vcpus: Likewise.
        cells: Its NUMA cells; none where it does not say.
    """

    name: str
    openstack_id: str = ""
    zone: str = ""
    hypervisor_type: str = ""
    cpu_arch: str = ""
    os_version: str = ""
    maintenance: str = ""
    high_availability: bool = True
    total_vcpus: int = 0
    total_memory_bytes: int = 0
    effective_vcpus: int = 0
    effective_memory_bytes: int = 0
    vcpus_ratio: Decimal = ONE
    memory_ratio: Decimal = ONE
    traits: tuple[str, ...] = ()
    custom_traits: tuple[str, ...] = ()
    aggregates: tuple[DescribedAggregate, ...] = ()
    allowed_projects: tuple[str, ...] = ()
    conditions: Mapping[str, str] = field(default_factory=dict)
    condition_reasons: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    domain_capabilities: Mapping[str, Sequence[str]] = field(default_factory=dict)
    building_block: str = ""
    reported_instances: tuple[ReportedVM, ...] | None = None
    reported_memory_bytes: int | None = None
    reported_vcpus: int | None = None
    cells: tuple[DescribedCell, ...] = ()


@dataclass(slots=True, kw_only=True)
class DescribedList:
    """What a run knows of the list of such objects.

    Attributes:
        reported: The lists of VMs of hosts that are to be written, by name.
        cells: Their NUMA cells, likewise.
        names: Hosts that have an object now, also those whose object did not change.
        before: How many had one when the list was believed last; None for what is stored.
    """

    stage: StagingTable
    aggregate_stage: StagingTable
    reported: dict[str, tuple[ReportedVM, ...] | None] = field(default_factory=dict)
    cells: dict[str, tuple[DescribedCell, ...]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    before: int | None = None


def is_taken_from_objects() -> bool:
    """Whether objects say what their hosts are, by the settings."""
    return bool(settings.HEADROOM.hypervisors.sync == "import")


def keep_described(run: ImportRun) -> None:
    """Let staged hosts of the cloud's lists be what their own objects say.

    Where the settings say that objects are read no more, their hosts are the lists' again.
    """
    if is_taken_from_objects():
        execute(KEEP_OWNED)
        return
    if run.options.is_dry_run:
        return
    forget_pass(HYPERVISOR_LISTS)
    described = Host.objects.filter(is_self_described=True).order_by("pk")
    _leave_to_lists(run, list(described.values_list("name", flat=True)))


def register() -> None:
    """Register the steps of this module."""
    mine = frozenset({DESCRIBED})
    registry.add(
        Step(Phase.WRITE, 47, "described hosts", _write, after=mine, is_divided=True),
        Step(Phase.WRITE, 48, "described aggregates", _write_aggregates, after=mine),
        Step(Phase.PRUNE, 47, "described hosts", _prune, after=mine, is_divided=True),
        Step(
            Phase.FINISH, 10, "rooms of described hosts", _settle_all, after=mine, is_divided=True
        ),
    )


def described_sink(run: ImportRun) -> Callable[[DescribedHost], None]:
    """Return what takes each host that is to be written; its stash holds a ``DescribedList``."""
    listed = DescribedList(
        stage=StagingTable(run, table="hosts_host", columns=COLUMNS, name=STAGE),
        aggregate_stage=StagingTable(
            run,
            table="hosts_aggregate",
            columns=("uuid", "name", "metadata"),
            name=AGGREGATE_STAGE,
        ),
    )
    run.stash[DESCRIBED] = listed

    def take(host: DescribedHost) -> None:
        listed.names.add(host.name)
        listed.reported[host.name] = host.reported_instances
        listed.cells[host.name] = host.cells
        listed.stage.add(_row(host))
        for aggregate in host.aggregates:
            listed.aggregate_stage.add(
                (aggregate.uuid, aggregate.name, as_json(dict(aggregate.metadata)))
            )

    return take


def _row(host: DescribedHost) -> tuple[object, ...]:
    return (
        host.name,
        host.openstack_id,
        host.zone,
        host.hypervisor_type,
        host.cpu_arch,
        host.total_vcpus,
        host.total_memory_bytes,
        0,
        0,
        host.vcpus_ratio,
        host.memory_ratio,
        host.effective_vcpus,
        host.effective_memory_bytes,
        list(host.traits),
        sorted({aggregate.uuid for aggregate in host.aggregates}),
        list(host.allowed_projects),
        host.os_version,
        host.maintenance,
        host.high_availability,
        host.building_block,
        list(host.custom_traits),
        as_json(dict(host.conditions)),
        as_json({kind: dict(told) for kind, told in host.condition_reasons.items()}),
        as_json(dict(host.domain_capabilities)),
        host.reported_memory_bytes,
        host.reported_vcpus,
        True,
    )


def _write(run: ImportRun) -> None:
    listed: DescribedList = run.stash[DESCRIBED]
    listed.stage.finish()
    # Before what VMs take: whoever is gone from the list counts while its slot does not know.
    told = keep_reported_instances(listed.reported)
    merge(
        run,
        Merge(
            table="hosts_host",
            key="name",
            columns=COLUMNS,
            staged=STAGE,
            on_insert=ON_INSERT,
            has_generation=True,
            host="id",
            zone="zone",
        ),
        section=DESCRIBED,
    )
    fresh = keep_reported_instances({name: listed.reported[name] for name in told.unknown})
    run.report.of(REPORTED).updated += len(told.changed) + len(fresh.changed)
    run.report.of(CELLS).updated += keep_described_cells(listed.cells)
    _settle(run, Host.objects.filter(name__in=(*told.changed, *fresh.changed)))


def _write_aggregates(run: ImportRun) -> None:
    listed: DescribedList = run.stash[DESCRIBED]
    listed.aggregate_stage.finish()
    if not settings.HEADROOM.feed.cloud:
        run.report.of(AGGREGATES).updated += execute(MERGE_AGGREGATES)


def _prune(run: ImportRun) -> None:
    """Remove hosts without an object, or leave them to the lists of the cloud if it is read."""
    if not run.prunes(DESCRIBED):
        return
    listed: DescribedList = run.stash[DESCRIBED]
    frozen = run.live.frozen.get(DESCRIBED, set()) if run.live else set()
    present = listed.names | frozen
    stored = Host.objects.filter(is_self_described=True).order_by("pk")
    absent = [name for name in stored.values_list("name", flat=True) if name not in present]
    before = stored.count() - run.report.of(DESCRIBED).created
    if not is_believed(
        run, section=DESCRIBED, before=max(before, listed.before or 0), now=len(present)
    ):
        return
    gone = sorted(run.gone(DESCRIBED, absent))
    if settings.HEADROOM.feed.cloud:
        run.report.of(DESCRIBED).removed += _leave_to_lists(run, gone)
        return
    remove_rows(
        run,
        section=DESCRIBED,
        rows=Host.objects.filter(name__in=gone),
        key="name",
        zone_field="zone",
    )


def _leave_to_lists(run: ImportRun, names: Sequence[str]) -> int:
    keep_reported_instances(dict.fromkeys(names))
    keep_described_cells(dict.fromkeys(names, ()))
    parts = in_chunks(names, ROWS_PER_PART)
    return sum(write_part(run, partial(_no_longer, run, part)) for part in parts)


def _no_longer(run: ImportRun, names: Sequence[str]) -> int:
    rows = fetch_rows(NO_LONGER, [list(names)])
    settle(run, {host_id for (host_id,) in rows})
    return len(rows)


def _settle_all(run: ImportRun) -> None:
    """Look at the room of each such host after a whole list, also where nothing changed."""
    if run.prunes(DESCRIBED):
        _settle(run, Host.objects.filter(is_self_described=True))


def _settle(run: ImportRun, hosts: QuerySet[Host]) -> None:
    for part in in_chunks(list(hosts.order_by("pk").values_list("pk", flat=True)), ROWS_PER_PART):
        write_part(run, partial(settle, run, part))
