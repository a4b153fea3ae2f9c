"""In-flight reservations: made with a placement, ended in every way (spec commitments, 12).

A row blocks its size on one host that was returned for a VM; the rows of one placement share its
id. They are made in the transaction that decides the placement (:func:`hold_in_flight`) and end
when the VM landed, failed, went or took too long. What an end gives back is counted in the same
transaction, also in slots that expect the VM. No entry in the journal is written: the decision
record tells of the placement, and rows live for minutes.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError, models, transaction

from capacity.ledger.in_flight_end import (
    InFlightPlacement,
    InFlightState,
    VMSighting,
    has_failed,
    in_flight_lifetime,
    in_flight_state,
    intent_label,
    is_gone,
)
from capacity.ledger.in_flight_statements import (
    DELETE_ROWS,
    HOLD_ALONE,
    HOLD_FREE,
    IS_EXPECTED,
    hold_room_statement,
)
from capacity.ledger.moving import CREATOR as MOVING
from capacity.ledger.rooms import lock_rooms, shift_blocks
from capacity.ledger.vms import refresh_slots_expecting
from capacity.locks import LOCK_FIRST, LockSpace, lock_alone, lock_first
from capacity.metrics import EXPIRED_IN_FLIGHT
from capacity.models import Reservation, ReservationKind
from core.chunks import in_chunks
from core.prepared import fetch_prepared
from hosts.feed.lists import PassKind
from hosts.feed.state import known_until
from hosts.models import Host, Instance
from journal.clock import TOLERANCE, database_now
from journal.outages import sqlstate_of
from journal.statements import Row, fetch_rows, fetch_together
from scheduling.resources import ZERO, ResourceVector

log = structlog.get_logger(__name__)

CREATOR = "placement"
ROWS_PER_TRANSACTION = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightAsk:
    """A VM that needs room on the hosts it may be sent to.

    Attributes:
        resources: What each host must hold for it.
        intent: What the placement is for.
        project_id: Project of the VM; its slots of ``flavor_group_name`` give it room.
        flavor_group_name: Group of the flavor; empty if it is in none.
        user_id: Who asked Nova.
        domain_id: Domain of the project.
        source_host: Host the VM comes from, as the caller says; the VM list knows better.
        lock_reservations: Whether committed slots give no room.
        ignored_kinds: Kinds of reservations that block nothing.
    """

    vm_uuid: str
    resources: ResourceVector
    intent: str
    project_id: str = ""
    flavor_group_name: str = ""
    flavor_name: str = ""
    user_id: str = ""
    domain_id: str = ""
    source_host: str = ""
    lock_reservations: bool = False
    ignored_kinds: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightHold:
    """The rows of one placement.

    Attributes:
        placement_id: Shared by the rows.
        resources: What each host holds.
        host_names: Hosts that hold room, in the order of the candidates; the first is the target.
        host_ids: Their primary keys, in the same order.
        start_time: When they were made.
        end_time: When the rows expire.
    """

    placement_id: uuid.UUID
    vm_uuid: str
    resources: ResourceVector
    host_names: tuple[str, ...]
    host_ids: tuple[int, ...]
    start_time: datetime
    end_time: datetime


def hold_in_flight(
    ask: InFlightAsk,
    *,
    candidates: Sequence[str],
    request_id: str,
    now: datetime | None = None,
    max_held: int = 0,
    snapshot: str = "",
) -> InFlightHold | None:
    """Hold room for a VM on the candidates that still have it, and give back what it held before.

    Runs inside the transaction of its caller, which rolls back when there is no hold. Locks: the
    VM, then the rooms of all candidates and of its previous hosts, by primary key.

    Args:
        candidates: Host names, best first, each once.
        now: Time of the placement; when the rooms were locked if left out.
        max_held: Most hosts to hold; 0 is no limit.
        snapshot: Text of the ``pg_snapshot`` the candidates were chosen on; hosts that changed
            since are passed over. Empty skips this.

    Returns:
        The rows that were made; None if no candidate has room.

    Source: spec commitments, 12.1; scheduling, 16.2 and 16.3.
    """
    parameters = _hold_parameters(ask, request_id=request_id, max_held=max_held, snapshot=snapshot)
    parameters |= {"names": list(candidates), "now": now}
    first = _locked_and_held(parameters)
    if first.previous_rows:
        _delete(first.previous_rows)
        first = _locked_and_held(parameters)
    hold = _hold_of(ask, first, parameters)
    taken, is_expected = first.taken, first.is_expected
    if not taken:
        taken, is_expected = _hold_with_slots(ask, hold, parameters)
    if not taken:
        return None
    if is_expected:
        refresh_slots_expecting([ask.vm_uuid])
    return _narrowed(hold, taken)


def hold_alone(
    ask: InFlightAsk,
    *,
    candidates: Sequence[str],
    request_id: str,
    now: datetime | None = None,
    max_held: int = 0,
    snapshot: str = "",
) -> InFlightHold | None:
    """Do what :func:`hold_in_flight` does for nearly every VM, in one statement that commits.

    Runs outside of any transaction, for callers that have nothing else to do in it.

    Returns:
        The rows that were made. None, with nothing changed, if no candidate has room without what
        slots give, if the VM holds rows already, or if slots expect it.
    """
    parameters = _hold_parameters(ask, request_id=request_id, max_held=max_held, snapshot=snapshot)
    parameters |= {"names": list(candidates), "now": now}
    parameters |= lock_alone(LockSpace.PLACED_VM, ask.vm_uuid)
    try:
        (row,) = fetch_prepared(HOLD_ALONE, parameters)
    except DatabaseError as error:
        if sqlstate_of(error) != IS_EXPECTED:
            raise
        return None
    first = _free_hosts(row)
    return _narrowed(_hold_of(ask, first, parameters), first.taken) if first.taken else None


def _hold_of(
    ask: InFlightAsk,
    first: _FreeHosts,
    parameters: Mapping[str, Any],  # Any: several types
) -> InFlightHold:
    """Return what would be held on all candidates."""
    return InFlightHold(
        placement_id=parameters["placement_id"],
        vm_uuid=ask.vm_uuid,
        resources=ask.resources,
        host_names=tuple(first.host_ids),
        host_ids=tuple(first.host_ids.values()),
        start_time=first.start_time,
        end_time=first.start_time + parameters["lifetime"],
    )


def _narrowed(hold: InFlightHold, taken: Collection[int]) -> InFlightHold:
    pairs = zip(hold.host_names, hold.host_ids, strict=True)
    held = [(name, host_id) for name, host_id in pairs if host_id in taken]
    return replace(
        hold,
        host_names=tuple(name for name, _ in held),
        host_ids=tuple(host_id for _, host_id in held),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _FreeHosts:
    """Candidates whose rooms are locked, and those that were taken.

    Attributes:
        start_time: When the placement is, by default when the rooms were locked.
        host_ids: Candidates that exist by name, in their order.
        previous_rows: Keys of the VM's in-flight rows; nothing is taken while there are any.
        taken: Keys of the best hosts, if they all had room without what slots give.
        is_expected: Whether slots expect the VM that was placed.
    """

    start_time: datetime
    host_ids: Mapping[str, int]
    previous_rows: Sequence[int]
    taken: Collection[int]
    is_expected: bool


def _locked_and_held(parameters: Mapping[str, Any]) -> _FreeHosts:  # Any: several types
    """Lock the VM, the rooms of candidates that exist, and of hosts it holds; take the best."""
    lock = lock_first(LockSpace.PLACED_VM, parameters["vm_uuid"])
    *_, [row] = fetch_together([LOCK_FIRST + HOLD_FREE], {**parameters, **lock})
    return _free_hosts(row)


def _free_hosts(row: Row) -> _FreeHosts:
    start_time, host_ids, names, previous, taken, is_expected = row
    return _FreeHosts(
        start_time=start_time,
        host_ids=dict(zip(names or (), host_ids or (), strict=True)),
        previous_rows=previous or (),
        taken=frozenset(taken or ()),
        is_expected=is_expected,
    )


def _hold_parameters(
    ask: InFlightAsk, *, request_id: str, max_held: int, snapshot: str
) -> dict[str, Any]:  # Any: parameters of several types
    chosen = settings.HEADROOM.in_flight
    return {
        "vm_uuid": ask.vm_uuid,
        "memory_bytes": ask.resources.memory_bytes,
        "vcpus": ask.resources.vcpus,
        "ignored": sorted(ask.ignored_kinds),
        "is_locked": ask.lock_reservations,
        "project_id": ask.project_id,
        "group": ask.flavor_group_name,
        "intent": ask.intent,
        "snapshot": snapshot,
        "max_held": max_held or None,
        "lifetime": in_flight_lifetime(
            ask.intent,
            ttl_seconds=chosen.ttl_seconds,
            slow_ttl_seconds=chosen.slow_ttl_seconds,
        ),
        "flavor_name": ask.flavor_name,
        "domain_id": ask.domain_id,
        "user_id": ask.user_id,
        "creator": CREATOR,
        "request_id": request_id,
        "source_host_id": _source_host_id(ask),
        "placement_id": uuid.uuid4(),
    }


def _hold_with_slots(
    ask: InFlightAsk, wanted: InFlightHold, parameters: Mapping[str, Any]
) -> tuple[set[int], bool]:
    """Take room where slots give it and make rows; return the hosts, and whether slots expect it.

    Not all of the best hosts are free without what slots give.
    """
    chosen = {
        **parameters,
        "host_ids": list(wanted.host_ids),
        "now": wanted.start_time,
        "end_time": wanted.end_time,
    }
    rows = fetch_rows(hold_room_statement(ask.ignored_kinds), chosen)
    return {host_id for host_id, _ in rows}, bool(rows and rows[0][1])


def _source_host_id(ask: InFlightAsk) -> int | None:
    """Return where the VM is now; a new VM is nowhere (spec commitments, 12.1)."""
    if ask.intent == "create":
        return None
    listed = Instance.objects.filter(openstack_id=ask.vm_uuid, host__isnull=False)
    found = listed.values_list("host_id", flat=True).first()
    if found is None and ask.source_host:
        return Host.objects.filter(name=ask.source_host).values_list("pk", flat=True).first()
    return found


def end_landed(vm_uuids: Collection[str] | None = None) -> int:
    """End all in-flight rows, on all hosts, of the VMs that have landed.

    Args:
        vm_uuids: VMs to look at; every VM with rows when left out.

    Returns:
        How many rows ended.

    Source: spec commitments, 12.3 rule 1.
    """
    ended = [
        row_id
        for vm in _placed_vms(vm_uuids)
        if vm.state is InFlightState.LANDED
        for row_id in vm.row_ids
    ]
    return _end(ended, cause="landed")


def end_failed_vms(vm_uuids: Collection[str] | None = None, *, now: datetime | None = None) -> int:
    """End the in-flight rows of VMs that Nova gave up: in error, deleted, or listed no more.

    An empty VM list proves nothing: then nobody counts as gone.

    Args:
        vm_uuids: VMs to look at; every VM with rows when left out.
        now: The present; the clock's when left out.

    Returns:
        How many rows ended.

    Source: spec commitments, 12.3 rule 4; scheduling, 16.3.
    """
    now = now or database_now()
    ended: list[int] = []
    is_list_known: bool | None = None
    for vm in _placed_vms(vm_uuids):
        is_over = vm.has_failed
        if not is_over and is_gone(
            vm.placement,
            is_listed=vm.is_listed,
            placed_at=vm.placed_at,
            now=known_until(now),
            gone_seconds=settings.HEADROOM.in_flight.gone_seconds,
        ):
            if is_list_known is None:
                is_list_known = Instance.objects.exists()
            is_over = is_list_known
        if is_over:
            ended.extend(vm.row_ids)
    return _end(ended, cause="failed")


def end_expired(now: datetime | None = None) -> int:
    """End the in-flight rows past their end and count them by intent.

    An end further ahead than a row can live is a wrong clock's, and counts as past.

    Args:
        now: The present; the clock's when left out.

    Returns:
        How many rows ended.

    Source: spec commitments, 12.3 rule 2.
    """
    moment, chosen = now or database_now(), settings.HEADROOM.in_flight
    longest = timedelta(seconds=max(chosen.ttl_seconds, chosen.slow_ttl_seconds))
    expired = (
        Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT)
        .filter(
            models.Q(end_time__lte=known_until(moment)) & ~models.Q(creator=MOVING)
            | models.Q(end_time__lte=known_until(moment, PassKind.MIGRATIONS), creator=MOVING)
            | models.Q(end_time__gt=moment + longest + TOLERANCE)
        )
        .order_by("vm_uuid", "pk")
    )
    return _end(list(expired.values_list("pk", flat=True)), cause="expired")


def after_vm_changes(vm_uuids: Collection[str] | None = None) -> int:
    """End what a change of the VM list ends; importers and syncs call it once the list is written.

    Args:
        vm_uuids: VMs that changed, came or went; every VM when left out.

    Returns:
        How many rows ended.
    """
    return end_landed(vm_uuids) + end_failed_vms(vm_uuids)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlacedVM:
    vm_uuid: str
    row_ids: tuple[int, ...]
    placement: InFlightPlacement
    placed_at: datetime | None
    state: InFlightState
    is_listed: bool
    has_failed: bool


def _placed_vms(vm_uuids: Collection[str] | None) -> list[_PlacedVM]:
    """Read the placed VMs of interest with their sightings, in two queries."""
    by_vm: defaultdict[str, list[Reservation]] = defaultdict(list)
    rows = _rows_of(vm_uuids).select_related("target_host", "source_host").order_by("pk")
    for row in rows:
        by_vm[row.vm_uuid].append(row)
    listed = {
        vm.openstack_id: vm
        for vm in Instance.objects.filter(openstack_id__in=by_vm).select_related("host")
    }
    return [_placed_vm(rows, listed.get(vm_uuid)) for vm_uuid, rows in sorted(by_vm.items())]


def _placed_vm(rows: Sequence[Reservation], vm: Instance | None) -> _PlacedVM:
    first = rows[0]
    placement = InFlightPlacement(
        intent=first.intent,
        hosts=frozenset(row.target_host.name for row in rows if row.target_host is not None),
        resources=ResourceVector(memory_bytes=first.memory_bytes, vcpus=first.vcpus),
        source_host=first.source_host.name if first.source_host is not None else "",
    )
    return _PlacedVM(
        vm_uuid=first.vm_uuid,
        row_ids=tuple(row.pk for row in rows),
        placement=placement,
        placed_at=first.start_time,
        state=in_flight_state(placement, _sighting(vm)),
        is_listed=vm is not None,
        has_failed=vm is not None
        and has_failed(
            status=vm.status,
            vm_state=vm.vm_state,
            updated_at=vm.nova_updated_at,
            placed_at=first.start_time,
        ),
    )


def _sighting(vm: Instance | None) -> VMSighting | None:
    """Return where a VM is listed; a host that we do not know counts by its name."""
    if vm is None:
        return None
    host_name = vm.host.name if vm.host is not None else vm.host_name
    return VMSighting(
        hosts=frozenset({host_name} - {""}),
        resources=ResourceVector(memory_bytes=vm.memory_bytes, vcpus=vm.vcpus),
    )


def _rows_of(vm_uuids: Collection[str] | None) -> models.QuerySet[Reservation]:
    """Return the rows of placements; those of migrations end with these."""
    rows = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT).exclude(creator=MOVING)
    return rows if vm_uuids is None else rows.filter(vm_uuid__in=vm_uuids)


def _end(row_ids: Sequence[int], *, cause: str) -> int:
    """End rows in batches, each with what it gives back in one transaction."""
    ended: Counter[str] = Counter()
    for batch in in_chunks(row_ids, ROWS_PER_TRANSACTION):
        with transaction.atomic():
            rows = Reservation.objects.filter(pk__in=batch, kind=ReservationKind.IN_FLIGHT)
            lock_rooms(
                host_id
                for host_id in rows.values_list("target_host_id", flat=True)
                if host_id is not None
            )
            intents, vm_uuids = _delete(batch)
            refresh_slots_expecting(vm_uuids)
            if cause == "expired":
                transaction.on_commit(partial(_count_expired, intents))
        ended.update(intents)
    if ended:
        log.info("in_flight_ended", cause=cause, rows=ended.total(), intents=dict(ended))
    return ended.total()


def _delete(row_ids: Sequence[int]) -> tuple[Counter[str], set[str]]:
    """Delete rows whose rooms are locked, give back what they block; return intents and VMs."""
    if not row_ids:
        return Counter(), set()
    gone = fetch_rows(DELETE_ROWS, [list(row_ids)])
    given_back: dict[int, ResourceVector] = {}
    for _, _, host_id, memory_bytes, vcpus in gone:
        block = ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus)
        given_back[host_id] = given_back.get(host_id, ZERO) - block
    shift_blocks(ReservationKind.IN_FLIGHT, given_back)
    return Counter(intent_label(row[1]) for row in gone), {row[0] for row in gone}


def _count_expired(intents: Mapping[str, int]) -> None:
    for intent, count in intents.items():
        EXPIRED_IN_FLIGHT.labels(intent=intent).inc(count)
