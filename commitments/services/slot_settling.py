"""Writing what became of the VMs in some slots, inside the caller's transaction (commitments, 9).

Locks rooms of all hosts concerned by primary key, then the slots; the caller holds the zone lock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from capacity.ledger.apply import join_slots, leave_slots, move_slots, write_slots, write_vms
from capacity.ledger.blocking import blocked_resources
from capacity.ledger.claims import KnownClaims, known_claims, regroup_claim
from capacity.ledger.plan import Move, Standing
from capacity.ledger.rooms import lock_reservations, refresh_blocks
from capacity.ledger.sharing import share_vm
from capacity.models import (
    AllocationState,
    FlavorGroup,
    ReadyReason,
    Reservation,
    ReservationAllocation,
    ReservationKind,
)
from commitments.domain.classify import TrackedSlot, pick_slots
from commitments.domain.verification import (
    ListedVM,
    Patience,
    Sighting,
    SlotVerdict,
    SlotVMs,
    VMFate,
    VMVerdict,
    verify_slot,
)
from commitments.selectors.slot_suspects import arrivals_at
from commitments.services.nudges import nudge_owners
from commitments.services.slot_story import REVOKED, SlotNews, record_slot_news
from hosts.domain.vm import ABSENT_STATUSES
from hosts.listing import deleted_vms
from hosts.models import Flavor, Host, Instance
from journal.actors import Actor
from journal.clock import trusted
from scheduling.resources import ZERO, ResourceVector

AWAITS_CONFIRMATION = "VERIFY_RESIZE"
"""Status of a VM whose resize may still be taken back."""
LONG_AGO = datetime.min.replace(tzinfo=UTC)
"""Since when a VM is waited for that a fast clock noted: too long."""
ADOPTED = "adopted"
SETTLED = "slots_settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkContext:
    """How slots are looked at.

    Attributes:
        zone: Their zone.
        known_until: Until when is known where VMs are; what is waited for may have come later.
        patience: How long to wait for VMs that are not seen.
        adopts: Whether VMs that nobody booked may enter.
        actor: Who looks.
    """

    zone: str
    now: datetime
    known_until: datetime
    patience: Patience
    adopts: bool
    actor: Actor
    request_id: str


@dataclass(slots=True, kw_only=True)
class _Chunk:
    """What is read, decided and written for some slots; gone when the transaction ends."""

    context: ChunkContext
    slots: dict[int, Reservation]
    vms: dict[int, list[ReservationAllocation]]
    sightings: Mapping[str, Sighting]
    hosts: Mapping[int, Host]
    in_flight: frozenset[str]
    known_groups: frozenset[str]
    claims: KnownClaims
    deleted: frozenset[str]
    events: Counter[str] = field(default_factory=Counter)
    news: dict[int, SlotNews] = field(default_factory=dict)
    confirmed: list[ReservationAllocation] = field(default_factory=list)
    missing: list[ReservationAllocation] = field(default_factory=list)
    left: set[int] = field(default_factory=set)
    created: list[ReservationAllocation] = field(default_factory=list)
    moved: list[Reservation] = field(default_factory=list)
    seen_at: dict[str, int] = field(default_factory=dict)
    followed: set[int] = field(default_factory=set)
    rows_of: defaultdict[str, list[ReservationAllocation]] = field(
        default_factory=lambda: defaultdict(list)
    )
    shared: frozenset[int] = frozenset()
    misgrouped: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Note which slots list a VM, and which VMs are in several slots of a host."""
        for slot_id in sorted(self.vms):
            for row in self.vms[slot_id]:
                self.rows_of[row.vm_uuid].append(row)
        self.shared = frozenset(
            row.pk
            for rows in self.rows_of.values()
            for row in rows
            if len(self.parts_at(row.vm_uuid, self.slots[row.reservation_id].target_host_id)) > 1
        )

    def inside(self, slot: Reservation) -> list[ReservationAllocation]:
        """Return the VMs of a slot that did not leave it in this run."""
        return [row for row in self.vms.get(slot.pk, ()) if row.pk not in self.left]

    def parts_at(self, vm_uuid: str, host_id: int | None) -> list[ReservationAllocation]:
        """Return the parts of a VM in slots of a host, by slot."""
        return [
            row
            for row in self.rows_of[vm_uuid]
            if row.pk not in self.left and self.slots[row.reservation_id].target_host_id == host_id
        ]

    def move(self, slot: Reservation, move: Move) -> bool:
        """Let a slot go where it goes; False if there is no room for it, and nothing changed."""
        if move_slots(self.slots, [move], now=self.context.now):
            return False
        self.moved.append(slot)
        return True

    def tell(self, slot: Reservation, line: str) -> None:
        """Add a line to the story of a slot."""
        news = self.news.setdefault(slot.pk, SlotNews(slot=slot))
        news.lines.append(line)

    def host(self, host_id: int | None) -> str:
        """Return the name of a host."""
        host = self.hosts.get(host_id or 0)
        return "no host" if host is None else host.name

    def is_awaited_at(self, vm_uuid: str, host_id: int) -> bool:
        """Whether some slot on a host lists a VM, other than one that followed it there now."""
        return any(
            row.reservation_id not in self.followed for row in self.parts_at(vm_uuid, host_id)
        )


