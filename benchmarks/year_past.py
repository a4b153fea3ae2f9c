"""What a region writes in a day that it keeps: rates and statements of ``bench year``.

Rates are a day's, and follow from the intervals in ``docs/operations.md`` and from how often VMs
come, go and move. Triggers are off while a past is written: it was written when it happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np
from django.db import connection, transaction

from capacity.nova.decision_masks import compress_masks, names_digest, pack_names
from hosts.models import Host

#: Of each host.
BOOTS: Final = 1.0
DELETIONS: Final = 1.0
MOVES: Final = 0.5
VM_EVENTS: Final = BOOTS + DELETIONS + MOVES
#: Of ten VMs so many are in slots of commitments.
IN_SLOTS: Final = 0.6
#: A VM that leaves a commitment lets another one into it.
PERIODS: Final = 2 * IN_SLOTS * BOOTS
VM_DAYS: Final = 20
#: Of how long rows are kept, the time before a look in which they are written: for a part of it
#: they are forgotten as well.
KEPT_SHARE: Final = 1.25
NEAR_DAYS: Final = 2
#: A boot writes a class for each of three, so does a deletion; a move hands them to the migration,
#: claims the new place and gives back the old one.
ALLOCATIONS: Final = 3 * (BOOTS + DELETIONS) + 12 * MOVES
#: Statements that followers read: rooms, slots, VMs and coverage, about 16 for each event of a VM.
LOGGED: Final = 16 * VM_EVENTS
VALIDATIONS: Final = 48
RUNS_OF_LOOP: Final = 2880
HOURS: Final = 24

HELPERS: Final = """
DROP TABLE IF EXISTS bench_vm, bench_commitment, bench_decision, bench_drill, bench_run, bench_slot;
CREATE TABLE bench_vm AS
SELECT row_number() OVER (ORDER BY vm.id) - 1 AS place, vm.openstack_id, vm.project_id, vm.zone,
       vm.flavor_name, vm.memory_bytes, vm.vcpus, vm.host_name, host.openstack_id AS host_uuid
  FROM hosts_instance vm JOIN hosts_host host ON host.id = vm.host_id;
ALTER TABLE bench_vm ADD PRIMARY KEY (place);
CREATE TABLE bench_commitment AS
SELECT row_number() OVER (ORDER BY id) - 1 AS place, commitment_uuid, project_id, zone,
       flavor_group_name, accepted_spec
  FROM commitments_commitment;
ALTER TABLE bench_commitment ADD PRIMARY KEY (place);
CREATE TABLE bench_decision AS SELECT * FROM capacity_schedulingdecision ORDER BY id DESC LIMIT 1;
CREATE TABLE bench_drill AS SELECT * FROM failover_failuredrill;
CREATE TABLE bench_run AS
SELECT DISTINCT ON (zone) * FROM failover_failoverrun ORDER BY zone, id DESC;
CREATE TABLE bench_slot AS
SELECT known.name, held.zone, host.name AS host_name
  FROM failover_failoverreservation known JOIN capacity_reservation held
    ON held.id = known.reservation_id JOIN hosts_host host ON host.id = held.target_host_id;
ANALYZE bench_vm, bench_commitment, bench_slot;
"""
DROP_HELPERS: Final = HELPERS.split(";", maxsplit=1)[0]

#: A day's events, spread over it, each of a VM and a commitment; ``uuid`` is of something new.
_EVENTS = """
  FROM (SELECT n, %(day)s + (n - 0.5) * interval '1 day' / %(rows)s AS at,
               md5(%(kind)s || %(number)s || '.' || n)::uuid AS uuid
          FROM generate_series(1, %(rows)s) n) event
  JOIN bench_vm vm ON vm.place = (event.n * 7919 + %(number)s * 104729) %% %(vms)s
  JOIN bench_commitment row ON row.place = (event.n * 7919 + %(number)s) %% %(commitments)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Rows of a table that a day adds.

    Attributes:
        of_host: Rows for each host.
        of_zone: Rows for each zone.
        of_commitment: Rows for each commitment, or account.
        of_slot: Rows for each failover slot.
        kept_days: How long its rows are kept, where that is less than a year.
    """

    name: str
    statement: str
    of_host: float = 0.0
    of_zone: float = 0.0
    of_commitment: float = 0.0
    of_slot: float = 0.0
    kept_days: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """How much there is of what rates go by."""

    hosts: int
    vms: int
    zones: int
    commitments: int
    slots: int


KINDS: Final = (
    Kind(
        name="audit",
        of_host=IN_SLOTS * (VM_EVENTS + MOVES),
        statement=f"""
