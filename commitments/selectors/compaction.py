"""The hosts and empty slots of a zone as the compaction sees them (spec commitments, 25 item 9)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

import numpy as np
from django.conf import settings
from django.db.models import Exists, F, OuterRef, Q, QuerySet

from capacity.domain.flavor_groups import FlavorGroupDef
from capacity.models import Reservation, ReservationAllocation, ReservationKind
from capacity.selectors.groups import load_group_definitions
from capacity.selectors.host_table import current_host_table
from commitments.domain.compaction import CompactionState, SlotKind
from commitments.domain.names import slot_name, slot_name_prefix
from commitments.domain.placing import NO_DOMAIN, SlotAsk, weigh_hosts
from commitments.selectors.slot_requests import domain_hints, slot_pipelines
from hosts.models import Maintenance
from scheduling.columns import BoolColumn, FloatColumn, Int64Column
from scheduling.engine import Pipeline
from scheduling.resources import ResourceVector
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
        zone: Its name.
        table: The hosts of all zones.
        rows: int64[N], rows of the zone's hosts in the table; hosts of ``state`` in this order.
        state: What the planner sees.
        slots: Slots that may move, in the order of ``state``.
        asks: What each asks the scheduler for.
        uses: Hosts of the zone by what they hold.
    """

    zone: str
    table: HostTable
    rows: Int64Column
    state: CompactionState
    slots: tuple[Reservation, ...]
    asks: tuple[SlotAsk, ...]
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
    groups = load_group_definitions(include_retired=True)
    table = current_host_table()
    rows: Int64Column = np.flatnonzero(_in_zone(table, zone))
    found = list(
        movable_slots(zone, now).select_related("commitment", "target_host").order_by("pk")
    )
    asks = slot_asks(found, groups)
    slots = [slot for slot in found if slot.pk in asks]
    position = {host_id: place for place, host_id in enumerate(table.host_ids[rows].tolist())}
    slots = [slot for slot in slots if slot.target_host_id in position]
    slot_host = np.array([position[slot.target_host_id or 0] for slot in slots], dtype=np.int64)
    is_source, is_closed, uses = _uses_of(table, rows, slots, slot_host)
    moving = np.flatnonzero(is_source[slot_host]).tolist()
    chosen = tuple(slots[number] for number in moving)
    chosen_asks = tuple(asks[slot.pk] for slot in chosen)
    kinds = _Kinds(table, rows)
    slot_kind = np.array([kinds.number_of(ask) for ask in chosen_asks], dtype=np.int64)
    return ZoneToCompact(
        zone=zone,
        table=table,
        rows=rows,
        state=CompactionState(
            free_memory_bytes=table.free_memory_bytes()[rows],
            free_vcpus=table.free_vcpus()[rows],
            total_memory_bytes=table.eff_memory_bytes[rows],
            total_vcpus=table.eff_vcpus[rows],
            is_closed=is_closed,
            is_source=is_source,
            slot_host=slot_host[moving],
            slot_kind=slot_kind,
            kinds=tuple(kinds.kinds),
        ),
        slots=chosen,
        asks=chosen_asks,
        uses=uses,
    )


def slot_asks(
    slots: Sequence[Reservation], groups: Mapping[str, FlavorGroupDef]
) -> dict[int, SlotAsk]:
    """Return what slots ask the scheduler for, by slot; those that must stay are left out.

    A group whose pipeline does not pack hosts tightly has its slots where the operator wants them.
    """
    domains = domain_hints(slot.domain_id for slot in slots)
    pipelines = slot_pipelines(groups)
    asks: dict[int, SlotAsk] = {}
    for slot in slots:
        group = groups.get(slot.flavor_group_name)
        if group is None or slot.commitment is None:
            continue
        flavor = next((one for one in group.flavors if one.name == slot.resource_name), None)
        pipeline = pipelines.get(group.name)
        if flavor is None or not packs_tightly(pipeline):
            continue
        prefix = slot_name_prefix(slot.commitment.commitment_uuid)
        ask = SlotAsk(
            slot_id=slot.pk,
            slot_index=slot.slot_index or 0,
            slot_name=slot_name(prefix, slot.slot_index or 0),
            flavor=flavor,
            slot=ResourceVector(memory_bytes=slot.memory_bytes, vcpus=slot.vcpus),
            zone=slot.zone,
            project_id=slot.project_id,
            domain=domains.get(slot.domain_id, NO_DOMAIN),
            pipeline=pipeline,
        )
        if ask.is_askable:
            asks[slot.pk] = ask
    return asks


