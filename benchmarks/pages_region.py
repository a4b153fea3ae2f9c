"""The region of ``bench pages``: a generated one, worked on once by every service, with a past."""

from __future__ import annotations

import tempfile
from io import StringIO
from pathlib import Path
from typing import Final

import numpy as np
from django.core.management import call_command
from django.db import connection, models, transaction

from benchmarks.bench_region import empty_database
from benchmarks.metrics_region import INVENTORIES, PROVIDER_TABLES, PROVIDERS
from capacity.figures.history import keep_history
from capacity.models import CapacityHistory, HostHistory
from capacity.nova.decisions import KeptDecision, KeptStep, record_decision
from commitments.services.usage import reconcile_all_usage
from failover.services.coverage import account_coverage
from failover.services.drills import drill_zones
from hosts.models import Host
from journal.actors import Actor
from journal.clock import database_now
from scheduling.decision import Candidate
from scheduling.record import PackedMask
from scheduling.request import PlacementRequest
from scheduling.resources import GIB

VMS_PER_HOST: Final = 20
VMS_PER_DECISION: Final = 10
PAST_DAYS: Final = 60
HOURLY_DAYS: Final = 30

# Numbers of rows go by the number of hosts, as those of a region that works do.
REFUSALS = """
INSERT INTO commitments_refusedchange (created_at, request_id, actor, zone, is_timeout, reason,
    asked, refused)
SELECT now() - n * interval '1 minute', 'req-' || n, 'limes', row.zone, false, 'no room',
       jsonb_build_array(jsonb_build_object(
           'commitment', row.commitment_uuid, 'project', row.project_id,
           'resource', 'hw_version_' || row.flavor_group_name || '_ram', 'old_status', NULL,
           'new_status', 'confirmed', 'amount_units', n %% 50 + 1)),
       jsonb_build_array(jsonb_build_object(
           'commitment', row.commitment_uuid, 'message', 'no room', 'advice', ''))
  FROM generate_series(1, %(hosts)s / 2) n
  JOIN (SELECT *, row_number() OVER (ORDER BY id) AS place, count(*) OVER () AS whole
          FROM commitments_commitment) row ON row.place = n %% row.whole + 1
"""

# One of a VM in ten: what was kept of a run over all hosts.
DECISIONS = f"""
INSERT INTO capacity_schedulingdecision (created_at, vm_uuid, project_id, request_id, pipeline_name,
    pipeline_version, zone, flavor_name, flavor_group_name, memory_bytes, vcpus, is_successful,
    outcome_class, message, hosts_in, hosts_out, target_host_name, top_hosts, removals, listing_id,
    masks, duration_microseconds, intent, intent_reason)
SELECT now() - vm.id * interval '1 second', vm.openstack_id, vm.project_id, 'req-' || vm.id,
       kept.pipeline_name, kept.pipeline_version, vm.zone, vm.flavor_name, kept.flavor_group_name,
       vm.memory_bytes, vm.vcpus, kept.is_successful, kept.outcome_class, kept.message,
       kept.hosts_in, kept.hosts_out, vm.host_name, kept.top_hosts, kept.removals, kept.listing_id,
       kept.masks, kept.duration_microseconds, kept.intent, kept.intent_reason
  FROM hosts_instance vm CROSS JOIN capacity_schedulingdecision kept
 WHERE vm.id %% {VMS_PER_DECISION} = 0
"""  # noqa: S608 - constants only

AUDIT = """
INSERT INTO journal_auditentry (created_at, actor, request_id, action, object_type, object_id,
    before, after, reason)
SELECT now() - n * interval '20 seconds', 'limes', 'req-' || n, 'commitment_changed', 'Commitment',
       row.commitment_uuid, '{"amount": 1}', '{"amount": 2}', ''
  FROM commitments_commitment row CROSS JOIN generate_series(1, 50) n
"""

EVENTS = """
INSERT INTO commitments_commitmentevent (created_at, commitment_uuid, actor, request_id, action,
    before, after, reason, explanation)
SELECT now() - n * interval '1 day', row.commitment_uuid, 'limes', 'req-' || n, 'changed',
       row.accepted_spec, row.accepted_spec, '', NULL
  FROM commitments_commitment row CROSS JOIN generate_series(1, 10) n
"""

