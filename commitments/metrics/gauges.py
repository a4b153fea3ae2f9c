"""What the rows tell of commitments, quota and runs when a scrape comes.

Source: spec commitments, 20.1; spec liquid, 18.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db.backends.utils import CursorWrapper

from capacity.groups.reading import load_group_definitions, load_group_settings
from capacity.metrics.limits import tells_projects
from commitments.domain.service_info import ram_unit_warning
from commitments.models import CompactionOutcome, CompactionRun, SyncOutcome
from commitments.services import import_runs, sync_runs
from journal.errors import NotReady
from journal.kept_sums import Rows, kept_sums
from journal.readings import Reading, Scraped, gauge

ZONE: Final = ("availability_zone",)
PROJECT: Final = ("project_id",)


def _how_finely(cursor: CursorWrapper) -> Mapping[str, Any]:  # Any: parameters of a statement
    return {"tells_projects": tells_projects(cursor)}


# What was accepted once is a promise, whatever its writer would have taken for an answer then.
UNFULFILLED = """
SELECT flavor_group_name, resource_type, zone, count(*)
  FROM commitments_commitment
 WHERE ready_reason = 'Reserving' AND (NOT allow_rejection OR accepted_amount IS NOT NULL)
 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""

REFUSED = """
SELECT zone, is_refused::int, (host_refusal <> '')::int FROM commitments_slotcheck ORDER BY zone
"""

ON_LOST_HOSTS = kept_sums(
    "slots_on_lost_hosts",
    """
SELECT host.zone, count(*)
  FROM hosts_host AS host
  JOIN capacity_reservation AS slot ON slot.target_host_id = host.id AND slot.kind = 'committed'
 WHERE host.state = 'down' OR host.maintenance = 'termination'
 GROUP BY 1 ORDER BY 1
""",
)

COMMITMENTS: Final = Scraped(
    "commitments",
    Reading(
        UNFULFILLED,
        ("flavor_group", "resource_type", *ZONE),
        (
            gauge(
                "committed_resource_unfulfilled",
                "Commitments that could not be placed yet and may not be rejected.",
            ),
        ),
    ),
    Reading(
        REFUSED,
        ZONE,
        (
            gauge(
                "committed_resource_vm_list_refused",
                "Whether the VM list of a zone shrank too much to take VMs out of slots.",
            ),
            gauge(
                "committed_resource_host_list_refused",
                "Whether too many hosts of a zone are down or gone at once to move slots off them.",
            ),
        ),
    ),
    Reading(
        ON_LOST_HOSTS,
        ZONE,
        (
            gauge(
                "committed_resource_slots_on_lost_hosts",
                "Slots of commitments on hosts that are down or leaving; no series means none.",
            ),
        ),
    ),
)


def _questionable(_: CursorWrapper) -> Rows:
    """Return each group and whether its unit is off; none while groups are not extracted."""
    try:
        groups = load_group_definitions()
    except NotReady:
        return []
    chosen = load_group_settings()
    return [
        (name, ram_unit_warning(group, chosen) is not None)
        for name, group in sorted(groups.items())
    ]


RAM_UNITS: Final = Scraped(
    "ram_units",
    Reading(
        _questionable,
        ("flavor_group",),
        (
            gauge(
                "committed_resource_ram_unit_questionable",
                "Whether a group's configured unit of memory is unset or not its smallest flavor.",
            ),
        ),
    ),
)

PROJECTS = """
SELECT CASE WHEN %(tells_projects)s THEN project_id ELSE '' END, sum(assigned_vms),
       sum(uncovered_vms)
  FROM commitments_projectusage GROUP BY 1 ORDER BY 1
"""
USAGE: Final = Scraped(
    "usage",
    Reading(
        PROJECTS,
        PROJECT,
        (
            gauge(
                "committed_resource_usage_assigned_vms_total",
                "VMs that commitments of the project cover.",
            ),
            gauge(
                "committed_resource_usage_uncovered_vms",
                "VMs that no memory commitment of their zone and flavor group had room for.",
            ),
        ),
        _how_finely,
    ),
)

