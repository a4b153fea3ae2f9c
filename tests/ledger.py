"""What must hold in the database after anything at all, and a fingerprint of its rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime

from django.db import connection
from django.utils import timezone

from capacity.ledger.vms import Booking, expect_in_slots
from capacity.models import HostCapacity, LeavingRoom, Reservation
from capacity.nova import in_flight
from commitments.domain.statuses import ResourceType
from commitments.models import Commitment, Condition
from hosts.agents.resource_models import HostResource
from scheduling.resources import ZERO, ResourceVector
from tests.blocked_twice import blocked_twice_by_row

KINDS = ("committed", "failover", "in_flight")
TABLES = (
    "commitments_commitment",
    "commitments_commitmentevent",
    "capacity_reservation",
    "capacity_reservationallocation",
    "capacity_hostcapacity",
    "capacity_projectquota",
    "journal_auditentry",
    "journal_outbox",
)


def assert_ledger_holds() -> None:
    """No host is over capacity, rooms equal their reservations, accepted means all slots."""
    connection.check_constraints()  # foreign keys are deferred: look now, not at the commit
    assert_rooms_add_up()
    assert_resources_add_up()
    assert_accepted_commitments_have_their_slots()


def assert_rooms_add_up() -> None:
    held: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in Reservation.objects.all():
        for host_id in {row.target_host_id, row.confirmed_host_id} - {None}:
            sums = held[host_id, row.kind]  # type: ignore[index]  # None was taken out
            sums[0] += row.blocked_memory_bytes
            sums[1] += row.blocked_vcpus
    for leaving in LeavingRoom.objects.all():
        sums = held[leaving.host_id, "committed"]
        sums[0] += leaving.memory_bytes
        sums[1] += leaving.vcpus
    twice = blocked_twice_by_row(list(HostCapacity.objects.values_list("host_id", flat=True)))
    for room in HostCapacity.objects.select_related("host"):
        taken = [room.allocated_memory_bytes, room.allocated_vcpus]
        for kind in KINDS:
            blocked = [getattr(room, f"{kind}_memory_bytes"), getattr(room, f"{kind}_vcpus")]
            assert blocked == held[room.host_id, kind], (room.host.name, kind)
            taken = [left + right for left, right in zip(taken, blocked, strict=True)]
        shared = twice.get(room.host_id, ZERO)  # room of a slot that a VM in flight may use
        assert taken[0] - shared.memory_bytes <= room.effective_memory_bytes, room.host.name
        assert taken[1] - shared.vcpus <= room.effective_vcpus, room.host.name


def assert_resources_add_up() -> None:
    held: dict[tuple[int, str], int] = defaultdict(int)
    for row in Reservation.objects.filter(kind="committed"):
        for host_id in {row.target_host_id, row.confirmed_host_id} - {None}:
            held[host_id, "network"] += row.held_network_bps  # type: ignore[index]  # as above
            held[host_id, "disk_io"] += row.held_disk_io_bps  # type: ignore[index]
            held[host_id, "gpu"] += row.held_gpus  # type: ignore[index]
    for leaving in LeavingRoom.objects.all():
        held[leaving.host_id, "network"] += leaving.network_bps
        held[leaving.host_id, "disk_io"] += leaving.disk_io_bps
        held[leaving.host_id, "gpu"] += leaving.gpus
    rows = HostResource.objects.values_list("host_id", "resource", "reserved")
    counted = {(host_id, resource): amount for host_id, resource, amount in rows if amount}
    assert counted == {key: amount for key, amount in held.items() if amount}


def assert_accepted_commitments_have_their_slots() -> None:
    now = timezone.now()
    for row in Commitment.objects.prefetch_related("slots"):
        slots = list(row.slots.all())
        is_over = row.end_time is not None and row.end_time <= now
        if row.resource_type != ResourceType.MEMORY:
            assert not slots, row
        elif row.ready_reason == Condition.ACCEPTED and not is_over:
            held_bytes = sum(slot.memory_bytes for slot in slots)
            assert held_bytes >= row.requested_amount, row
            assert all(slot.target_host_id is not None for slot in slots), row
            assert {slot.zone for slot in slots} <= {row.zone}, row
        elif row.state in {"planned", "superseded", "expired"}:
            assert not [slot for slot in slots if not slot.allocations.exists()], row


def expect_in_slot(
    reservation_id: int, vm_uuid: str, resources: ResourceVector, *, now: datetime
) -> Booking:
    """Book a VM into one committed slot."""
    return expect_in_slots([reservation_id], vm_uuid, resources, now=now)


def end_placement(vm_uuid: str) -> int:
    """End all in-flight rows of one VM."""
    rows = Reservation.objects.filter(kind="in_flight", vm_uuid=vm_uuid)
    return in_flight._end(list(rows.values_list("pk", flat=True)), cause="aborted")


def fingerprint(*more_tables: str) -> tuple[tuple[str, str], ...]:
    """Return a hash of all rows of every table that requests may write, and of others."""
    hash_of = (
        "SELECT '{0}', coalesce(md5(string_agg(row::text, '|' ORDER BY id)), '') FROM {0} AS row"
    )
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(map(hash_of.format, (*TABLES, *more_tables))))
        return tuple(sorted(cursor.fetchall()))


def database_fingerprint() -> dict[str, str]:
    """Return a hash of all rows of every table there is, and where every sequence stands."""
    prints = {}
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        for (table,) in sorted(cursor.fetchall()):
            cursor.execute(
                f"SELECT coalesce(md5(string_agg(row::text, '|' ORDER BY row::text)), '')"  # noqa: S608
                f' FROM "{table}" AS row'
            )
            prints[table] = str((cursor.fetchone() or [""])[0])
        cursor.execute(
            "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'public'"
        )
        prints |= {name: str(last) for name, last in cursor.fetchall()}
    return prints


def unchanged_since(before: Mapping[str, str]) -> bool:
    """Compare all rows of all tables.

    Sequences move on although rolled back, capacity is counted anew when cores are asked for, which
    the log of changes tells, and a refusal is kept.
    """
    after = database_fingerprint()
    differing = {name for name in before if before[name] != after[name]}
    counted = {"capacity_capacitycomputation", "capacity_groupcapacity", "capacity_flavorcapacity"}
    expected = counted | {"commitments_refusedchange", "journal_loggedchange"}
    return not {name for name in differing - expected if not name.endswith("_seq")}