FAILOVER_EVENTS = """
INSERT INTO failover_failoverevent (happened_at, reason, is_warning, zone, reservation_name,
    host_name, vm_uuid, message, facts, request_id)
SELECT now() - vm.id * interval '1 second', 'CoverageLost', true, vm.zone, '', vm.host_name,
       vm.openstack_id, '', '{}', ''
  FROM hosts_instance vm
"""

UNCOVERED = """
INSERT INTO failover_failoverdecision (vm_uuid, zone, required_count, current_count, reason, facts,
    since)
SELECT openstack_id, zone, 1, 0, 'waiting', '{}', now() FROM hosts_instance WHERE id %% 50 = 0
    ON CONFLICT DO NOTHING
"""

SYNC_RUNS = """
INSERT INTO commitments_syncrun (started_at, finished_at, source, outcome, counts, error_code,
    message)
SELECT at, at, 'limes', 'success', '{"understood": 1, "missing": 0}', '', ''
  FROM (SELECT now() - n * interval '5 minutes' AS at
          FROM generate_series(%(hosts)s / 2, 1, -1) n) run
"""

FAILOVER_RUNS = """
INSERT INTO failover_failoverrun (zone, number, started_at, finished_at, outcome, is_dry_run,
    request_id, counts, error_code, message)
SELECT zone, n, now() - n * interval '1 minute', now() - n * interval '1 minute', 'done', false, '',
       '{"created": 1}', '', ''
  FROM (SELECT DISTINCT zone FROM hosts_host) zones
 CROSS JOIN generate_series(%(hosts)s / 4, 1, -1) n
"""

COMPACTION_RUNS = """
INSERT INTO commitments_compactionrun (zone, started_at, finished_at, outcome, hosts_planned,
    hosts_freed, slots_moved, hosts_refused, counts, message, actor, request_id)
SELECT zone, now() - n * interval '1 hour', now() - n * interval '1 hour', 'done', 1, 1, 1, 0,
       '{"vms": 4}', '', '', ''
  FROM (SELECT DISTINCT zone FROM hosts_host) zones
 CROSS JOIN generate_series(%(hosts)s / 10, 1, -1) n
"""

ACCOUNTS = """
INSERT INTO commitments_commitmentaccount (commitment_uuid, project_id, domain_id, zone,
    flavor_group_name, resource_type, is_open, seen_at, promised_amount, used_amount)
SELECT commitment_uuid, project_id, domain_id, zone, flavor_group_name, resource_type, true, now(),
       1024, 512
  FROM commitments_commitment
    ON CONFLICT DO NOTHING
"""

HOURS = """
INSERT INTO commitments_commitmenthour (account_id, at, observed_seconds, promised_amount_seconds,
    used_amount_seconds)
SELECT account.id, date_trunc('hour', now()) - n * interval '1 hour', 3600, 1024 * 3600, 512 * 3600
  FROM generate_series(%(hours)s, 1, -1) n CROSS JOIN commitments_commitmentaccount account
    ON CONFLICT DO NOTHING
"""

OBSERVED_HOURS = """
INSERT INTO commitments_observedhour (at, observed_seconds)
SELECT date_trunc('hour', now()) - n * interval '1 hour', 3600
  FROM generate_series(1, %(hours)s) n
    ON CONFLICT DO NOTHING
"""

PLANS = """
INSERT INTO failover_evacuationplan (zone, state, failed_hosts, started_at, changed_at, finished_at,
    request_id)
SELECT zone, 'done', ARRAY[name], now(), now(), now(), '' FROM hosts_host WHERE id %% 100 = 0
"""

MOVES = """
INSERT INTO failover_evacuationmove (plan_id, vm_uuid, state, from_host_id, target_host_id,
    reservation_name, is_private, reason, changed_at)
SELECT plan.id, vm.openstack_id, 'arrived', vm.host_id, vm.host_id, '', true, '', now()
  FROM failover_evacuationplan plan JOIN hosts_instance vm ON vm.host_name = plan.failed_hosts[1]
 WHERE vm.host_id IS NOT NULL
"""

MIRRORED = """
INSERT INTO bridge_mirrorstate (kind, source_id, is_due)
SELECT 'CommittedResource', id, false FROM commitments_commitment
"""

