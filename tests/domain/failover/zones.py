"""Zones as columns for tests of the planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from failover.domain.plan import BoolColumn, FloatColumn
from failover.domain.slots import FailoverSlot
from failover.domain.zone_columns import (
    HostColumns,
    MemberColumns,
    SlotColumns,
    VMColumns,
    ZoneSnapshot,
)

GIB = 1 << 30


class OpenChooser:
    """Any host of the zone may take any VM as long as it has room; all score the same."""

    def __init__(
        self, snapshot: ZoneSnapshot, compatible: Mapping[int, BoolColumn] | None = None
    ) -> None:
        hosts = snapshot.hosts
        self._compatible = compatible or {}
        self._free = [
            hosts.effective_memory_bytes
            - hosts.used_memory_bytes
            - hosts.held_memory_bytes
            - hosts.failover_memory_bytes,
            hosts.effective_vcpus - hosts.used_vcpus - hosts.held_vcpus - hosts.failover_vcpus,
        ]

    def compatible(self, class_code: int) -> BoolColumn:
        everywhere = np.ones(len(self._free[0]), dtype=np.bool_)
        return self._compatible.get(class_code, everywhere).copy()

    def scores(self, class_code: int, memory_bytes: int, vcpus: int) -> FloatColumn:
        has_room = (self._free[0] >= memory_bytes) & (self._free[1] >= vcpus)
        return np.where(has_room & self.compatible(class_code), 0.0, -np.inf)

    def place(self, host: int, class_code: int, memory_bytes: int, vcpus: int) -> None:
        self._free[0][host] -= memory_bytes
        self._free[1][host] -= vcpus


def zone_of(
    hosts: Sequence[str],
    vms: Mapping[str, str],
    slots: Sequence[FailoverSlot] = (),
    *,
    required: int | Mapping[str, int] = 1,
    vm_gib: int | Mapping[str, int] = 8,
    vm_vcpus: int = 4,
    host_gib: int = 1024,
    seen: Sequence[str] = (),
    notes: Mapping[str, int] | None = None,
    classes: Mapping[str, int] | None = None,
) -> ZoneSnapshot:
    """Return a zone.

    Args:
        hosts: Names of its hosts.
        vms: VM -> host it runs on, as the VM list says.
        slots: Failover reservations; a size of None is that of the VMs.
        required: Reservations each VM needs.
        vm_gib: Memory of each VM.
        vm_vcpus: vCPUs of each VM.
        host_gib: Memory of each host.
        seen: VMs that some host reports.
        notes: Facts about the reading.
        classes: VM -> compatibility class.
    """
    row = {name: number for number, name in enumerate(hosts)}
    recorded = {user.vm_uuid: user.host for slot in slots for user in slot.users}
    uuids = sorted({*vms, *recorded})
    vm_row = {uuid: number for number, uuid in enumerate(uuids)}
    memory = np.array([_of(vm_gib, uuid) * GIB for uuid in uuids], dtype=np.int64)
    used = np.zeros(len(hosts), dtype=np.int64)
    for uuid, host in vms.items():
        if host in row:
            used[row[host]] += _of(vm_gib, uuid) * GIB
    default_gib = vm_gib if isinstance(vm_gib, int) else max(vm_gib.values(), default=8)
    sizes = [slot.memory_bytes or default_gib * GIB for slot in slots]
    held = np.zeros(len(hosts), dtype=np.int64)
    for slot, size in zip(slots, sizes, strict=True):
        if slot.host in row:
            held[row[slot.host]] += size
    zero = np.zeros(len(hosts), dtype=np.int64)
    users = [(number, user) for number, slot in enumerate(slots) for user in slot.users]
    users.sort(key=lambda pair: pair[1].joined_at)
    listed = np.array([uuid in vms for uuid in uuids], dtype=np.bool_)
    ones = np.ones(len(uuids), dtype=np.bool_)
    return ZoneSnapshot(
        zone="az-a",
        hosts=HostColumns(
            ids=np.arange(1, len(hosts) + 1),
            names=tuple(hosts),
            racks=("",) * len(hosts),
            is_ready=np.ones(len(hosts), dtype=np.bool_),
            effective_memory_bytes=zero + host_gib * GIB,
            effective_vcpus=zero + 10_000,
            used_memory_bytes=used,
            used_vcpus=zero.copy(),
            held_memory_bytes=zero.copy(),
            held_vcpus=zero.copy(),
            failover_memory_bytes=held,
            failover_vcpus=zero.copy(),
        ),
        vms=VMColumns(
            ids=np.arange(len(uuids)),
            uuids=tuple(uuids),
            host=np.array([row.get(vms.get(uuid, ""), -1) for uuid in uuids], dtype=np.int32),
            memory_bytes=memory,
            vcpus=np.full(len(uuids), vm_vcpus, dtype=np.int64),
            asked_memory_bytes=memory,
            asked_vcpus=np.full(len(uuids), vm_vcpus, dtype=np.int64),
            label_code=np.zeros(len(uuids), dtype=np.int32),
            labels=(("m1.large", "m1.large"),),
            required=np.array([_of(required, uuid) for uuid in uuids], dtype=np.int32),
            is_owed=ones,
            class_code=np.array([(classes or {}).get(u, 0) for u in uuids], dtype=np.int32),
            classes=tuple(range(1 + max((classes or {"": 0}).values()))),
            is_listed=listed,
            is_seen=np.array([uuid in seen for uuid in uuids], dtype=np.bool_),
        ),
        slots=SlotColumns(
            ids=np.arange(1, len(slots) + 1),
            names=tuple(slot.name for slot in slots),
            host=np.array([row.get(slot.host, -1) for slot in slots], dtype=np.int32),
            memory_bytes=np.array(sizes, dtype=np.int64),
            vcpus=np.full(len(slots), vm_vcpus, dtype=np.int64),
            is_usable=np.ones(len(slots), dtype=np.bool_),
            is_consuming=np.zeros(len(slots), dtype=np.bool_),
        ),
        members=MemberColumns(
            ids=np.arange(len(users)),
            slot=np.array([number for number, _ in users], dtype=np.int32),
            vm=np.array([vm_row[user.vm_uuid] for _, user in users], dtype=np.int32),
            joined_host=np.array([row.get(user.host, -1) for _, user in users], dtype=np.int32),
            is_validated=np.zeros(len(users), dtype=np.bool_),
        ),
        notes=notes or {},
    )


def _of(given: int | Mapping[str, int], uuid: str) -> int:
    return given if isinstance(given, int) else given[uuid]
