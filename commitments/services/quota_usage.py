"""The quota controller: what is used of each project's quota (spec liquid, 14).

Usage is always counted, never added up from events, so that a VM counts once whoever reports it and
a lost event does no harm (spec liquid, 20 row 19). What makes it cheap is that only projects are
counted whose rows, VMs or commitments changed: rows carry the oldest transaction that their count
did not see.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog
from django.conf import settings
from django.db import DatabaseError, transaction

from capacity.groups.group_settings import settings_for_group
from capacity.groups.reading import load_group_definitions, load_group_settings
from capacity.locks import set_lock_timeout
from capacity.models import ProjectQuota
from commitments.domain.names import (
    resource_name_cores,
    resource_name_instances,
    resource_name_ram,
)
from commitments.domain.quota_usage import QuotaUsage, quota_usage
from commitments.domain.statuses import ResourceType
from commitments.metrics import quota as metrics
from commitments.models import Commitment
from core.changes import changed_rows, has_deletions
from core.chunks import in_chunks
from hosts.domain.vm import ABSENT_STATUSES
from journal.clock import database_now
from journal.history import read_moment
from journal.outages import is_retryable
from journal.statements import fetch_rows
from scheduling.resources import GIB

log = structlog.get_logger(__name__)

PROJECTS_PER_TRANSACTION = 500
STATUS_FIELDS = (
    "total_usage",
    "payg_usage",
    "total_usage_summary",
    "payg_usage_summary",
    "limes_usage_summary",
    "limes_quota_summary",
    "observed_generation",
)
WRITTEN_FIELDS = (
    *STATUS_FIELDS,
    "last_reconcile_at",
    "last_full_reconcile_at",
    "counted_xmin",
)

USED = """
SELECT vm.project_id, host.zone, flavor_group.name,
       sum(vm.memory_bytes / %(gib)s)::bigint, sum(vm.vcpus)::bigint, count(*)
  FROM hosts_instance AS vm
  JOIN hosts_host AS host ON host.id = vm.host_id
  JOIN hosts_flavor AS flavor ON flavor.name = vm.flavor_name
  JOIN capacity_flavorgroupmember AS member ON member.flavor_id = flavor.id
  JOIN capacity_flavorgroup AS flavor_group ON flavor_group.id = member.group_id
 WHERE vm.project_id = ANY (%(projects)s) AND vm.status <> ALL (%(absent)s) AND vm.zone <> ''
 GROUP BY vm.project_id, host.zone, flavor_group.name
"""


def _changed(table: str, alias: str) -> str:
    """Return the rows that were written since the oldest count."""
    oldest = "(SELECT since FROM position ORDER BY counted_xmin LIMIT 1)"
    return changed_rows(table, alias, since=oldest)


CHANGED_PROJECTS = f"""
WITH position AS MATERIALIZED (
    SELECT counted_xmin, since, {has_deletions("commitments_commitment", since="since")}
           OR %(follows_vms)s AND ({has_deletions("hosts_instance", since="since")}) AS is_lost
      FROM (SELECT DISTINCT counted_xmin,
                   concat(greatest(counted_xmin, 1), ':', greatest(counted_xmin, 1), ':') AS since
              FROM capacity_projectquota) AS counted
),
changed AS (
    SELECT project_id, max(changed_xid) AS xid FROM {_changed("hosts_instance", "vm")}
     WHERE %(follows_vms)s GROUP BY project_id
    UNION ALL
    SELECT vm.project_id, max(host.changed_xid)
      FROM {_changed("hosts_host", "host")} JOIN hosts_instance AS vm ON vm.host_id = host.id
     WHERE %(follows_vms)s GROUP BY vm.project_id
    UNION ALL
    SELECT project_id, max(changed_xid) FROM {_changed("commitments_commitment", "held")}
     GROUP BY project_id
    UNION ALL
    SELECT project_id, max(changed_xid) FROM commitments_projectdeparture
     WHERE is_of_commitment GROUP BY project_id
)
SELECT DISTINCT quota.project_id
  FROM capacity_projectquota AS quota
  JOIN position ON position.counted_xmin = quota.counted_xmin
 WHERE quota.observed_generation IS DISTINCT FROM quota.generation
    OR position.is_lost
    OR EXISTS (SELECT FROM changed
                WHERE changed.project_id = quota.project_id
                  AND changed.xid >= quota.counted_xmin)
 ORDER BY quota.project_id