STATEMENTS: Final = (
    REFUSALS,
    DECISIONS,
    AUDIT,
    EVENTS,
    FAILOVER_EVENTS,
    UNCOVERED,
    SYNC_RUNS,
    FAILOVER_RUNS,
    COMPACTION_RUNS,
    ACCOUNTS,
    HOURS,
    OBSERVED_HOURS,
    PLANS,
    MOVES,
    MIRRORED,
)


def fill_pages_region(hosts: int) -> None:
    """Replace everything in the database by a region, what services made of it, and a past.

    Needs what a command may take: the deadlines of requests are too short.
    """
    empty_database()
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join((*PROVIDER_TABLES, 'bridge_mirrorstate'))} CASCADE")
    import_generated(hosts)
    work_once()
    parameters = {"hosts": hosts, "hours": HOURLY_DAYS * 24}
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in (*STATEMENTS, PROVIDERS, INVENTORIES):
            cursor.execute(statement, parameters)
        cursor.execute(_past(HostHistory, "day", "day", PAST_DAYS))
        cursor.execute(_past(CapacityHistory, "at", "hour", PAST_DAYS * 24))
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def import_generated(hosts: int) -> None:
    """Import a generated region of so many hosts into the empty database."""
    with tempfile.TemporaryDirectory() as folder:
        region = str(Path(folder) / "region.json")
        call_command(
            "generate_region",
            hosts=hosts,
            seed=7,
            vms_per_host=VMS_PER_HOST,
            commitments=hosts * 2 // 5,
            output=region,
            stdout=StringIO(),
        )
        call_command("import_region", region, with_ended=True, stdout=StringIO())


def work_once() -> None:
    """Let the services do once what they do all the time."""
    call_command("refresh_capacity", stdout=StringIO())
    call_command("reconcile_failover", stdout=StringIO())
    reconcile_all_usage(actor=Actor(name="bench"), request_id="bench")
    now = database_now()
    drill_zones(request_id="bench", now=now)
    account_coverage(now=now)
    keep_history(now=now)
    record_decision(_decision(tuple(Host.objects.order_by("pk").values_list("name", flat=True))))


def _decision(hosts: tuple[str, ...]) -> KeptDecision:
    """Return a run over all hosts: three steps leave one in eight, the first of them wins."""
    places = np.arange(len(hosts))
    left = [places % share == 0 for share in (1, 2, 4, 8)]
    steps = [
        KeptStep(
            step=name,
            removed=PackedMask.pack(before & ~after),
            remaining=int(np.count_nonzero(after)),
        )
        for name, before, after in zip(
            ("filter_status", "filter_traits", "filter_capacity"), left, left[1:], strict=False
        )
    ]
    top = [
        Candidate(
            host_name=hosts[place],
            host_id=0,
            score=1 / (place + 1),
            contributions=(("kvm_binpack", 1 / (place + 1)),),
        )
        for place in range(0, min(80, len(hosts)), 8)
    ]
    return KeptDecision(
        request=PlacementRequest(request_key="bench", memory_bytes=8 * GIB, vcpus=2),
        pipeline_name="kvm",
        pipeline_version=1,
        host_names=hosts,
        candidates=PackedMask.pack(left[0]),
        steps=steps,
        top=top,
        hosts_out=steps[-1].remaining,
        target_host_name=hosts[0],
        is_successful=True,
        flavor_group_name="general_v1",
    )


def _past(model: type[models.Model], time: str, span: str, count: int) -> str:
    """Return a statement that copies the present rows of a history to ``count`` earlier spans."""
    meta = model._meta  # noqa: SLF001 - Django's documented model API
    columns = [field.column for field in meta.concrete_fields if field.column not in {"id", time}]
    cast = "date" if span == "day" else "timestamptz"
    return f"""
INSERT INTO {meta.db_table} ({time}, {", ".join(columns)})
SELECT (row.{time} - n * interval '1 {span}')::{cast}, {", ".join(f"row.{c}" for c in columns)}
  FROM {meta.db_table} row CROSS JOIN generate_series(1, {count}) n
    ON CONFLICT DO NOTHING
"""  # noqa: S608 - names of our own
