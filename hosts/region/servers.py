"""Section ``compute.servers``: VMs with their size and place (spec region-file, rules)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final

from django.db.models import Q, QuerySet

from core.sql import load_sql
from hosts.domain.capacity import MIB
from hosts.domain.operating_system import IMAGE_DELETED, UNKNOWN
from hosts.domain.vm import ABSENT_STATUSES
from hosts.models import DeletedVM, Host, Image, Instance
from hosts.region.flavors import MAX_MEMORY_MIB
from hosts.region.merging import Merge, merge
from hosts.region.node import ID_MAX, INT32_MAX, Json, Node
from hosts.region.prune import (
    prune_rows,
    remove_rows,
    zones_left_out,
    zones_of_reported_hosts,
)
from hosts.region.registry import DumpOptions, Phase, RegionSection, Step, registry
from hosts.region.run import ImportRun, Live, Unique
from hosts.region.staging import StagingTable, as_json
from hosts.region.writing import write_part
from journal.statements import execute, fetch_rows, fetch_value

SERVERS: Final = "compute.servers"
AZ: Final = "OS-EXT-AZ:availability_zone"
HOST: Final = "OS-EXT-SRV-ATTR:host"
HYPERVISOR: Final = "OS-EXT-SRV-ATTR:hypervisor_hostname"
VM_STATE: Final = "OS-EXT-STS:vm_state"
TASK_STATE: Final = "OS-EXT-STS:task_state"
POWER_STATE: Final = "OS-EXT-STS:power_state"
LAUNCHED: Final = "OS-SRV-USG:launched_at"
STATE_MAX: Final = 32

STAGED_COLUMNS: Final = (
    "openstack_id",
    "name",
    "project_id",
    "user_id",
    "flavor_name",
    "vcpus",
    "memory_bytes",
    "disk_gib",
    "flavor_extra_specs",
    "host_name",
    "zone",
    "status",
    "vm_state",
    "task_state",
    "power_state",
    "image_id",
    "launched_at",
    "nova_created_at",
    "nova_updated_at",
    "metadata",
)
_RESOLVE: Final = load_sql("hosts", "resolve_instances")
WRITTEN_COLUMNS: Final = (
    *STAGED_COLUMNS[:9],
    "host_id",
    *STAGED_COLUMNS[9:15],
    "os_type",
    *STAGED_COLUMNS[15:],
)


# A list of all VMs is read for minutes: what was written meanwhile is newer, and who was seen to be
# deleted does not come back.
LEAVE_NEWER = """
DELETE FROM stage_resolved_instance AS listed USING hosts_instance AS vm
 WHERE vm.openstack_id = listed.openstack_id
   AND (listed.nova_updated_at < vm.nova_updated_at
        OR (%(is_full)s AND vm.updated_at >= %(began)s))
"""
LEAVE_DELETED = """
DELETE FROM stage_resolved_instance AS listed USING hosts_deletedvm AS vm
 WHERE vm.openstack_id = listed.openstack_id AND %(is_full)s AND vm.seen_at >= %(began)s
"""
LACKS_ANY = """
SELECT EXISTS (
    SELECT FROM hosts_instance AS vm
     WHERE NOT EXISTS (
           SELECT FROM stage_hosts_instance AS listed WHERE listed.openstack_id = vm.openstack_id))
"""
ABSENT = """
SELECT vm.openstack_id FROM hosts_instance AS vm
 WHERE NOT EXISTS (
       SELECT FROM stage_hosts_instance AS listed WHERE listed.openstack_id = vm.openstack_id)
 ORDER BY vm.id LIMIT %(most)s
"""
LISTED_BY_ZONE = """
SELECT host.zone, count(*), count(listed.openstack_id)
  FROM hosts_instance AS vm
  JOIN hosts_host AS host ON host.id = vm.host_id
  LEFT JOIN stage_hosts_instance AS listed ON listed.openstack_id = vm.openstack_id
 WHERE host.zone <> ''
 GROUP BY 1
