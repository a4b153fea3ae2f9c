"""The hosts and empty slots of a zone as the compaction sees them (spec commitments, 25 item 9)."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

import numpy as np
from django.conf import settings
from django.db.models import Exists, F, OuterRef, Q, QuerySet

from capacity.host_table import current_host_table
from capacity.ledger.placing import weigh_hosts
from capacity.ledger.slot_request import SlotAsk, slot_request
from capacity.models import Reservation, ReservationAllocation, ReservationKind
from capacity.nova.slot_requests import HeldSlot, SlotBook, held_slots
from commitments.domain.compaction import CompactionState, SlotKind
from hosts.models import Maintenance
from scheduling.columns import BoolColumn, FloatColumn, Int64Column
from scheduling.engine import SLOT_PIPELINE
from scheduling.evaluation import CompiledPipeline, static_keys
from scheduling.table import HostTable

PACKING_WEIGHER = "kvm_binpack"


class HostUse(StrEnum):
    """What keeps a host from being free, the strongest reason first."""

    FREE = "free"
    NOT_READY = "not_ready"
    VMS = "vms"
    IN_FLIGHT = "in_flight"
    FAILOVER = "failover"
    OTHER_SLOTS = "other_slots"
    EMPTY_SLOTS = "empty_slots"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ZoneToCompact:
    """A zone, ready to be planned.

    Attributes:
        table: The hosts of all zones.
        rows: int64[N], rows of the zone's hosts in the table; hosts of ``state`` in this order.
        state: What the planner sees.
        slots: Slots that may move, in the order of ``state``.
        uses: Hosts of the zone by what they hold.
    """

    zone: str
    table: HostTable
    rows: Int64Column
    state: CompactionState
    slots: tuple[HeldSlot, ...]
    uses: Mapping[HostUse, int]


def movable_slots(zone: str, now: datetime) -> QuerySet[Reservation]:
    """Return the slots of a zone that may move: empty, at rest, and held for a while yet."""
    listed = ReservationAllocation.objects.filter(reservation=OuterRef("pk"))
    soon = now + timedelta(seconds=settings.HEADROOM.slots.compaction_interval_seconds)
    return Reservation.objects.filter(
        Q(end_time__isnull=True) | Q(end_time__gt=soon),
        ~Exists(listed),
        kind=ReservationKind.COMMITTED,
        zone=zone,
        target_host__zone=zone,
        confirmed_host_id=F("target_host_id"),
        is_ready=True,
        blocked_memory_bytes=F("memory_bytes"),
        blocked_vcpus=F("vcpus"),
    )


def zones_with_slots() -> list[str]:
    """Return the zones that hold slots of commitments."""
    slots = Reservation.objects.filter(kind=ReservationKind.COMMITTED).exclude(zone="")
    return list(slots.order_by("zone").values_list("zone", flat=True).distinct())


def zone_to_compact(zone: str, *, now: datetime) -> ZoneToCompact:
    """Read a zone; nothing is locked.

    Raises:
        NotReady: flavor groups are not known yet.
    """
    table = current_host_table()
    rows: Int64Column = np.flatnonzero(_in_zone(table, zone))
    masks = _masks_of(table, rows)
    with_slots = rows[masks[HostUse.EMPTY_SLOTS]]
    found = held_slots(
        movable_slots(zone, now).filter(target_host_id__in=table.host_ids[with_slots].tolist())
    )
    book = AskBook(found, table)
    slots = [slot for slot in found if book.ask_for(slot) is not None]
    position = {host_id: place for place, host_id in enumerate(table.host_ids[rows].tolist())}
    slot_host = np.array([position[slot.host_id] for slot in slots], dtype=np.int64)
    _set_apart(table, rows, masks, slots, slot_host)
    is_source = masks[HostUse.EMPTY_SLOTS]
    moving = np.flatnonzero(is_source[slot_host]).tolist()
    chosen = tuple(slots[number] for number in moving)
    kinds = _Kinds(table, rows, book)
    slot_kind = np.array([kinds.number_of(slot) for slot in chosen], dtype=np.int64)
    return ZoneToCompact(
        zone=zone,
        table=table,
        rows=rows,
        state=CompactionState(
            free_memory_bytes=table.free_memory_bytes()[rows],
            free_vcpus=table.free_vcpus()[rows],
            total_memory_bytes=table.eff_memory_bytes[rows],
            total_vcpus=table.eff_vcpus[rows],
            is_closed=masks[HostUse.FREE] | masks[HostUse.NOT_READY],
            is_source=is_source,
            slot_host=slot_host[moving],
            slot_kind=slot_kind,
            kinds=tuple(kinds.kinds),
        ),
        slots=chosen,
        uses={use: int(np.count_nonzero(masks[use])) for use in HostUse},
    )


class AskBook:
    """What slots ask the scheduler for; slots that are alike for every host share one ask.

    The filters of the pipeline of slots say what their verdict depends on, and its weighers look at
    sizes alone; pipelines that an operator chose may look at anything.
    """

    def __init__(self, slots: Sequence[HeldSlot], table: HostTable) -> None:
        self._book = SlotBook(slots)
        self._table = table
        self._keys: dict[Hashable, Hashable] = {}
        self._asks: dict[Hashable, SlotAsk | None] = {}

    def key_of(self, slot: HeldSlot) -> Hashable:
        """Return what slots that are alike for every host have in common."""
        own = slot._replace(slot_id=0, host_id=None, slot_index=0, commitment_uuid="")
        if self._book.pipeline_of(slot.group) is not None:
            return own
        if own not in self._keys:
            request = slot_request(self._book.ask_for(slot))
            verdicts = static_keys(self._table, request, SLOT_PIPELINE)
            self._keys[own] = (slot.group, slot.flavor_name, slot.size, verdicts)
        return self._keys[own]

    def ask_for(self, slot: HeldSlot) -> SlotAsk | None:
        """Return an ask that stands for a slot; None for a slot that must stay.

        A group whose pipeline does not pack hosts has its slots where the operator wants them.
        """
        key = self.key_of(slot)
        if key not in self._asks:
            self._asks[key] = self.own_ask_for(slot)
        return self._asks[key]

    def own_ask_for(self, slot: HeldSlot) -> SlotAsk | None:
        """Return the ask of one slot and no other; None for a slot that must stay."""
        if not self._book.has_flavor(slot) or not packs_tightly(self._book.pipeline_of(slot.group)):
            return None
        ask = self._book.ask_for(slot)
        return ask if ask.is_askable else None


def packs_tightly(pipeline: CompiledPipeline | None) -> bool:
    """Return whether a pipeline prefers full hosts; the one of slots (None) does."""
    return pipeline is None or any(
        weigher.name == PACKING_WEIGHER and weigher.multiplier > 0 for weigher in pipeline.weighers
    )


def _in_zone(table: HostTable, zone: str) -> BoolColumn:
    if zone not in table.zones:
        return np.zeros(len(table), dtype=np.bool_)
    here: BoolColumn = table.is_known & (table.zone == table.zones.index(zone))
    return here


def _masks_of(table: HostTable, rows: Int64Column) -> dict[HostUse, BoolColumn]:
    """Return the hosts of a zone by what they hold; each is in one mask, for its first reason."""
    has_vms = _any(table.alloc_memory_bytes, table.alloc_vcpus, rows)
    has_vms |= table.instance_index.are_listing(len(table))[rows]
    idle = [code for code, mode in enumerate(table.maintenance_modes) if mode == Maintenance.NONE]
    is_ready = table.state_ok[rows] & np.isin(table.maintenance[rows], idle)
    reasons: list[tuple[HostUse, BoolColumn]] = [
        (HostUse.NOT_READY, ~is_ready),
        (HostUse.VMS, has_vms),
        (HostUse.IN_FLIGHT, _any(table.in_flight_memory_bytes, table.in_flight_vcpus, rows)),
        (HostUse.FAILOVER, _any(table.failover_memory_bytes, table.failover_vcpus, rows)),
        (HostUse.EMPTY_SLOTS, _any(table.committed_memory_bytes, table.committed_vcpus, rows)),
        (HostUse.FREE, np.ones(len(rows), dtype=np.bool_)),
    ]
    left = np.ones(len(rows), dtype=np.bool_)
    masks = {HostUse.OTHER_SLOTS: np.zeros(len(rows), dtype=np.bool_)}
    for use, mask in reasons:
        masks[use] = left & mask
        left &= ~mask
    return masks


def _set_apart(
    table: HostTable,
    rows: Int64Column,
    masks: dict[HostUse, BoolColumn],
    slots: Sequence[HeldSlot],
    slot_host: Int64Column,
) -> None:
    """Take the hosts whose blocks are not all those of movable slots from those that are."""
    size = np.array([(slot.memory_bytes, slot.vcpus) for slot in slots], dtype=np.int64)
    movable = np.zeros((len(rows), 2), dtype=np.int64)
    np.add.at(movable, slot_host, size.reshape(len(slots), 2))
    committed = np.stack([table.committed_memory_bytes[rows], table.committed_vcpus[rows]], axis=1)
    has_others = masks[HostUse.EMPTY_SLOTS] & _differ(committed, movable)
    masks[HostUse.OTHER_SLOTS] = has_others
    masks[HostUse.EMPTY_SLOTS] &= ~has_others


def _differ(left: Int64Column, right: Int64Column) -> BoolColumn:
    differs: BoolColumn = np.any(left != right, axis=1)
    return differs


def _any(memory_bytes: Int64Column, vcpus: Int64Column, rows: Int64Column) -> BoolColumn:
    taken: BoolColumn = (memory_bytes[rows] > 0) | (vcpus[rows] > 0)
    return taken


@dataclass(slots=True)
class _Kinds:
    """Kinds of slots of a zone; equal masks and scores are kept once."""

    table: HostTable
    rows: Int64Column
    book: AskBook
    kinds: list[SlotKind] = field(default_factory=list)
    _by_key: dict[Hashable, int] = field(default_factory=dict)
    _by_columns: dict[Hashable, int] = field(default_factory=dict)
    _masks: dict[bytes, BoolColumn] = field(default_factory=dict)
    _scores: dict[bytes, FloatColumn] = field(default_factory=dict)

    def number_of(self, slot: HeldSlot) -> int:
        """Return the kind of a slot that has an ask."""
        key = self.book.key_of(slot)
        if key not in self._by_key:
            ask = self.book.ask_for(slot)
            assert ask is not None  # noqa: S101 - the others were left out
            self._by_key[key] = self._made(ask)
        return self._by_key[key]

    def _made(self, ask: SlotAsk) -> int:
        passing, scores = weigh_hosts(self.table, ask)
        mask, score = passing[self.rows], scores[self.rows]
        key = (ask.slot, _digest(mask.tobytes()), _digest(score.tobytes()))
        mask, score = self._masks.setdefault(key[1], mask), self._scores.setdefault(key[2], score)
        if key not in self._by_columns:
            self._by_columns[key] = len(self.kinds)
            self.kinds.append(
                SlotKind(
                    memory_bytes=ask.slot.memory_bytes,
                    vcpus=ask.slot.vcpus,
                    passing=mask,
                    preference=score,
                )
            )
        return self._by_columns[key]


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
