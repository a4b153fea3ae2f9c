"""Drill states and costs from the columns that the loop plans on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from failover.domain.bounds import CoverageCost, LowerBounds, lower_bounds
from failover.domain.drill_state import DrillHost, DrillSlot, DrillState, DrillVM
from failover.domain.zone_columns import BoolColumn, Int64Column, ZoneSnapshot
from scheduling.resources import ResourceVector


def drill_state_of(
    snapshots: Iterable[ZoneSnapshot], *, failing: Collection[str] | None = None
) -> DrillState:
    """Return the state for drills of some zones.

    VMs that are on no host of their zone, and slots whose host is gone, are left out. Nothing is
    owed to a VM that is stopped.

    Args:
        failing: Names of the hosts whose loss alone is asked about: other VMs are left out, and
            slots that none of theirs may use. All of it when left out.
    """
    hosts: list[DrillHost] = []
    vms: list[DrillVM] = []
    slots: list[DrillSlot] = []
    for snapshot in snapshots:
        chosen_vms, chosen_slots = _chosen(snapshot, failing)
        hosts.extend(_hosts(snapshot))
        vms.extend(_vms(snapshot, chosen_vms))
        slots.extend(_slots(snapshot, chosen_slots))
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


def _hosts(snapshot: ZoneSnapshot) -> Iterator[DrillHost]:
    hosts = snapshot.hosts
    blocked_memory = (hosts.held_memory_bytes + hosts.failover_memory_bytes).tolist()
    blocked_vcpus = (hosts.held_vcpus + hosts.failover_vcpus).tolist()
    for row, (name, rack) in enumerate(zip(hosts.names, hosts.racks, strict=True)):
        yield DrillHost(
            name=name,
            zone=snapshot.zone,
            rack=rack,
            is_alive=bool(hosts.is_ready[row]),
            effective=_vector(hosts.effective_memory_bytes[row], hosts.effective_vcpus[row]),
            allocated=_vector(hosts.used_memory_bytes[row], hosts.used_vcpus[row]),
            blocked=_vector(blocked_memory[row], blocked_vcpus[row]),
        )


def _chosen(
    snapshot: ZoneSnapshot, failing: Collection[str] | None
) -> tuple[BoolColumn, BoolColumn]:
    """Return bool[V] and bool[R]: VMs and slots on hosts, of those that fail if these are named."""
    vms, slots, members = snapshot.vms, snapshot.slots, snapshot.members
    is_held = slots.host >= 0
    if failing is None:
        return vms.host >= 0, is_held
    names = frozenset(failing)
    # The last one stands for no host, which is -1.
    fails = np.array([*(name in names for name in snapshot.hosts.names), False], dtype=np.bool_)
    is_affected: BoolColumn = fails[vms.host]
    is_theirs = np.zeros(len(slots), dtype=np.bool_)
    is_theirs[members.slot[is_affected[members.vm]]] = True
    return is_affected, is_held & is_theirs


def _vms(snapshot: ZoneSnapshot, chosen: BoolColumn) -> Iterator[DrillVM]:
    vms, names = snapshot.vms, snapshot.hosts.names
    columns = zip(
        vms.uuids,
        vms.host.tolist(),
        vms.memory_bytes.tolist(),
        vms.vcpus.tolist(),
        np.where(vms.is_owed, vms.required, 0).tolist(),
        chosen.tolist(),
        strict=True,
    )
    for uuid, host, memory_bytes, vcpus, required, is_chosen in columns:
        if is_chosen:
            yield DrillVM(
                uuid=uuid,
                host=names[host],
                size=_vector(memory_bytes, vcpus),
                required_count=required,
            )


def _slots(snapshot: ZoneSnapshot, chosen: BoolColumn) -> Iterator[DrillSlot]:
    slots, members = snapshot.slots, snapshot.members
    starts, rows = (column.tolist() for column in snapshot.members_of_slot)
    member_vms = members.vm.tolist()
    uuids = snapshot.vms.uuids
    for row in np.flatnonzero(chosen).tolist():
        yield DrillSlot(
            name=slots.names[row],
            host=snapshot.hosts.names[slots.host[row]],
            size=_vector(slots.memory_bytes[row], slots.vcpus[row]),
            users=tuple(uuids[member_vms[one]] for one in rows[starts[row] : starts[row + 1]]),
            is_usable=bool(slots.is_usable[row]),
        )


def _vector(memory_bytes: int, vcpus: int) -> ResourceVector:
    return ResourceVector(memory_bytes=int(memory_bytes), vcpus=int(vcpus))
