"""Capacity of all flavor groups in one zone, from the host table (spec liquid, 13.4, 13.5, 13.7).

Every flavor is probed twice, on empty hosts and on what is left, with the filters of a pipeline
each; by default those that a slot of its group passes, so that hosts that are down, disabled or in
maintenance count in neither. Flavors that filters cannot tell apart are filtered once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from capacity.figures.group_packing import GroupPacking, HeldShare, packed_shares
from capacity.figures.packing import SlotSize
from capacity.figures.split import (
    FlavorSlots,
    GroupNeed,
    GroupShare,
    SplitResult,
    exclusive_split,
    group_totals,
)
from capacity.groups.flavor_groups import FlavorGroupDef, FlavorSpec
from capacity.ledger.placing import without_room
from capacity.ledger.slot_request import SlotAsk, slot_request
from scheduling.capacity_count import slots_per_host
from scheduling.columns import BoolColumn, Int64Column
from scheduling.engine import SLOT_PIPELINE, passing_hosts
from scheduling.evaluation import CompiledPipeline, PipelineRunError
from scheduling.intents import Intent
from scheduling.request import PlacementRequest
from scheduling.resources import ResourceVector
from scheduling.table import HostTable

PROBE_PROJECT_ID = "headroom-capacity-probe"
"""Project that a probe asks for; filters of tenants do not look at it (spec liquid, 13.5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The pipelines whose filters say which hosts a flavor may use; weighers do nothing here.

    Where none is named it is the one that judges slots of the group. What asks for room is left
    out of all of them: room is counted.

    Attributes:
        total: Of the probe on empty hosts; None where none is named.
        placeable: Of the probe on what is left; likewise.
        slots: Flavor group to the pipeline of its slots, where the operator chose one.
        problem: Why no probe can be made; empty when it can.

    Source: spec liquid, 13.2, 13.5.
    """

    total: CompiledPipeline | None = None
    placeable: CompiledPipeline | None = None
    slots: Mapping[str, CompiledPipeline] = field(default_factory=dict)
    problem: str = ""

    def total_of(self, group: str) -> CompiledPipeline:
        """Return the pipeline that says on which empty hosts a group counts."""
        return self.total or self.slots.get(group, SLOT_PIPELINE)

    def placeable_of(self, group: str) -> CompiledPipeline:
        """Return the pipeline that says on which hosts a group may be placed now."""
        return self.placeable or self.slots.get(group, SLOT_PIPELINE)


DEFAULT_PROBES = Probes()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorProbe:
    """How many VMs of one flavor fit into the zone.

    Attributes:
        flavor_name: Name of the flavor.
        total_vm_slots: VMs that fit on empty hosts.
        total_hosts: Hosts that fit at least one of them.
        placeable_vms: VMs that fit into what is left now.
        placeable_hosts: Hosts that fit at least one of them.
    """

    flavor_name: str
    total_vm_slots: int
    total_hosts: int
    placeable_vms: int
    placeable_hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """Capacity of one group in one zone.

    Attributes:
        smallest: Smallest flavor: the slot unit.
        flavors: Probes by flavor name.
        total: Best use of empty hosts, each resource on its own.
        free: What fits now if no other group took any; overlaps between groups. Memory is that of
            the best use by all flavors, vCPUs are those of as many smallest flavors as fit.
        exclusive: The group's own share of what is free; never overlaps. The same two figures.
        exclusive_slots: How many smallest flavors fit into that share.
    """

    smallest: FlavorSpec
    flavors: tuple[FlavorProbe, ...]
    total: ResourceVector
    free: ResourceVector
    exclusive: ResourceVector
    exclusive_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneFigures:
    """Capacity of a zone.

    Attributes:
        groups: Group name to its figures, for groups whose probes all succeeded.
        failed: Group name to why a probe failed.
        skipped: Groups whose smallest flavor has no memory.
        unassigned: What is left on candidate hosts after the split.
    """

    groups: Mapping[str, GroupFigures]
    failed: Mapping[str, str]
    skipped: tuple[str, ...]
    unassigned: ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupProbe:
    flavors: tuple[FlavorProbe, ...]
    total: ResourceVector
    candidates: Int64Column
    free_memory_bytes: int
    packing: GroupPacking


class _ZoneColumns:
    """The hosts of one zone: capacity figures of their rows, and masks by kind of flavor."""

    def __init__(self, table: HostTable, zone: str, probes: Probes) -> None:
        self._table = table
        self._zone = zone
        self._probes = probes
        code = table.zones.index(zone) if zone in table.zones else -1
        self._rows = np.flatnonzero(table.zone == code)
        self._masks: dict[object, BoolColumn] = {}
        self.names = [table.names[row] for row in self._rows]
        self.total_memory_bytes = table.eff_memory_bytes[self._rows]
        self.total_vcpus = table.eff_vcpus[self._rows]
        self.left_memory_bytes = np.maximum(table.free_memory_bytes()[self._rows], 0)
        self.left_vcpus = np.maximum(table.free_vcpus()[self._rows], 0)

    def probes_are_alike(self, group: str) -> bool:
        """Whether empty hosts are judged for a group as those that are in use."""
        return self._probes.placeable_of(group) is self._probes.total_of(group)

    def total_rows(self, group: str, flavor: FlavorSpec) -> Int64Column:
        """Return the positions of the zone's hosts that count for this flavor when empty."""
        return np.flatnonzero(self.total_mask(group, flavor))

    def placeable_rows(self, group: str, flavor: FlavorSpec) -> Int64Column:
        """Return the positions of the zone's hosts that may take this flavor now, room apart."""
        return np.flatnonzero(self.placeable_mask(group, flavor))

    def total_mask(self, group: str, flavor: FlavorSpec) -> BoolColumn:
        """Return bool[hosts of the zone], those of ``total_rows``."""
        return self._mask(flavor, self._probes.total_of(group))

    def placeable_mask(self, group: str, flavor: FlavorSpec) -> BoolColumn:
        """Return bool[hosts of the zone], those of ``placeable_rows``."""
        return self._mask(flavor, self._probes.placeable_of(group))

    def _mask(self, flavor: FlavorSpec, pipeline: CompiledPipeline) -> BoolColumn:
        key = (pipeline.name, tuple(sorted(flavor.extra_specs.items())))
        if key not in self._masks:
            passing = passing_hosts(self._table, self._request(flavor), without_room(pipeline))
            self._masks[key] = passing[self._rows]
        return self._masks[key]

    def _request(self, flavor: FlavorSpec) -> PlacementRequest:
        return slot_request(
            SlotAsk(
                slot_name=f"capacity-{flavor.name}",
                flavor=flavor,
                slot=ResourceVector(memory_bytes=flavor.memory_bytes, vcpus=flavor.vcpus),
                zone=self._zone,
                project_id=PROBE_PROJECT_ID,
                intent=Intent.CAPACITY_PROBE,
            )
        )


def zone_figures(
    table: HostTable,
    zone: str,
    groups: Iterable[FlavorGroupDef],
    probes: Probes = DEFAULT_PROBES,
) -> ZoneFigures:
    """Compute the capacity of every flavor group in one zone.

    A group of which one probe fails takes no part in the split and keeps its former figures.

    Args:
        groups: Flavor groups, names unique.
        probes: Pipelines of the probes.

    Source: spec liquid, 13.3 - 13.7.
    """
    columns = _ZoneColumns(table, zone, probes)
    probed: dict[str, _GroupProbe] = {}
    smallest: dict[str, FlavorSpec] = {}
    failed: dict[str, str] = {}
    skipped: list[str] = []
    for group in sorted(groups, key=lambda group: group.name):
        if group.smallest.memory_bytes <= 0:
            skipped.append(group.name)
            continue
        smallest[group.name] = group.smallest
        if probes.problem:
            failed[group.name] = probes.problem
            continue
        try:
            probed[group.name] = _probe_group(columns, group)
        except PipelineRunError as error:  # a step of a pipeline cannot judge this flavor
            failed[group.name] = str(error)
        except (AttributeError, TypeError, ValueError) as error:  # malformed flavor data
            failed[group.name] = f"{type(error).__name__}: {error}"
    needs = [
        GroupNeed(
            group=name,
            memory_bytes=smallest[name].memory_bytes,
            vcpus=smallest[name].vcpus,
            candidate_rows=probe.candidates,
        )
        for name, probe in probed.items()
    ]
    split = exclusive_split(columns.left_memory_bytes, columns.left_vcpus, columns.names, needs)
    shares, unassigned = _packed(columns, probed, needs, split)
    return ZoneFigures(
        groups={
            name: _figures(smallest[name], probe, split.shares[name], shares[name])
            for name, probe in probed.items()
        },
        failed=failed,
        skipped=tuple(skipped),
        unassigned=unassigned,
    )


def _packed(
    columns: _ZoneColumns,
    probed: Mapping[str, _GroupProbe],
    needs: Iterable[GroupNeed],
    split: SplitResult,
) -> tuple[Mapping[str, HeldShare], ResourceVector]:
    """Return the groups' shares with the best use of each, and what is left on candidates then."""
    left_memory_bytes = columns.left_memory_bytes.copy()
    left_vcpus = columns.left_vcpus.copy()
    shares = {}
    for need in needs:
        slots = split.slots_on[need.group]
        share = HeldShare(
            memory_bytes=slots * need.memory_bytes,
            vcpus=slots * need.vcpus,
            packing=probed[need.group].packing,
        )
        left_memory_bytes -= share.memory_bytes
        left_vcpus -= share.vcpus
        shares[need.group] = share
    packed = packed_shares(shares, left_memory_bytes, left_vcpus)
    rest = split.unassigned_rows
    return packed, ResourceVector(
        memory_bytes=int(left_memory_bytes[rest].sum()), vcpus=int(left_vcpus[rest].sum())
    )


def _figures(
    smallest: FlavorSpec, probe: _GroupProbe, share: GroupShare, held: HeldShare
) -> GroupFigures:
    return GroupFigures(
        smallest=smallest,
        flavors=probe.flavors,
        total=probe.total,
        free=replace(
            share.free, memory_bytes=max(share.free.memory_bytes, probe.free_memory_bytes)
        ),
        exclusive=replace(share.exclusive, memory_bytes=int(held.memory_bytes.sum())),
        exclusive_slots=share.assigned_slots,
    )


def _probe_group(columns: _ZoneColumns, group: FlavorGroupDef) -> _GroupProbe:
    candidates = np.zeros(0, dtype=np.int64)
    flavors = []
    totals = []
    for flavor in group.flavors:
        empty = columns.total_rows(group.name, flavor)
        rows = columns.placeable_rows(group.name, flavor)
        total = _slots(columns.total_memory_bytes, columns.total_vcpus, empty, flavor)
        left = _slots(columns.left_memory_bytes, columns.left_vcpus, rows, flavor)
        if flavor is group.smallest:
            candidates = rows[left > 0]
        totals.append(
            FlavorSlots(
                memory_bytes=flavor.memory_bytes, vcpus=flavor.vcpus, slots=int(total.sum())
            )
        )
        flavors.append(
            FlavorProbe(
                flavor_name=flavor.name,
                total_vm_slots=int(total.sum()),
                total_hosts=int(np.count_nonzero(total)),
                placeable_vms=int(left.sum()),
                placeable_hosts=int(np.count_nonzero(left)),
            )
        )
    most_memory_bytes = int(columns.total_memory_bytes.max(initial=0))
    packing = empty_packing = _packing(group, most_memory_bytes, columns.placeable_mask)
    if not columns.probes_are_alike(group.name):
        empty_packing = _packing(group, most_memory_bytes, columns.total_mask)
    best_total = empty_packing.most(columns.total_memory_bytes, columns.total_vcpus)
    best_left = packing.most(columns.left_memory_bytes, columns.left_vcpus)
    group_total = group_totals(totals)
    best_total_bytes = int(best_total.memory_bytes.sum())
    return _GroupProbe(
        flavors=tuple(sorted(flavors, key=lambda probe: probe.flavor_name)),
        total=replace(group_total, memory_bytes=max(group_total.memory_bytes, best_total_bytes)),
        candidates=candidates,
        free_memory_bytes=int(best_left.memory_bytes.sum()),
        packing=packing,
    )


def _packing(
    group: FlavorGroupDef, most_memory_bytes: int, mask_of: Callable[[str, FlavorSpec], BoolColumn]
) -> GroupPacking:
    return GroupPacking(
        [SlotSize(flavor.memory_bytes, flavor.vcpus) for flavor in group.flavors],
        [mask_of(group.name, flavor) for flavor in group.flavors],
        most_memory_bytes,
    )


def _slots(
    memory_bytes: Int64Column, vcpus: Int64Column, rows: Int64Column, flavor: FlavorSpec
) -> Int64Column:
    return slots_per_host(memory_bytes[rows], vcpus[rows], flavor.memory_bytes, flavor.vcpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRoom:
    """What one group could take of each host of a zone now, if no other took any.

    Parallel columns, a row for each host of the zone. The sum of ``usable_memory_bytes`` is the
    ``free`` memory of the group's figures, and what one change request gets.

    Attributes:
        is_admitted: bool[N], hosts that pass the filters of the group's smallest or a larger
            flavor, room apart.
        left_memory_bytes: int64[N], what is left, whoever may use it; 0 or more.
        left_vcpus: int64[N], likewise.
        usable_memory_bytes: int64[N], the most of it that flavors of the group can take.
    """

    names: tuple[str, ...]
    is_admitted: BoolColumn
    left_memory_bytes: Int64Column
    left_vcpus: Int64Column
    usable_memory_bytes: Int64Column


def group_room(
    table: HostTable, zone: str, group: FlavorGroupDef, probes: Probes = DEFAULT_PROBES
) -> GroupRoom:
    """Return what a group could take of each host of a zone; arguments as of ``zone_figures``.

    Raises:
        PipelineRunError: a step of a pipeline cannot judge a flavor of the group.

    Source: spec liquid, 13.7.
    """
    (room,) = group_rooms(table, zone, (group,), probes)
    return room


def group_rooms(
    table: HostTable,
    zone: str,
    groups: Iterable[FlavorGroupDef],
    probes: Probes = DEFAULT_PROBES,
) -> list[GroupRoom]:
    """Return what each of some groups could take, one beside the other, as :func:`group_room`."""
    columns = _ZoneColumns(table, zone, probes)
    most_memory_bytes = int(columns.total_memory_bytes.max(initial=0))
    rooms = []
    for group in groups:
        packing = _packing(group, most_memory_bytes, columns.placeable_mask)
        best = packing.most(columns.left_memory_bytes, columns.left_vcpus)
        rooms.append(
            GroupRoom(
                names=tuple(columns.names),
                is_admitted=packing.admits(len(columns.names)),
                left_memory_bytes=columns.left_memory_bytes,
                left_vcpus=columns.left_vcpus,
                usable_memory_bytes=best.memory_bytes,
            )
        )
    return rooms