"""


def register() -> None:
    """Register the section and steps of this module."""
    registry.add(
        RegionSection(path=SERVERS, reader=_read_servers, dumper=_dump_servers),
        Step(
            Phase.WRITE, 50, "servers", _write_servers, after=frozenset({SERVERS}), is_divided=True
        ),
        Step(
            Phase.WRITE,
            51,
            "deleted servers",
            _remove_deleted,
            after=frozenset({SERVERS}),
            is_divided=True,
        ),
        Step(Phase.PRUNE, 50, "servers", _prune_servers, is_divided=True),
    )


def _read_servers(run: ImportRun) -> Callable[[Node], None]:
    stage = StagingTable(
        run,
        table="hosts_instance",
        columns=STAGED_COLUMNS,
        extra=("flavor_ref text", "is_service_host boolean"),
    )
    run.stash[SERVERS] = stage
    unique = Unique("server")

    def read(node: Node) -> None:
        server_id = node.text("id", max_length=ID_MAX)
        unique.check(node, server_id, "id")
        size, flavor_ref = _size(node)
        host_name = node.text(HYPERVISOR, default="")
        by_service = not host_name
        stage.add(
            (
                server_id,
                node.text("name", default=""),
                node.text("tenant_id", max_length=ID_MAX),
                node.text("user_id", default="", max_length=ID_MAX),
                *size,
                host_name or node.text(HOST, default=""),
                node.text(AZ, default=""),
                node.text("status", max_length=STATE_MAX),
                node.text(VM_STATE, default="", max_length=STATE_MAX),
                node.text(TASK_STATE, default="", max_length=ID_MAX),
                node.integer(POWER_STATE, default=0),
                _image_id(node),
                node.timestamp(LAUNCHED),
                node.timestamp("created"),
                node.timestamp("updated"),
                as_json(node.text_map("metadata")),
                flavor_ref,
                by_service,
            )
        )

    return read


def _size(node: Node) -> tuple[tuple[object, ...], str | None]:
    """Return name, vCPUs, bytes, GiB and extra specs, or else how to look the flavor up."""
    flavor = node.child("flavor")
    if flavor.has("vcpus") or flavor.has("ram"):
        name = flavor.text("original_name")
        specs = as_json(flavor.text_map("extra_specs"))
        memory_bytes = flavor.integer("ram", high=MAX_MEMORY_MIB) * MIB
        return (
            name,
            flavor.integer("vcpus"),
            memory_bytes,
            flavor.integer("disk", high=INT32_MAX, default=0),
            specs,
        ), None
    key = next((key for key in ("id", "original_name", "name") if flavor.has(key)), None)
    if key is None:
        raise node.error("flavor", "missing vcpus, ram and original_name, or id")
    reference = flavor.identifier(key) if key == "id" else flavor.text(key)
    return (reference, None, None, None, None), reference


def _image_id(node: Node) -> str:
    found = node.fields.get("image")
    if found is None or isinstance(found, str):
        return node.text("image", default="", max_length=ID_MAX)
    return node.child("image").text("id", default="", max_length=ID_MAX)


# VMs that are listed, but not in the zone of their former host any more: on a host of another one,
# or in a status in which they hold nothing. Without a host alone they are not among them: Nova
# tells hosts to administrators alone.
_MOVED: Final = """
SELECT vm.host_id, vm.status, count(*)
  FROM stage_resolved_instance AS staged
  JOIN hosts_instance AS vm ON vm.openstack_id = staged.openstack_id
  JOIN hosts_host AS former ON former.id = vm.host_id
  LEFT JOIN hosts_host AS present ON present.id = staged.host_id
 WHERE staged.openstack_id = ANY(%(vm_uuids)s)
   AND (former.zone <> present.zone
        OR staged.status = ANY(%(absent)s) AND vm.status <> ALL(%(absent)s))
 GROUP BY vm.host_id, vm.status