"""  # noqa: S608 - constants only


@dataclass(slots=True, kw_only=True)
class QuotaRun:
    """What a run did.

    Attributes:
        projects: Projects that were counted.
        written: Rows of which anything but the time of the count changed.
        failed: Rows, as ``project/zone``, that could not be counted.
        busy: Projects whose rows were being changed by another.
    """

    projects: int = 0
    written: int = 0
    failed: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)


def reconcile_full(*, now: datetime | None = None) -> QuotaRun:
    """Count the usage of every quota row.

    Raises:
        NotReady: flavor groups were not extracted yet.
        DatabaseError: the rows could not be read.

    Source: spec liquid, 14.3 (1).
    """
    projects = ProjectQuota.objects.order_by("project_id").values_list("project_id", flat=True)
    return _counted_run(list(projects.distinct()), now=now)


def reconcile_changed(*, now: datetime | None = None) -> QuotaRun:
    """Count the usage of projects whose quota, VMs, hosts of VMs or commitments changed since.

    VMs and their hosts are not followed when the operator switched that off.

    Raises:
        NotReady: flavor groups were not extracted yet.
        DatabaseError: the rows could not be read.

    Source: spec liquid, 14.3 (2, 3), 14.4.
    """
    projects = [
        project_id
        for (project_id,) in fetch_rows(
            CHANGED_PROJECTS, {"follows_vms": settings.HEADROOM.quota.follow_vms}
        )
    ]
    return _count_projects(projects, now=now or database_now(), is_full=False)


def count_payg(project_id: str, zone: str) -> Mapping[str, int]:
    """Return what a project uses in a zone that no commitment covers, as its quota row says it.

    Counted now, so that VMs made since the last run are not overlooked.

    Returns:
        Mapping resource name -> GiB of memory, cores or instances; unused ones are missing.

    Source: spec liquid, 14.2, 14.6.
    """
    key = (project_id, zone)
    counted = quota_usage(
        quota={},
        used=_used([project_id]).get(key, {}),
        covered=_covered([project_id]).get(key, {}),
        ram_unit_gib={},
    )
    return counted.payg


def _counted_run(projects: Sequence[str], *, now: datetime | None) -> QuotaRun:
    """Run over all projects, and say in the metrics how it went and how long it took."""
    started = time.monotonic()
    result = "failure"
    try:
        run = _count_projects(projects, now=now or database_now(), is_full=True)
        result = "success"
    except Exception as error:
        log.warning("quota_reconcile_failed", error=type(error).__name__)
        raise
    finally:
        metrics.RECONCILE_TOTAL.labels(result=result).inc()
        metrics.RECONCILE_SECONDS.observe(time.monotonic() - started)
    return run


def _count_projects(projects: Sequence[str], *, now: datetime, is_full: bool) -> QuotaRun:
    run = QuotaRun()
    if not projects:
        return run
    configured = load_group_settings()
    groups = load_group_definitions(include_retired=True)
    unit_gib = {name: settings_for_group(configured, name).ram_unit_gib or 1 for name in groups}
    for batch in in_chunks(projects, PROJECTS_PER_TRANSACTION):
        try:
            with transaction.atomic(durable=True):
                _count_batch(batch, unit_gib, run, now=now, is_full=is_full)
        except DatabaseError as error:
            if not is_retryable(error):
                raise
            run.busy.extend(batch)
            log.info("quota_reconcile_busy", projects=len(batch))
        else:
            run.projects += len(batch)
    return run


def _count_batch(
    projects: Sequence[str],
    unit_gib: Mapping[str, int],
    run: QuotaRun,
    *,
    now: datetime,
    is_full: bool,
) -> None:
    """Lock the rows of some projects, count, write; the count is newer than every former one."""
    set_lock_timeout()
    rows = list(
        ProjectQuota.objects.filter(project_id__in=projects)
        .order_by("pk")
        .select_for_update(of=("self",), no_key=True)
    )
    xmin = read_moment().xmin
    used, covered = _used(projects), _covered(projects)
    for row in rows:
        key = (row.project_id, row.zone)
        try:
            counted = quota_usage(
                quota=row.quota_by_resource,
                used=used.get(key, {}),
                covered=covered.get(key, {}),
                ram_unit_gib=unit_gib,
            )
        except (AttributeError, TypeError, ValueError) as error:  # a malformed quota
            run.failed.append(f"{row.project_id}/{row.zone}")
            log.warning(
                "quota_row_failed", project_id=row.project_id, zone=row.zone, error=str(error)
            )
            continue
        run.written += _set_status(row, counted)
        is_full_for_row = is_full or row.observed_generation != row.generation
        row.observed_generation = row.generation
        row.last_reconcile_at = now
        row.last_full_reconcile_at = now if is_full_for_row else row.last_full_reconcile_at
        row.counted_xmin = xmin
    ProjectQuota.objects.bulk_update(rows, WRITTEN_FIELDS, batch_size=1000)


def _set_status(row: ProjectQuota, counted: QuotaUsage) -> bool:
    fresh = {
        "total_usage": dict(counted.total),
        "payg_usage": dict(counted.payg),
        "total_usage_summary": counted.total_summary,
        "payg_usage_summary": counted.payg_summary,
        "limes_usage_summary": counted.limes_usage_summary,
        "limes_quota_summary": counted.limes_quota_summary,
    }
    differs = any(getattr(row, name) != text for name, text in fresh.items())
    for name, text in fresh.items():
        setattr(row, name, text)
    return differs


def _used(projects: Sequence[str]) -> dict[tuple[str, str], dict[str, int]]:
    """Return (project, zone) to the usage of its VMs; memory in GiB, floor per VM (14.2)."""
    used: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for project_id, zone, group, ram_gib, cores, instances in fetch_rows(
        USED, {"gib": GIB, "projects": list(projects), "absent": list(ABSENT_STATUSES)}
    ):
        used[project_id, zone] |= {
            resource_name_ram(group): int(ram_gib),
            resource_name_cores(group): int(cores),
            resource_name_instances(group): int(instances),
        }
    return used


def _covered(projects: Sequence[str]) -> dict[tuple[str, str], dict[str, int]]:
    """Return (project, zone) to what commitments cover, from their accepted specification."""
    states = settings.HEADROOM.quota.commitment_states
    covered: defaultdict[tuple[str, str], defaultdict[str, int]] = defaultdict(
        lambda: defaultdict(int)
    )
    rows = Commitment.objects.filter(project_id__in=projects, last_usage_reconcile_at__isnull=False)
    for row in rows.order_by("pk"):
        spec = row.accepted_spec or {}
        state = spec.get("state", row.state)
        group = spec.get("flavorGroupName", row.flavor_group_name)
        zone = spec.get("availabilityZone", row.zone)
        if state not in states:
            continue
        if spec.get("resourceType", row.resource_type) == ResourceType.CORES:
            covered[row.project_id, zone][resource_name_cores(group)] += row.used_vcpus
        else:
            ram_gib = row.used_memory_bytes // GIB
            covered[row.project_id, zone][resource_name_ram(group)] += ram_gib
    return {key: dict(usage) for key, usage in covered.items()}