INSERT INTO journal_auditentry (created_at, actor, request_id, action, object_type, object_id,
    before, after, reason)
SELECT event.at, 'task:commitments.verify_slots', 'task-' || event.uuid, 'slot_vms_changed',
       'Reservation', md5(row.commitment_uuid || event.n %% 8)::uuid, NULL,
       jsonb_build_object('commitment', row.commitment_uuid),
       'VM ' || vm.openstack_id || ' was seen in it' {_EVENTS}
""",
    ),
    Kind(
        name="changes of commitments, audit",
        of_commitment=0.2,
        statement=f"""
INSERT INTO journal_auditentry (created_at, actor, request_id, action, object_type, object_id,
    before, after, reason)
SELECT event.at, 'limes', 'req-' || event.uuid, 'commitment_changed', 'Commitment',
       row.commitment_uuid, row.accepted_spec, row.accepted_spec, '' {_EVENTS}
""",
    ),
    Kind(
        name="events of commitments",
        of_host=IN_SLOTS * VM_EVENTS,
        statement=f"""
INSERT INTO commitments_commitmentevent (created_at, commitment_uuid, actor, request_id, action,
    before, after, reason, explanation)
SELECT event.at, row.commitment_uuid, 'task:commitments.verify_slots', 'task-' || event.uuid,
       'slot_vms_changed', NULL, NULL,
       'slot ' || event.n %% 8 || ': VM ' || vm.openstack_id || ' was seen in it', NULL {_EVENTS}
""",
    ),
    Kind(
        name="changes of commitments",
        of_commitment=0.2,
        statement=f"""
INSERT INTO commitments_commitmentevent (created_at, commitment_uuid, actor, request_id, action,
    before, after, reason, explanation)
SELECT event.at, row.commitment_uuid, 'limes', 'req-' || event.uuid, 'changed', row.accepted_spec,
       row.accepted_spec, '', NULL {_EVENTS}
""",
    ),
    Kind(
        name="outbox",
        of_host=IN_SLOTS * (VM_EVENTS + MOVES),
        kept_days=7,
        statement=f"""
INSERT INTO journal_outbox (created_at, transaction_id, topic, object_type, object_id, payload)
SELECT event.at, pg_current_xact_id()::text::bigint, 'reservations', 'Reservation', event.uuid,
       jsonb_build_object('commitment', row.commitment_uuid) {_EVENTS}
""",
    ),
    Kind(
        name="allocation events",
        of_host=ALLOCATIONS / 3,
        kept_days=90,
        statement=f"""
INSERT INTO placement_allocation_event (created_at, consumer_uuid, provider_uuid, resource_class,
    amount, previous, actor, request_id)
SELECT event.at, event.uuid, vm.host_uuid::uuid, class.name,
       CASE event.n %% 2 WHEN 0 THEN 64 ELSE 0 END, CASE event.n %% 2 WHEN 0 THEN 0 ELSE 64 END,
       'nova', 'req-' || event.uuid {_EVENTS}
 CROSS JOIN (VALUES ('VCPU'), ('MEMORY_MB'), ('DISK_GB')) AS class(name)
""",
    ),
    Kind(
        name="decisions",
        of_host=BOOTS + MOVES + 0.5,
        kept_days=30,
        statement=f"""
INSERT INTO capacity_schedulingdecision (created_at, vm_uuid, project_id, request_id, pipeline_name,
    pipeline_version, zone, flavor_name, flavor_group_name, memory_bytes, vcpus, is_successful,
    outcome_class, message, hosts_in, hosts_out, target_host_name, top_hosts, removals, listing_id,
    masks, duration_microseconds, intent, intent_reason)
