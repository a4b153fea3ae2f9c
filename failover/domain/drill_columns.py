"""Drill states and costs from the columns that the loop plans on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import compress

import numpy as np

from failover.domain.bounds import CoverageCost, LowerBounds, lower_bounds
from failover.domain.drill_state import DrillHost, DrillSlot, DrillState, DrillVM
from failover.domain.zone_columns import BoolColumn, Int64Column, ZoneSnapshot, grouped
from scheduling.resources import ResourceVector


def drill_state_of(
    snapshots: Iterable[ZoneSnapshot],
    *,
    failing: Collection[str] | None = None,
    chosen: Sequence[BoolColumn] | None = None,
) -> DrillState:
    """Return the state for drills of some zones.

    VMs that are on no host of their zone, and slots whose host is gone, are left out. Nothing is
    owed to a VM that is stopped.

    Args:
        failing: Names of the hosts whose loss alone is asked about: other VMs are left out, as
            users of slots as well, and slots that none of theirs may use. All of it when left out.
        chosen: bool[V] of each zone: the VMs that are asked about, with their slots and the hosts
            of these; those on failing hosts when left out.
    """
    hosts: list[DrillHost] = []
    vms: list[DrillVM] = []
    slots: list[DrillSlot] = []
    for number, snapshot in enumerate(snapshots):
        if chosen is None:
            chosen_vms, chosen_slots = _chosen(snapshot, failing)
            chosen_hosts = np.ones(len(snapshot.hosts), dtype=np.bool_)
        else:
            chosen_vms = chosen[number]
            chosen_slots = _slots_of(snapshot, chosen_vms)
            chosen_hosts = np.zeros(len(snapshot.hosts), dtype=np.bool_)
            chosen_hosts[snapshot.slots.host[chosen_slots]] = True
        is_whole = chosen is None and failing is None
        users = np.ones(len(snapshot.vms), dtype=np.bool_) if is_whole else chosen_vms
        hosts.extend(_hosts(snapshot, chosen_hosts))
        vms.extend(_vms(snapshot, chosen_vms))
        slots.extend(_slots(snapshot, chosen_slots, users))
    return DrillState.of(hosts, vms, slots)


def coverage_costs(snapshot: ZoneSnapshot) -> tuple[CoverageCost, ...]:
    """Return what coverage of a zone takes, then the bounds of each of its classes.

    A class is a set of VMs that may use the same hosts. Slots may serve several, so reserved
    memory is known for the zone alone; each class's bound holds for the whole zone as well.

    Returns:
        The zone first, then classes by code; classes without VMs that are owed slots are left out.

    Source: spec failover, 17.4 (lower bounds per AZ and compatibility class).
    """
    vms = snapshot.vms
    owed = (vms.required > 0) & vms.is_owed & (vms.host >= 0)
    classes = tuple(
        _cost(f"class {code}", snapshot, owed & (vms.class_code == code), None)
        for code in np.unique(vms.class_code[owed]).tolist()
    )
    zone = _cost(snapshot.zone, snapshot, owed, int(snapshot.slots.memory_bytes.sum()))
    return (zone, *classes)


def best_bound(costs: Iterable[CoverageCost]) -> int:
    """Return the largest bound of a zone and its classes, in bytes."""
    return max((cost.bounds.best for cost in costs), default=0)


def _cost(
    label: str, snapshot: ZoneSnapshot, chosen: np.ndarray, reserved: int | None
) -> CoverageCost:
    vms = snapshot.vms
    memory: Int64Column = vms.memory_bytes[chosen]
    bounds: LowerBounds = lower_bounds(
        vms.host[chosen].astype(np.int64),
        memory,
        vms.required[chosen].astype(np.int64),
        host_count=len(snapshot.hosts),
    )
    return CoverageCost(
        label=label,
        vms=len(memory),
        vm_memory_bytes=int(memory.sum()),
        reserved_memory_bytes=reserved,
        bounds=bounds,
    )


def _hosts(snapshot: ZoneSnapshot, chosen: BoolColumn) -> Iterator[DrillHost]:
    hosts = snapshot.hosts
    which = chosen.tolist()
    columns = zip(
        compress(hosts.names, which),
        compress(hosts.racks, which),
        hosts.is_ready[chosen].tolist(),
        _vectors(hosts.effective_memory_bytes[chosen], hosts.effective_vcpus[chosen]),
        _vectors(hosts.used_memory_bytes[chosen], hosts.used_vcpus[chosen]),
        _vectors(
            (hosts.held_memory_bytes + hosts.failover_memory_bytes)[chosen],
            (hosts.held_vcpus + hosts.failover_vcpus)[chosen],
        ),
        strict=True,
    )
    for name, rack, is_alive, effective, allocated, blocked in columns:
        yield DrillHost(
            name=name,
            zone=snapshot.zone,
            rack=rack,
            is_alive=is_alive,
            effective=effective,
            allocated=allocated,
            blocked=blocked,
        )


def _chosen(
    snapshot: ZoneSnapshot, failing: Collection[str] | None
) -> tuple[BoolColumn, BoolColumn]:
    """Return bool[V] and bool[R]: VMs and slots on hosts, of those that fail if these are named."""
    vms = snapshot.vms
    if failing is None:
        return vms.host >= 0, snapshot.slots.host >= 0
    names = frozenset(failing)
    # The last one stands for no host, which is -1.
    fails = np.array([*(name in names for name in snapshot.hosts.names), False], dtype=np.bool_)
    is_affected: BoolColumn = fails[vms.host]
    return is_affected, _slots_of(snapshot, is_affected)


def _slots_of(snapshot: ZoneSnapshot, vms: BoolColumn) -> BoolColumn:
    """Return bool[R]: the slots on hosts that one of these VMs may use."""
    slots, members = snapshot.slots, snapshot.members
    is_theirs = np.zeros(len(slots), dtype=np.bool_)
    is_theirs[members.slot[vms[members.vm]]] = True
    return (slots.host >= 0) & is_theirs


def _vms(snapshot: ZoneSnapshot, chosen: BoolColumn) -> Iterator[DrillVM]:
    vms, names = snapshot.vms, snapshot.hosts.names
    columns = zip(
        compress(vms.uuids, chosen.tolist()),
        vms.host[chosen].tolist(),
        _vectors(vms.memory_bytes[chosen], vms.vcpus[chosen]),
        np.where(vms.is_owed, vms.required, 0)[chosen].tolist(),
        strict=True,
    )
    for uuid, host, size, required in columns:
        yield DrillVM(uuid=uuid, host=names[host], size=size, required_count=required)


def _slots(snapshot: ZoneSnapshot, chosen: BoolColumn, users: BoolColumn) -> Iterator[DrillSlot]:
    slots, members = snapshot.slots, snapshot.members
    kept = np.flatnonzero(users[members.vm])
    starts, order = grouped(members.slot[kept], len(slots))
    ends, user_rows = starts.tolist(), members.vm[kept[order]].tolist()
    uuids = snapshot.vms.uuids
    columns = zip(
        np.flatnonzero(chosen).tolist(),
        slots.host[chosen].tolist(),
        _vectors(slots.memory_bytes[chosen], slots.vcpus[chosen]),
        slots.is_usable[chosen].tolist(),
        strict=True,
    )
    for row, host, size, is_usable in columns:
        yield DrillSlot(
            name=slots.names[row],
            host=snapshot.hosts.names[host],
            size=size,
            users=tuple(map(uuids.__getitem__, user_rows[ends[row] : ends[row + 1]])),
            is_usable=is_usable,
        )


def _vectors(memory_bytes: Int64Column, vcpus: Int64Column) -> list[ResourceVector]:
    """Return the sizes of many rows, one vector for all that are alike: VMs have few sizes."""
    sizes = list(zip(memory_bytes.tolist(), vcpus.tolist(), strict=True))
    vector_of = {
        size: ResourceVector(memory_bytes=size[0], vcpus=size[1]) for size in dict.fromkeys(sizes)
    }
    return list(map(vector_of.__getitem__, sizes))