"""


def _write_servers(run: ImportRun) -> None:
    missing_image = IMAGE_DELETED if Image.objects.exists() else UNKNOWN
    execute("DROP TABLE IF EXISTS pg_temp.stage_resolved_instance")
    execute(_RESOLVE, {"unknown": UNKNOWN, "missing_image": missing_image})
    _list_unsized(run)
    execute("DELETE FROM stage_resolved_instance WHERE vcpus IS NULL")
    if run.live is not None:
        for leave in (LEAVE_NEWER, LEAVE_DELETED):
            execute(leave, {"began": run.live.began, "is_full": run.prunes(SERVERS)})
    execute("CREATE UNIQUE INDEX ON stage_resolved_instance (openstack_id)")
    execute("ANALYZE stage_resolved_instance")
    merge(
        run,
        Merge(
            table="hosts_instance",
            key="openstack_id",
            columns=WRITTEN_COLUMNS,
            staged="stage_resolved_instance",
            host="host_id",
            writing=None if run.live is None else _expect_fewer_moved,
        ),
        section=SERVERS,
    )
    _list_unplaced(run)
    execute("DROP TABLE stage_resolved_instance")


def _remove_deleted(run: ImportRun) -> None:
    if run.live is None or not run.live.deleted:
        return
    deleted = sorted(run.live.deleted)
    write_part(run, partial(_remember_deleted, run.live, deleted))
    remove_rows(
        run,
        section=SERVERS,
        rows=Instance.objects.filter(openstack_id__in=deleted),
        key="openstack_id",
        host_field="host_id",
        removing=_expect_fewer,
    )


def _forget_asked(live: Live, rows: QuerySet[Instance]) -> None:
    """Remember VMs of which a live cloud, asked for each, said that they are gone."""
    gone = list(rows.order_by("openstack_id").values_list("openstack_id", flat=True))
    _remember_deleted(live, gone)
    _expect_fewer(rows)


def _expect_fewer(rows: QuerySet[Instance]) -> None:
    """Tell of VMs of a live cloud that are about to be removed, as the cloud says itself."""
    on_hosts = rows.filter(host__isnull=False)
    registry.expect_fewer(Counter(on_hosts.values_list("host_id", "status")))


def _expect_fewer_moved(vm_uuids: list[str]) -> None:
    """Tell of VMs that a live cloud has in another zone or shelved now: the zone's list is shorter.

    That of a zone which all VMs left so would else look cut short for ever.
    """
    moved = fetch_rows(_MOVED, {"vm_uuids": vm_uuids, "absent": list(ABSENT_STATUSES)})
    registry.expect_fewer({(host_id, status): count for host_id, status, count in moved})


def sums_by_zone(counts: Mapping[int, int]) -> dict[str, int]:
    """Return the sums of what is counted by key of hosts, by zone in order."""
    zones: Iterable[tuple[int, str]] = Host.objects.filter(pk__in=counts).values_list("pk", "zone")
    sums: Counter[str] = Counter()
    for host_id, zone in zones:
        sums[zone] += counts[host_id]
    return dict(sorted(sums.items()))


def _remember_deleted(live: Live, vm_uuids: list[str]) -> None:
    rows = [DeletedVM(openstack_id=vm_uuid, seen_at=live.began) for vm_uuid in vm_uuids]
    DeletedVM.objects.bulk_create(rows, ignore_conflicts=True)


def _list_unsized(run: ImportRun) -> None:
    for server_id, name, flavor in fetch_rows(
        "SELECT openstack_id, name, flavor_name FROM stage_resolved_instance "
        "WHERE vcpus IS NULL ORDER BY openstack_id"
    ):
        run.report.skip(SERVERS, server_id, "unknown_flavor", f"{name}: no flavor {flavor}")


def _list_unplaced(run: ImportRun) -> None:
    for server_id, name, status, host_name in fetch_rows(
        "SELECT openstack_id, name, status, host_name FROM stage_resolved_instance "
        "WHERE host_id IS NULL ORDER BY openstack_id"
    ):
        reason = "unknown_host" if host_name else "no_host"
        detail = f"{name}: {status}" + (f", host {host_name} is not known" if host_name else "")
        run.report.keep(SERVERS, server_id, reason, detail)


def _prune_servers(run: ImportRun) -> None:
    if not run.prunes(SERVERS) or not fetch_value(LACKS_ANY):
        return
    counts = {zone: (stored, listed) for zone, stored, listed in fetch_rows(LISTED_BY_ZONE)}
    left_out = zones_left_out(
        run, section=SERVERS, counts=counts, zones=zones_of_reported_hosts(run)
    )
    prune_rows(
        run,
        section=SERVERS,
        model=Instance,
        key="openstack_id",
        spared=Q(host__zone__in=left_out) if left_out else None,
        host_field="host_id",
        removing=None if run.live is None else partial(_forget_asked, run.live),
    )


def absent_vms(*, most: int) -> list[str]:
    """Return VMs that the list of the run that is on lacks."""
    return [vm_uuid for (vm_uuid,) in fetch_rows(ABSENT, {"most": most})]


def _dump_servers(_: DumpOptions) -> Iterator[Json]:
    rows = (
        Instance.objects.order_by("openstack_id")
        .select_related("host")
        .only(*WRITTEN_COLUMNS, "host__name", "host__service_host")
    )
    for vm in rows.iterator(chunk_size=2000):
        host = vm.host
        yield {
            "id": vm.openstack_id,
            "name": vm.name,
            "status": vm.status,
            "tenant_id": vm.project_id,
            "user_id": vm.user_id,
            "created": _time_text(vm.nova_created_at),
            "updated": _time_text(vm.nova_updated_at),
            "flavor": {
                "original_name": vm.flavor_name,
                "vcpus": vm.vcpus,
                "ram": vm.memory_bytes // MIB,
                "disk": vm.disk_gib,
                "extra_specs": vm.flavor_extra_specs,
            },
            AZ: vm.zone,
            HOST: host.service_host if host else vm.host_name or None,
            HYPERVISOR: host.name if host else vm.host_name or None,
            VM_STATE: vm.vm_state,
            TASK_STATE: vm.task_state or None,
            POWER_STATE: vm.power_state,
            LAUNCHED: _time_text(vm.launched_at),
            "image": {"id": vm.image_id} if vm.image_id else "",
            "metadata": vm.metadata,
        }


def _time_text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