SELECT event.at, event.uuid, vm.project_id, 'req-' || event.uuid, kept.pipeline_name,
       kept.pipeline_version, vm.zone, vm.flavor_name, kept.flavor_group_name, vm.memory_bytes,
       vm.vcpus, kept.is_successful, kept.outcome_class, kept.message, kept.hosts_in,
       kept.hosts_out, vm.host_name, kept.top_hosts, kept.removals,
       (SELECT max(id) FROM capacity_hostlisting) - event.n %% 2, %(masks)s,
       kept.duration_microseconds, 'Create', kept.intent_reason {_EVENTS}
 CROSS JOIN bench_decision kept
""",  # noqa: S608 - constants
    ),
    Kind(
        name="periods",
        of_host=PERIODS,
        statement=f"""
INSERT INTO commitments_assignmentperiod (vm_uuid, resource_type, commitment_uuid, project_id,
    valid_from, valid_to)
SELECT event.uuid, 'memory', row.commitment_uuid, row.project_id, event.at, NULL {_EVENTS}
""",
    ),
    Kind(
        name="hours",
        of_commitment=HOURS,
        statement="""
INSERT INTO commitments_commitmenthour (account_id, at, observed_seconds, promised_amount_seconds,
    used_amount_seconds)
SELECT account.id, %(day)s + n * interval '1 hour', 3600, account.promised_amount * 3600,
       account.used_amount * 3600
  FROM generate_series(0, 23) n CROSS JOIN commitments_commitmentaccount account
""",
    ),
    Kind(
        name="observed hours",
        of_zone=1,
        statement="""
INSERT INTO commitments_observedhour (at, observed_seconds)
SELECT %(day)s + n * interval '1 hour', 3600 FROM generate_series(0, 23) n
    ON CONFLICT DO NOTHING
""",
    ),
    Kind(
        name="refusals",
        of_host=0.01,
        kept_days=90,
        statement=f"""
INSERT INTO commitments_refusedchange (created_at, request_id, actor, zone, is_timeout, reason,
    asked, refused)
SELECT event.at, 'req-' || event.uuid, 'limes', row.zone, false, 'not enough room',
       jsonb_build_array(jsonb_build_object(
           'commitment', row.commitment_uuid, 'project', row.project_id,
           'resource', 'hw_version_' || row.flavor_group_name || '_ram', 'old_status', NULL,
           'new_status', 'confirmed', 'amount_units', event.n)),
       jsonb_build_array(jsonb_build_object(
           'commitment', row.commitment_uuid, 'message', 'not enough room', 'advice', ''))
       {_EVENTS}
""",
    ),
    Kind(
        name="syncs",
        of_zone=HOURS,
        kept_days=90,
        statement="""
INSERT INTO commitments_syncrun (started_at, finished_at, source, outcome, counts, error_code,
    message)
SELECT at, at + interval '9 s', 'limes', 'success', '{"understood": 1200, "missing": 0}', '', ''
  FROM (SELECT %(day)s + n * interval '1 hour' AS at FROM generate_series(0, 23) n) run
""",
    ),
    Kind(
        name="compactions",
        of_zone=HOURS,
        kept_days=90,
        statement="""
INSERT INTO commitments_compactionrun (zone, started_at, finished_at, outcome, hosts_planned,
    hosts_freed, slots_moved, hosts_refused, counts, message, actor, request_id)
SELECT zone, at, at + interval '9 s', 'done', 1, 1, 1, 0, '{"vms": 900, "empty": 80}', '',
       'task:commitments.compact_zone', 'task-' || md5(zone || at)::uuid
  FROM bench_run
 CROSS JOIN (SELECT %(day)s + n * interval '1 hour' AS at FROM generate_series(0, 23) n) run
""",
    ),
    Kind(
        name="runs of failover",
        of_zone=RUNS_OF_LOOP,
        kept_days=30,
        statement=f"""
INSERT INTO failover_failoverrun (zone, number, started_at, finished_at, outcome, is_dry_run,
    request_id, counts, error_code, message)
SELECT zone, %(number)s * {RUNS_OF_LOOP} + n, %(day)s + n * interval '30 s',
       %(day)s + n * interval '30 s' + interval '2 s', outcome, false,
       'failover-' || md5(zone || %(number)s || n)::uuid, counts, '', ''
  FROM bench_run CROSS JOIN generate_series(0, {RUNS_OF_LOOP} - 1) n
