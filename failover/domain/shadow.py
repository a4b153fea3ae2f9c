"""A zone without its slots, and a zone after a plan: for shadow plans (spec failover, 17.4)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from failover.domain.plan import CoverPlan
from failover.domain.zone_columns import (
    Int64Column,
    MemberColumns,
    SlotColumns,
    ZoneSnapshot,
)

_NO_KEYS = np.zeros(0, dtype=np.int64)
_NO_ROWS = np.zeros(0, dtype=np.int32)
_NO_FLAGS = np.zeros(0, dtype=np.bool_)


def bare_zone(snapshot: ZoneSnapshot) -> ZoneSnapshot:
    """Return the zone as if it had no failover slots, so that a plan starts from scratch."""
    hosts = snapshot.hosts
    nothing = np.zeros(len(hosts), dtype=np.int64)
    return replace(
        snapshot,
        hosts=replace(hosts, failover_memory_bytes=nothing, failover_vcpus=nothing),
        slots=SlotColumns(
            ids=_NO_KEYS,
            names=(),
            host=_NO_ROWS,
            memory_bytes=_NO_KEYS,
            vcpus=_NO_KEYS,
            is_usable=_NO_FLAGS,
            is_consuming=_NO_FLAGS,
        ),
        members=MemberColumns(
            ids=_NO_KEYS,
            slot=_NO_ROWS,
            vm=_NO_ROWS,
            joined_host=_NO_ROWS,
            is_validated=_NO_FLAGS,
        ),
    )


def zone_after(snapshot: ZoneSnapshot, cover: CoverPlan) -> ZoneSnapshot:
    """Return the zone with the slots and users that a plan adds.

    New slots are named ``new-<number>``; keys of new rows continue those that are there.
    """
    hosts, slots, members = snapshot.hosts, snapshot.slots, snapshot.members
    made = sorted(cover.created, key=lambda slot: slot.number)
    host = np.array([slot.host for slot in made], dtype=np.int32)
    memory = np.array([slot.memory_bytes for slot in made], dtype=np.int64)
    vcpus = np.array([slot.vcpus for slot in made], dtype=np.int64)
    joined_vm = np.array([vm for vm, _ in cover.joins], dtype=np.int32)
    joined_slot = np.array([slot for _, slot in cover.joins], dtype=np.int32)
    ready = np.ones(len(made), dtype=np.bool_)
    return replace(
        snapshot,
        hosts=replace(
            hosts,
            failover_memory_bytes=_added(hosts.failover_memory_bytes, host, memory),
            failover_vcpus=_added(hosts.failover_vcpus, host, vcpus),
        ),
        slots=replace(
            slots,
            ids=_continued(slots.ids, len(made)),
            names=(*slots.names, *(f"new-{slot.number}" for slot in made)),
            host=np.concatenate([slots.host, host]),
            memory_bytes=np.concatenate([slots.memory_bytes, memory]),
            vcpus=np.concatenate([slots.vcpus, vcpus]),
            is_usable=np.concatenate([slots.is_usable, ready]),
            is_consuming=np.concatenate([slots.is_consuming, ~ready]),
        ),
        members=replace(
            members,
            ids=_continued(members.ids, len(joined_vm)),
            slot=np.concatenate([members.slot, joined_slot]),
            vm=np.concatenate([members.vm, joined_vm]),
            joined_host=np.concatenate([members.joined_host, snapshot.vms.host[joined_vm]]),
            is_validated=np.concatenate(
                [members.is_validated, np.zeros(len(joined_vm), dtype=np.bool_)]
            ),
        ),
    )


def _added(column: Int64Column, rows: NDArray[np.int32], amounts: Int64Column) -> Int64Column:
    total = column.copy()
    np.add.at(total, rows, amounts)
    return total


def _continued(ids: Int64Column, count: int) -> Int64Column:
    first = int(ids.max()) + 1 if len(ids) else 1
    return np.concatenate([ids, np.arange(first, first + count, dtype=np.int64)])