def settle_chunk(slot_ids: Sequence[int], context: ChunkContext) -> Counter[str]:
    """Verify slots and write what differs.

    Args:
        slot_ids: Slots of one zone.
        context: How.

    Returns:
        What happened, to how many VMs or slots; empty when everything was as it should be.
    """
    chunk = _read(slot_ids, context)
    revoked = [slot for slot in _chosen(chunk, slot_ids) if slot.target_host_id is None]
    for slot in revoked:
        _revoke(chunk, slot)
    placed = [slot for slot in _chosen(chunk, slot_ids) if slot.target_host_id is not None]
    for slot in placed:
        _settle_host(chunk, slot)
        _apply(chunk, slot, _judge(chunk, slot))
    if context.adopts:
        _adopt_arrivals(chunk, [slot.pk for slot in placed])
    _write(chunk)
    _regroup(chunk)
    nudge_owners([slot.pk for slot in revoked if slot.pk in chunk.news], context.now)
    record_slot_news(list(chunk.news.values()), actor=context.actor, request_id=context.request_id)
    return chunk.events


def _read(slot_ids: Sequence[int], context: ChunkContext) -> _Chunk:
    uuids = set(
        ReservationAllocation.objects.filter(reservation_id__in=slot_ids).values_list(
            "vm_uuid", flat=True
        )
    )
    if context.adopts:
        uuids.update(arrivals_at(context.zone, list(slot_ids)))
    others = ReservationAllocation.objects.filter(
        vm_uuid__in=uuids, reservation__kind=ReservationKind.COMMITTED
    ).values_list("reservation_id", flat=True)
    ids = {*slot_ids, *others}
    pairs = Reservation.objects.filter(pk__in=ids).values_list(
        "target_host_id", "confirmed_host_id"
    )
    seen_on = Instance.objects.filter(openstack_id__in=uuids, host__isnull=False)
    wanted = {host_id for pair in pairs for host_id in pair if host_id is not None}
    wanted.update(h for h in seen_on.values_list("host_id", flat=True) if h is not None)
    slots = lock_reservations(ids, hosts=wanted)
    vms: defaultdict[int, list[ReservationAllocation]] = defaultdict(list)
    for row in ReservationAllocation.objects.filter(reservation_id__in=slots).order_by("vm_uuid"):
        vms[row.reservation_id].append(row)
    uuids.update(row.vm_uuid for rows in vms.values() for row in rows)
    sightings, host_ids = _sightings(uuids)
    in_flight = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT, vm_uuid__in=uuids)
    hosts = Host.objects.in_bulk(wanted | host_ids)
    claims = known_claims(uuids, wanted | host_ids)
    return _Chunk(
        context=context,
        slots=slots,
        vms=dict(vms),
        sightings={uuid: _as_claimed(uuid, seen, claims) for uuid, seen in sightings.items()},
        hosts=hosts,
        in_flight=frozenset(in_flight.values_list("vm_uuid", flat=True)),
        known_groups=_known_groups(slot.flavor_group_name for slot in slots.values()),
        claims=claims,
        deleted=deleted_vms(uuids),
    )


def _known_groups(names: Iterable[str]) -> frozenset[str]:
    """Return the groups of which it is known which flavors are in them: those not retired."""
    known = FlavorGroup.objects.filter(name__in=set(names), is_retired=False)
    return frozenset(known.values_list("name", flat=True))