USAGES = """
SELECT CASE WHEN %(tells_projects)s THEN quota.project_id ELSE '' END, quota.zone, used.key,
       sum(used.value::bigint)::bigint,
       sum(coalesce((quota.payg_usage ->> used.key)::bigint, 0))::bigint,
       sum(used.value::bigint - coalesce((quota.payg_usage ->> used.key)::bigint, 0))::bigint
  FROM capacity_projectquota AS quota CROSS JOIN LATERAL jsonb_each_text(quota.total_usage) AS used
 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
QUOTA_SUMS: Final = kept_sums("quota_usages", USAGES, _how_finely)

QUOTA: Final = Scraped(
    "quota",
    Reading(
        QUOTA_SUMS,
        (*PROJECT, *ZONE, "resource"),
        (
            gauge("quota_total_usage", "Usage of a project's VMs; memory in GiB."),
            gauge("quota_payg_usage", "Usage that no commitment covers; memory in GiB."),
            gauge("quota_cr_usage", "Usage that commitments cover; memory in GiB."),
        ),
    ),
)

LAST = """
SELECT {value} FROM commitments_syncrun
 WHERE source = %({source})s AND finished_at IS NOT NULL{condition} ORDER BY id DESC LIMIT 1
"""
STARTED: Final = "extract(epoch FROM started_at)"
SUCCEEDED: Final = " AND outcome = %(success)s"
#: Name of a gauge, what it tells, and where in the last run of a source it is written.
SYNC_GAUGES: Final = (
    (
        "committed_resource_syncer_last_success_timestamp_seconds",
        "Start of the last run of the syncer that was a success.",
        LAST.format(value=STARTED, source="syncer", condition=SUCCEEDED),
    ),
    (
        "committed_resource_syncer_nothing_understood",
        "Whether the last run was told of commitments for us and understood none.",
        LAST.format(
            value="(error_code = %(nothing_understood)s)::int", source="syncer", condition=""
        ),
    ),
    (
        "committed_resource_syncer_limes_commitments_active",
        "Commitments of the last run that are understood.",
        LAST.format(
            value="(counts ->> 'understood')::bigint",
            source="syncer",
            condition=" AND counts ? 'understood'",
        ),
    ),
    (
        "committed_resource_syncer_crd_unmatched",
        "Commitments here that Limes did not list in the last run and that are not over.",
        LAST.format(
            value="(counts ->> 'missing')::bigint",
            source="syncer",
            condition=" AND counts ? 'missing'",
        ),
    ),
    (
        "region_import_last_success_timestamp_seconds",
        "Start of the last region import that was a success.",
        LAST.format(value=STARTED, source="importer", condition=SUCCEEDED),
    ),
    (
        "region_import_refused",
        "Whether the last region import met a list that shrank too much to be believed.",
        LAST.format(value="(outcome = %(guarded)s)::int", source="importer", condition=""),
    ),
)
LAST_RUNS: Final = "SELECT " + ", ".join(f"({statement})" for _, _, statement in SYNC_GAUGES)
SYNC: Final = Scraped(
    "sync",
    Reading(
        LAST_RUNS,
        (),
        tuple(gauge(name, words) for name, words, _ in SYNC_GAUGES),
        lambda _: {
            "syncer": sync_runs.SOURCE,
            "importer": import_runs.SOURCE,
            "success": SyncOutcome.SUCCESS.value,
            "guarded": SyncOutcome.GUARDED.value,
            "nothing_understood": sync_runs.NothingUnderstood.code,
        },
    ),
)


def _last_compactions(_: CursorWrapper) -> Rows:
    runs = CompactionRun.objects.filter(finished_at__isnull=False).order_by("zone", "-id")
    return [
        (
            run.zone,
            run.finished_at and run.finished_at.timestamp(),
            run.outcome == CompactionOutcome.REFUSED,
        )
        for run in runs.distinct("zone")
    ]


COMPACTION: Final = Scraped(
    "compaction",
    Reading(
        _last_compactions,
        ZONE,
        (
            gauge(
                "committed_resource_compaction_last_run_timestamp_seconds",
                "End of the last run that frees hosts, however it ended.",
            ),
            gauge(
                "committed_resource_compaction_refused",
                "Whether the last run that frees hosts did not believe what is known of VMs and"
                " hosts.",
            ),
        ),
    ),
)
