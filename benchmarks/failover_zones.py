"""Zones of ``bench failover``: the synthetic model of the specification (failover, 17.4)."""

from __future__ import annotations

import numpy as np

from failover.domain.plan import BoolColumn, FloatColumn
from failover.domain.shadow import bare_zone
from failover.domain.zone_columns import (
    HostColumns,
    MemberColumns,
    SlotColumns,
    VMColumns,
    ZoneSnapshot,
)
from scheduling.resources import GIB

SIZES_GIB = np.array([16, 32, 64, 128, 256, 512], dtype=np.int64)
FREQUENCIES = np.array([16, 16, 8, 4, 2, 1], dtype=np.float64)
GIB_PER_VCPU = 8
HOST_GIB = 16_384


def model_zone(
    hosts: int, vms: int, *, required: int = 2, seed: int = 1, name: str = "az-1"
) -> ZoneSnapshot:
    """Return a zone without slots: VMs of six sizes, spread evenly over hosts with much room."""
    draw = np.random.default_rng(seed)
    memory = draw.choice(SIZES_GIB, size=vms, p=FREQUENCIES / FREQUENCIES.sum()) * GIB
    vcpus = memory // GIB // GIB_PER_VCPU
    host = (np.arange(vms) % hosts).astype(np.int32)
    used_memory = np.bincount(host, weights=memory, minlength=hosts).astype(np.int64)
    used_vcpus = np.bincount(host, weights=vcpus, minlength=hosts).astype(np.int64)
    nothing = np.zeros(hosts, dtype=np.int64)
    none = np.zeros(0, dtype=np.int64)
    flags = np.zeros(0, dtype=np.bool_)
    yes = np.ones(vms, dtype=np.bool_)
    codes = np.zeros(vms, dtype=np.int32)
    snapshot = ZoneSnapshot(
        zone=name,
        hosts=HostColumns(
            ids=np.arange(1, hosts + 1),
            names=tuple(f"{name}-node{number:05}" for number in range(hosts)),
            racks=tuple(f"{name}-bb{number // 20:03}" for number in range(hosts)),
            is_ready=np.ones(hosts, dtype=np.bool_),
            effective_memory_bytes=nothing + HOST_GIB * GIB,
            effective_vcpus=nothing + HOST_GIB // GIB_PER_VCPU,
            used_memory_bytes=used_memory,
            used_vcpus=used_vcpus,
            held_memory_bytes=nothing,
            held_vcpus=nothing,
            failover_memory_bytes=nothing,
            failover_vcpus=nothing,
        ),
        vms=VMColumns(
            ids=np.arange(1, vms + 1),
            uuids=tuple(f"{name}-vm{number:06}" for number in range(vms)),
            host=host,
            memory_bytes=memory,
            vcpus=vcpus,
            asked_memory_bytes=memory,
            asked_vcpus=vcpus,
            label_code=codes,
            labels=(("model", "model"),),
            required=np.full(vms, required, dtype=np.int32),
            is_owed=yes,
            class_code=codes,
            classes=("model",),
            is_listed=yes,
            is_seen=yes,
        ),
        slots=SlotColumns(
            ids=none,
            names=(),
            host=none.astype(np.int32),
            memory_bytes=none,
            vcpus=none,
            is_usable=flags,
            is_consuming=flags,
        ),
        members=MemberColumns(
            ids=none,
            slot=none.astype(np.int32),
            vm=none.astype(np.int32),
            joined_host=none.astype(np.int32),
            is_validated=flags,
        ),
        notes={"vms_listed": vms, "vms_reported": vms, "hosts_reporting": hosts},
    )
    return bare_zone(snapshot)


class RoomyChooser:
    """Every host with room may take every VM; the emptiest is preferred."""

    def __init__(self, snapshot: ZoneSnapshot) -> None:
        hosts = snapshot.hosts
        self._memory = (
            hosts.effective_memory_bytes
            - hosts.used_memory_bytes
            - hosts.held_memory_bytes
            - hosts.failover_memory_bytes
        )
        self._vcpus = (
            hosts.effective_vcpus - hosts.used_vcpus - hosts.held_vcpus - hosts.failover_vcpus
        )

    def compatible(self, class_code: int) -> BoolColumn:
        """Return bool[H], all hosts."""
        del class_code
        return np.ones(len(self._memory), dtype=np.bool_)

    def scores(self, class_code: int, memory_bytes: int, vcpus: int) -> FloatColumn:
        """Return float64[H], free memory in bytes; minus infinity where there is no room."""
        del class_code
        has_room = (self._memory >= memory_bytes) & (self._vcpus >= vcpus)
        return np.where(has_room, self._memory.astype(np.float64), -np.inf)

    def place(self, host: int, class_code: int, memory_bytes: int, vcpus: int) -> None:
        """Count a new slot on a host from now on."""
        del class_code
        self._memory[host] -= memory_bytes
        self._vcpus[host] -= vcpus