def _sightings(uuids: Collection[str]) -> tuple[dict[str, Sighting], set[int]]:
    rows = list(
        Instance.objects.filter(openstack_id__in=uuids)
        .exclude(status__in=ABSENT_STATUSES)
        .values_list(
            "openstack_id",
            "host_id",
            "memory_bytes",
            "vcpus",
            "task_state",
            "status",
            "flavor_name",
        )
    )
    flavors = Flavor.objects.filter(name__in={row[-1] for row in rows})
    group_of = dict(flavors.values_list("name", "membership__group__name"))
    sightings = {
        uuid: Sighting(
            host_id=host_id,
            resources=ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus),
            is_moving=bool(task_state) or status == AWAITS_CONFIRMATION,
            group=group_of[flavor] or "" if flavor in group_of else None,
        )
        for uuid, host_id, memory_bytes, vcpus, task_state, status, flavor in rows
    }
    return sightings, {s.host_id for s in sightings.values() if s.host_id is not None}


def _as_claimed(vm_uuid: str, seen: Sighting, claims: KnownClaims) -> Sighting:
    """Return a sighting with what the VM holds there, which its host's room counts."""
    held = claims.held_on(vm_uuid, seen.host_id)
    return seen if held is None else replace(seen, resources=held)


def _chosen(chunk: _Chunk, slot_ids: Iterable[int]) -> list[Reservation]:
    return [chunk.slots[slot_id] for slot_id in slot_ids if slot_id in chunk.slots]


def _revoke(chunk: _Chunk, slot: Reservation) -> None:
    """Clear a slot whose host was taken away (spec commitments, 9.2 step 4a)."""
    vms = chunk.vms.get(slot.pk, [])
    if slot.confirmed_host_id is None and not slot.is_ready and not vms:
        return
    before = chunk.host(slot.confirmed_host_id)
    chunk.left.update(row.pk for row in vms)
    standing = Standing(
        reason=ReadyReason.REVOKED,
        message="its host was taken away; it is placed again",
        decision=slot.decision,
        is_observed=True,
    )
    chunk.move(slot, Move(slot_id=slot.pk, standing=standing))
    chunk.events[REVOKED] += 1
    chunk.tell(slot, f"lost its host {before}")


def _settle_host(chunk: _Chunk, slot: Reservation) -> None:
    """Let a slot be where it was told to go (spec commitments, 9.2 steps 5 and 6)."""
    before = slot.confirmed_host_id
    if before == slot.target_host_id:
        return
    is_made_for_vms = not slot.is_ready and bool(chunk.vms.get(slot.pk))
    standing = Standing(
        reason=ReadyReason.PRE_ALLOCATED if is_made_for_vms else ReadyReason.ACTIVE,
        message=slot.ready_message,
        decision=slot.decision,
        is_observed=True,
    )
    move = Move(slot_id=slot.pk, host_id=slot.target_host_id, block=slot.blocked, standing=standing)
    chunk.move(slot, move)
    chunk.events[SETTLED] += 1
    chunk.tell(slot, f"is on {chunk.host(slot.target_host_id)} now, was on {chunk.host(before)}")


def _judge(chunk: _Chunk, slot: Reservation) -> SlotVerdict:
    assert slot.target_host_id is not None  # noqa: S101 - only placed slots are judged
    vms = tuple(_listed(chunk, slot, row) for row in chunk.inside(slot))
    return verify_slot(
        SlotVMs(
            slot_id=slot.pk,
            host_id=slot.target_host_id,
            vms=vms,
            group=slot.flavor_group_name if slot.flavor_group_name in chunk.known_groups else "",
        ),
        chunk.sightings,
        now=chunk.context.known_until,
        patience=chunk.context.patience,
        can_follow=lambda host_id: _take_room(chunk, slot, vms[0].vm_uuid, host_id),
    )


def _listed(chunk: _Chunk, slot: Reservation, row: ReservationAllocation) -> ListedVM:
    parts, now = chunk.parts_at(row.vm_uuid, slot.target_host_id), chunk.context.now
    return ListedVM(
        vm_uuid=row.vm_uuid,
        is_confirmed=row.state == AllocationState.CONFIRMED,
        since=trusted(row.since, now) or LONG_AGO,
        resources=sum((part.size for part in parts), ZERO),
        missing_since=(trusted(row.missing_since, now) or LONG_AGO) if row.missing_since else None,
        is_in_flight=row.vm_uuid in chunk.in_flight,
        claimed_on=chunk.claims.hosts_of(row.vm_uuid),
        is_denied=chunk.claims.deny(row.vm_uuid, slot.target_host_id),
        is_claim_listed=row.vm_uuid in chunk.claims.listed,
        is_deleted=row.vm_uuid in chunk.deleted,
    )