""",  # noqa: S608 - constants
    ),
    Kind(
        name="events of failover",
        of_host=2 * VM_EVENTS,
        kept_days=30,
        statement=f"""
INSERT INTO failover_failoverevent (happened_at, reason, is_warning, zone, reservation_name,
    host_name, vm_uuid, message, facts, request_id)
SELECT event.at, CASE event.n %% 2 WHEN 0 THEN 'SlotReused' ELSE 'SlotReleased' END, false, vm.zone,
       'failover-' || left(event.uuid::text, 20), vm.host_name, vm.openstack_id, '', '{{}}',
       'failover-' || event.uuid {_EVENTS}
""",
    ),
    Kind(
        name="passed validations",
        of_slot=VALIDATIONS,
        kept_days=1,
        statement=f"""
INSERT INTO failover_failoverevent (happened_at, reason, is_warning, zone, reservation_name,
    host_name, vm_uuid, message, facts, request_id)
SELECT %(day)s + n * interval '1 day' / {VALIDATIONS}, 'ValidationPassed', false, zone, name,
       host_name, '', '3 users could be evacuated here', '{{"users": 3}}',
       'failover-' || md5(zone || n)::uuid
  FROM generate_series(0, {VALIDATIONS} - 1) n CROSS JOIN bench_slot
""",  # noqa: S608 - constants
    ),
    Kind(
        name="drills",
        of_zone=3,
        kept_days=30,
        statement="""
INSERT INTO failover_failuredrill (zone, scope, started_at, finished_at, request_id, cases,
    simulated, vms, unprotected_vms, worst, hosts)
SELECT zone, scope, %(day)s + interval '2 h', %(day)s + interval '2 h 1 min', request_id, cases,
       simulated, vms, unprotected_vms, worst, hosts
  FROM bench_drill
""",
    ),
    Kind(
        name="shadow plans",
        of_zone=1,
        kept_days=90,
        statement="""
WITH gone AS (
    DELETE FROM failover_shadowplan WHERE computed_at < %(day)s - interval '90 days')
INSERT INTO failover_shadowplan (zone, state, computed_at, request_id, reserved_memory_bytes,
    shadow_memory_bytes, lower_bound_bytes, vm_memory_bytes, slots, steps_done)
SELECT zone, 'not_worth', %(day)s + interval '3 h', request_id, 1 << 40, 1 << 40, 1 << 40, 1 << 40,
       '[]', 0
  FROM bench_run
""",
    ),
    Kind(
        name="logged changes",
        of_host=LOGGED,
        kept_days=1,
        statement="""
INSERT INTO journal_loggedchange (table_name, row_ids, is_deletion, changed_xid, logged_at)
SELECT (ARRAY['hosts_instance', 'capacity_hostcapacity', 'capacity_reservation',
              'capacity_reservationallocation'])[n %% 4 + 1],
       ARRAY(SELECT n::bigint * 31 + k FROM generate_series(0, n %% 5) k), n %% 20 = 0,
       pg_current_xact_id()::text::bigint, %(day)s + n * interval '1 day' / %(rows)s
  FROM generate_series(1, %(rows)s) n
""",
    ),
)

# What a day of real time would have told hour by hour, after the first hour was kept as it is.
OTHER_HOURS: Final = """
INSERT INTO capacity_capacityhistory ({columns})
SELECT {shifted} FROM capacity_capacityhistory row CROSS JOIN generate_series(1, 23) n
 WHERE row.span = 'hour' AND row.at = %(day)s
    ON CONFLICT DO NOTHING
"""
CLOSE_PERIODS: Final = """
UPDATE commitments_assignmentperiod SET valid_to = valid_from + %s * interval '1 day'
 WHERE id > %s AND id <= %s AND valid_to IS NULL
"""
EVACUATION: Final = """
WITH plan AS (
    INSERT INTO failover_evacuationplan (zone, state, failed_hosts, started_at, changed_at,
        finished_at, request_id)
    SELECT zone, 'done', ARRAY[name], %(day)s, %(day)s, %(day)s + interval '1 h', ''
      FROM hosts_host ORDER BY id OFFSET %(number)s %% %(hosts)s LIMIT 1
    RETURNING id, failed_hosts)