def packs_tightly(pipeline: Pipeline | None) -> bool:
    """Return whether a pipeline prefers full hosts; the one of slots (None) does."""
    return pipeline is None or any(
        weigher.name == PACKING_WEIGHER and weigher.multiplier > 0 for weigher in pipeline.weighers
    )


def _in_zone(table: HostTable, zone: str) -> BoolColumn:
    if zone not in table.zones:
        return np.zeros(len(table), dtype=np.bool_)
    here: BoolColumn = table.is_known & (table.zone == table.zones.index(zone))
    return here


def _uses_of(
    table: HostTable, rows: Int64Column, slots: Sequence[Reservation], slot_host: Int64Column
) -> tuple[BoolColumn, BoolColumn, dict[HostUse, int]]:
    """Return which hosts of a zone are sources, which get no slots, and how many hold what."""
    size = np.array([(slot.memory_bytes, slot.vcpus) for slot in slots], dtype=np.int64)
    movable = np.zeros((len(rows), 2), dtype=np.int64)
    np.add.at(movable, slot_host, size.reshape(len(slots), 2))
    committed = np.stack([table.committed_memory_bytes[rows], table.committed_vcpus[rows]], axis=1)
    has_vms = (table.alloc_memory_bytes[rows] > 0) | (table.alloc_vcpus[rows] > 0)
    has_vms |= np.array([bool(table.instances[row]) for row in rows.tolist()], dtype=np.bool_)
    idle = [code for code, mode in enumerate(table.maintenance_modes) if mode == Maintenance.NONE]
    is_ready = table.state_ok[rows] & np.isin(table.maintenance[rows], idle)
    # The first that holds is what a host is counted as.
    reasons: list[tuple[HostUse, BoolColumn]] = [
        (HostUse.NOT_READY, ~is_ready),
        (HostUse.VMS, has_vms),
        (HostUse.IN_FLIGHT, _any(table.in_flight_memory_bytes, table.in_flight_vcpus, rows)),
        (HostUse.FAILOVER, _any(table.failover_memory_bytes, table.failover_vcpus, rows)),
        (HostUse.OTHER_SLOTS, _differ(committed, movable)),
        (HostUse.EMPTY_SLOTS, _any(table.committed_memory_bytes, table.committed_vcpus, rows)),
        (HostUse.FREE, np.ones(len(rows), dtype=np.bool_)),
    ]
    left = np.ones(len(rows), dtype=np.bool_)
    masks: dict[HostUse, BoolColumn] = {}
    for use, mask in reasons:
        masks[use] = left & mask
        left &= ~mask
    uses = {use: int(np.count_nonzero(mask)) for use, mask in masks.items()}
    return masks[HostUse.EMPTY_SLOTS], masks[HostUse.FREE] | masks[HostUse.NOT_READY], uses


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
    kinds: list[SlotKind] = field(default_factory=list)
    _by_ask: dict[object, int] = field(default_factory=dict)
    _by_columns: dict[object, int] = field(default_factory=dict)
    _masks: dict[bytes, BoolColumn] = field(default_factory=dict)
    _scores: dict[bytes, FloatColumn] = field(default_factory=dict)

    def number_of(self, ask: SlotAsk) -> int:
        """Return the kind of a slot."""
        pipeline = ask.pipeline.name if ask.pipeline else ""
        key = (ask.flavor.name, ask.slot, ask.project_id, ask.domain, pipeline)
        if key not in self._by_ask:
            self._by_ask[key] = self._made(ask)
        return self._by_ask[key]

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