def _take_room(chunk: _Chunk, slot: Reservation, vm_uuid: str, host_id: int) -> bool:
    """Take the room that a slot blocks beyond its VM on another host of its zone, if it is there.

    Asked once per slot, for its only VM; the room of the old host is given back. A slot does not
    follow where another one waits for the VM. Filters are not asked: the VM is there already, so
    who moved it decided that (spec commitments, 9.3 and 10.3). Where claims are known and it has
    none on the new host, its own room is not taken there either, and the slot stays.
    """
    host = chunk.hosts.get(host_id)
    if host is None or host.zone != slot.zone or slot.target_host_id is None:
        return False
    if chunk.is_awaited_at(vm_uuid, host_id) or chunk.claims.deny(vm_uuid, host_id):
        return False
    part = _part_that_moves(chunk, chunk.inside(slot)[0])
    block = blocked_resources(slot=slot.size, confirmed=part)
    before = chunk.host(slot.target_host_id)
    if not chunk.move(slot, Move(slot_id=slot.pk, host_id=host_id, block=block)):
        return False
    chunk.followed.add(slot.pk)
    chunk.tell(slot, f"followed its VM from {before} to {host.name}")
    return True


def _part_that_moves(chunk: _Chunk, row: ReservationAllocation) -> ResourceVector:
    """Return what of a moved VM is in a slot that follows it: its part, or all as it is now."""
    return row.size if row.pk in chunk.shared else chunk.sightings[row.vm_uuid].resources


def _apply(chunk: _Chunk, slot: Reservation, verdict: SlotVerdict) -> None:
    for row, vm in zip(chunk.inside(slot), verdict.vms, strict=True):
        _apply_fate(chunk, slot, row, vm)
    if slot.target_host_id is not None:
        for vm_uuid in verdict.newly_confirmed:
            chunk.seen_at.setdefault(vm_uuid, slot.target_host_id)


def _apply_fate(
    chunk: _Chunk, slot: Reservation, row: ReservationAllocation, verdict: VMVerdict
) -> None:
    fate, now = verdict.fate, chunk.context.now
    if fate is VMFate.KEPT:
        return
    if fate is VMFate.MISGROUPED:
        assert slot.target_host_id is not None  # noqa: S101 - only placed slots are judged
        chunk.misgrouped.add((row.vm_uuid, slot.target_host_id))
        return
    chunk.events[fate.value] += 1
    if fate is VMFate.FOLLOWED:
        _confirm(row, slot, _part_that_moves(chunk, row), now)
        chunk.confirmed.append(row)
    elif fate is VMFate.CONFIRMED:
        _see(chunk, slot, verdict)
    elif fate is VMFate.MISSING:
        for part in chunk.parts_at(row.vm_uuid, slot.target_host_id):
            part.state, part.missing_since = AllocationState.EXPECTED, now
            part.confirmed_host_id, part.confirmed_at = None, None
            chunk.missing.append(part)
        chunk.tell(slot, f"VM {row.vm_uuid} is listed nowhere")
    elif fate.leaves:
        chunk.left.add(row.pk)
        why = LEFT_BECAUSE[fate].format(chunk.host(verdict.host_id))
        chunk.tell(slot, f"VM {row.vm_uuid} {why}")


def _see(chunk: _Chunk, slot: Reservation, verdict: VMVerdict) -> None:
    """Note that a VM is on the host of its slots, all its parts at once.

    When it is not as large as its parts together, it is shared among its slots anew.
    """
    rows = chunk.parts_at(verdict.vm.vm_uuid, slot.target_host_id)
    rows.sort(key=lambda row: (row.state != AllocationState.CONFIRMED, row.reservation_id))
    parts = tuple(row.size for row in rows)
    if sum(parts, ZERO) != verdict.resources:
        parts = share_vm(verdict.resources, [_room_besides(chunk, row) for row in rows])
    for row, part in zip(rows, parts, strict=True):
        if part == ZERO and verdict.resources != ZERO:
            chunk.left.add(row.pk)
            continue
        its_slot = chunk.slots[row.reservation_id]
        if row.state != AllocationState.CONFIRMED:
            host = chunk.host(its_slot.target_host_id)
            chunk.tell(its_slot, f"VM {row.vm_uuid} was seen on {host}")
        _confirm(row, its_slot, part, chunk.context.now)
        chunk.confirmed.append(row)


def _room_besides(chunk: _Chunk, row: ReservationAllocation) -> ResourceVector:
    """Return what a slot has left for a VM in it."""
    slot = chunk.slots[row.reservation_id]
    others = (other.size for other in chunk.inside(slot) if other.pk != row.pk)
    return slot.size - sum(others, ZERO)