INSERT INTO failover_evacuationmove (plan_id, vm_uuid, state, from_host_id, target_host_id,
    reservation_name, is_private, reason, changed_at)
SELECT plan.id, vm.openstack_id, 'arrived', vm.host_id, vm.host_id, '', true, '', %(day)s
  FROM plan JOIN hosts_instance vm ON vm.host_name = plan.failed_hosts[1]
"""
EVACUATION_DAYS: Final = 5
LISTING: Final = """
INSERT INTO capacity_hostlisting (digest, names, created_at) VALUES (%s, %s, %s)
"""


def rows_of(kind: Kind, region: Region) -> int:
    """Return how many rows a day adds."""
    return round(
        kind.of_host * region.hosts
        + kind.of_zone * region.zones
        + kind.of_commitment * region.commitments
        + kind.of_slot * region.slots
    )


class Past:
    """Writes days, one after the other."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self._period_ends: list[int] = []
        self._names = tuple(Host.objects.order_by("pk").values_list("name", flat=True))
        draw = np.random.default_rng(20)
        left = np.ones(len(self._names), dtype=bool)
        masks = [np.packbits(left).tobytes()]
        for _ in range(3):  # each step removes half of those left, wherever they stand
            removed = left & (draw.random(len(left)) < 0.5)  # noqa: PLR2004 - half
            left &= ~removed
            masks.append(np.packbits(removed).tobytes())
        self._masks = compress_masks(masks)

    def write_day(self, day: datetime, number: int, days_to_look: int) -> None:
        """Write what a day adds, but what would be forgotten long before the next look.

        Args:
            day: Its begin.
            number: Which day it is, from 0 on.
            days_to_look: Until the disk is looked at next.
        """
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL session_replication_role = replica")
            for turn in range(2):  # a host came, or went: another list
                names = self._names[: len(self._names) - 1 - (2 * number + turn) % 50]
                names += (f"new-{number}-{turn}",)
                cursor.execute(LISTING, [names_digest(names), pack_names(names), day])
            for kind in KINDS:
                kept = kind.kept_days
                if kept is not None and days_to_look > kept * KEPT_SHARE + NEAR_DAYS:
                    continue
                cursor.execute(kind.statement, self._parameters(kind, day, number))
                if kind.name == "periods":
                    self._close_periods(number)
            if number % EVACUATION_DAYS == 0:
                cursor.execute(
                    EVACUATION, {"day": day, "number": number, "hosts": self.region.hosts}
                )

    def _parameters(
        self, kind: Kind, day: datetime, number: int
    ) -> dict[str, datetime | int | str | bytes]:
        return {
            "day": day,
            "number": number,
            "kind": kind.name,
            "rows": max(1, rows_of(kind, self.region)),
            "vms": self.region.vms,
            "commitments": self.region.commitments,
            "masks": self._masks,
        }

    def _close_periods(self, number: int) -> None:
        """End those that began as many days ago as VMs live."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT coalesce(max(id), 0) FROM commitments_assignmentperiod")
            self._period_ends.append(int((cursor.fetchone() or (0,))[0]))
            if number > VM_DAYS:
                begin, end = self._period_ends[number - VM_DAYS - 1 : number - VM_DAYS + 1]
                cursor.execute(CLOSE_PERIODS, [VM_DAYS, begin, end])


def write_other_hours(day: datetime) -> None:
    """Repeat the capacity of a day's first hour in its other hours."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_name = 'capacity_capacityhistory' AND column_name <> 'id'"
        )
        columns = [row[0] for row in cursor.fetchall()]
        shifted = ["row.at + n * interval '1 hour'" if c == "at" else f"row.{c}" for c in columns]
        statement = OTHER_HOURS.format(columns=", ".join(columns), shifted=", ".join(shifted))
        cursor.execute(statement, {"day": day})


def first_day(days: int, now: datetime) -> datetime:
    """Return the begin of a past of so many days that ends now."""
    return now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days)