LEFT_BECAUSE = {
    VMFate.NEVER_ARRIVED: "never arrived",
    VMFate.MOVED_AWAY: "moved away to {}",
    VMFate.GONE: "is gone",
    VMFate.OTHER_GROUP: "has a flavor of another group now",
}


def _confirm(
    row: ReservationAllocation, slot: Reservation, resources: ResourceVector, now: datetime
) -> None:
    if row.state != AllocationState.CONFIRMED or row.confirmed_host_id != slot.target_host_id:
        row.confirmed_at = now
    row.state, row.missing_since = AllocationState.CONFIRMED, None
    row.confirmed_host_id = slot.target_host_id
    row.memory_bytes, row.vcpus = resources.memory_bytes, resources.vcpus


def _adopt_arrivals(chunk: _Chunk, slot_ids: list[int]) -> None:
    """Take VMs that came to the host of a slot of theirs into it, though nobody booked them there.

    A VM that a verdict of this run sent away from another slot waits for the next run.
    """
    used = {
        slot_id: sum((row.size for row in chunk.inside(chunk.slots[slot_id])), ZERO)
        for slot_id in slot_ids
    }
    for vm_uuid, chosen_ids in sorted(arrivals_at(chunk.context.zone, slot_ids).items()):
        sighting = chunk.sightings.get(vm_uuid)
        if sighting is None or chunk.claims.deny(vm_uuid, sighting.host_id):
            continue
        here = [
            chunk.slots[slot_id]
            for slot_id in chosen_ids
            if chunk.slots[slot_id].target_host_id == sighting.host_id
        ]
        picked = pick_slots(
            [_tracked(slot, used[slot.pk].memory_bytes, chunk) for slot in here],
            sighting.resources.memory_bytes,
        )
        if not picked:
            continue
        chunk.events[ADOPTED] += 1
        slots = [chunk.slots[one.slot_id] for one in picked]
        rooms = [slot.size - used[slot.pk] for slot in slots]
        for slot, part in zip(slots, share_vm(sighting.resources, rooms), strict=True):
            row = ReservationAllocation(reservation=slot, vm_uuid=vm_uuid, since=chunk.context.now)
            _confirm(row, slot, part, chunk.context.now)
            chunk.created.append(row)
            used[slot.pk] += part
            host = chunk.host(slot.target_host_id)
            chunk.tell(slot, f"VM {vm_uuid} came to {host} and is in it now")


def _tracked(slot: Reservation, used_bytes: int, chunk: _Chunk) -> TrackedSlot:
    return TrackedSlot(
        slot_id=slot.pk,
        name=str(slot.uuid),
        host_name=chunk.host(slot.target_host_id),
        project_id=slot.project_id,
        group=slot.flavor_group_name,
        memory_bytes=slot.memory_bytes,
        allocated_bytes=used_bytes,
    )


def _write(chunk: _Chunk) -> None:
    write_slots(chunk.moved)
    write_vms([*chunk.confirmed, *chunk.missing])
    leave_slots(vm_ids=chunk.left | set(_seen_elsewhere(chunk)))
    join_slots(chunk.created)
    if chunk.events:
        refresh_blocks(chunk.slots)


def _regroup(chunk: _Chunk) -> None:
    """Let claimed VMs of other groups go where they belong, as far as that takes no more room."""
    for vm_uuid, host_id in sorted(chunk.misgrouped):
        rows = chunk.parts_at(vm_uuid, host_id)
        group = chunk.sightings[vm_uuid].group
        if not rows or not regroup_claim(rows, host_id, group=group or ""):
            continue
        chunk.events[VMFate.MISGROUPED.value] += 1
        for row in rows:
            slot = chunk.slots[row.reservation_id]
            chunk.tell(slot, f"VM {vm_uuid} is of another group: it left, or is in slots of that")


def _seen_elsewhere(chunk: _Chunk) -> Iterator[int]:
    """Yield the rows of VMs seen in this run in slots of other hosts (spec commitments, 9.4)."""
    for vm_uuid, host_id in sorted(chunk.seen_at.items()):
        for row in chunk.rows_of[vm_uuid]:
            slot = chunk.slots[row.reservation_id]
            is_claimed = slot.target_host_id in chunk.claims.hosts_of(vm_uuid)
            if slot.target_host_id != host_id and row.pk not in chunk.left and not is_claimed:
                chunk.tell(slot, f"VM {vm_uuid} was seen in another slot")
                yield row.pk
