"""Weighers by reservations on a host (spec scheduling, 8.5 - 8.7)."""

from __future__ import annotations

from collections import Counter

import numpy as np

from scheduling.columns import FloatColumn, Int64Column
from scheduling.free import FreeColumns
from scheduling.intents import Intent
from scheduling.request import PlacementRequest
from scheduling.table import HostTable
from scheduling.weighers.base import Weigher, no_effect


def kvm_failover_evacuation(
    *,
    failover_host_weight: float = 1.0,
    default_host_weight: float = 0.1,
    multiplier: float = 1.0,
) -> Weigher:
    """Return the weigher that sends an evacuated VM to the hosts of its failover slots.

    These hosts come first whatever other weighers say (product), as long as they weigh more here.

    Args:
        failover_host_weight: Activation where a ready slot of the VM is (``failoverHostWeight``).
        default_host_weight: Activation elsewhere (``defaultHostWeight``).
        multiplier: Factor of the squashed activation.

    Source: spec scheduling, 8.5 and 15.7.
    """

    def rows_with_slot(table: HostTable, request: PlacementRequest) -> list[int]:
        slots = table.reservations.failover_of_vm.get(request.request_key, ())
        return [
            table.row_of[slot.observed_host]
            for slot in slots
            if slot.is_ready and slot.observed_host in table.row_of
        ]

    def activation(table: HostTable, request: PlacementRequest, free: FreeColumns) -> FloatColumn:
        column = np.full(len(table), default_host_weight)
        column[rows_with_slot(table, request)] = failover_host_weight
        return column[free.rows]

    is_preference = multiplier * (failover_host_weight - default_host_weight) > 0

    return Weigher(
        name="kvm_failover_evacuation",
        activation=activation,
        multiplier=multiplier,
        is_active=lambda request: request.intent is Intent.EVACUATE,
        preferred_rows=rows_with_slot if is_preference else None,
    )


def kvm_failover_reservation_consolidation(
    *,
    total_count_weight: float = 1.0,
    same_spec_penalty: float = 0.1,
    multiplier: float = 1.0,
) -> Weigher:
    """Return the weigher that gathers failover slots on few hosts, equal ones apart.

    Activation ``W / T * c - P / T * s``: T ready slots in all, c of them on the host, s of these
    with the request's resource group.

    Args:
        total_count_weight: W, 0 or more (``totalCountWeight``).
        same_spec_penalty: P, 0 or more, less than W, or 0 if W is 0 (``sameSpecPenalty``).
        multiplier: Factor of the squashed activation.

    Raises:
        ValueError: If W or P is not valid.

    Source: spec scheduling, 8.6.
    """
    if not (total_count_weight >= 0 and same_spec_penalty >= 0):
        raise ValueError("totalCountWeight and sameSpecPenalty must not be negative")
    if same_spec_penalty and same_spec_penalty >= total_count_weight:
        raise ValueError("sameSpecPenalty must be less than totalCountWeight")

    def activation(table: HostTable, request: PlacementRequest, free: FreeColumns) -> FloatColumn:
        total, counts, same = _failover_counts(table, request.resource_group)
        if not total:
            return no_effect(free)
        column: FloatColumn = total_count_weight / total * counts - same_spec_penalty / total * same
        return column[free.rows]

    return Weigher(
        name="kvm_failover_reservation_consolidation",
        activation=activation,
        multiplier=multiplier,
        is_active=lambda request: request.intent is Intent.RESERVE_FOR_FAILOVER,
    )


def _failover_counts(table: HostTable, resource_group: str) -> tuple[int, Int64Column, Int64Column]:
    slots = table.reservations.failover
    cached = table.slot_cache.get(("failover counts", resource_group))
    if cached is not None and cached[0] is slots:
        answer: tuple[int, Int64Column, Int64Column] = cached[1]
        return answer
    placed = [slot for slot in slots if slot.is_ready and slot.observed_host]
    counts = Counter(slot.observed_host for slot in placed)
    same = Counter(
        slot.observed_host
        for slot in placed
        if resource_group and slot.resource_group == resource_group
    )
    answer = (len(placed), _by_row(table, counts), _by_row(table, same))
    table.slot_cache["failover counts", resource_group] = (slots, answer)
    return answer


def _by_row(table: HostTable, counts: Counter[str]) -> Int64Column:
    column = np.zeros(len(table), dtype=np.int64)
    for host, count in counts.items():
        if host in table.row_of:
            column[table.row_of[host]] = count
    return column


def kvm_committed_resource_reservation(
    *,
    reservation_host_weight: float = 1.0,
    default_host_weight: float = 0.1,
    multiplier: float = 1.0,
) -> Weigher:
    """Return the weigher that sends a VM to hosts with a committed slot that still has its room.

    The group is that of the hint, else that of the flavor (product). A request without zone finds
    slots of any zone.

    Args:
        reservation_host_weight: Activation where such a slot is (``reservationHostWeight``).
        default_host_weight: Activation elsewhere (``defaultHostWeight``).
        multiplier: Factor of the squashed activation.

    Source: spec scheduling, 8.7.
    """

    def activation(table: HostTable, request: PlacementRequest, free: FreeColumns) -> FloatColumn:
        column = np.full(len(table), default_host_weight)
        column[_rows_with_room(table, request)] = reservation_host_weight
        return column[free.rows]

    return Weigher(
        name="kvm_committed_resource_reservation",
        activation=activation,
        multiplier=multiplier,
        is_active=lambda request: (
            request.intent is not Intent.RESERVE_FOR_FAILOVER and bool(_group(request))
        ),
    )


def _group(request: PlacementRequest) -> str:
    return request.resource_group or request.commitment_group


def _rows_with_room(table: HostTable, request: PlacementRequest) -> Int64Column:
    key = (request.project_id, _group(request))
    slots = table.reservations.committed.get(key, ())
    cache_key = ("room", *key, request.zone)
    cached = table.slot_cache.get(cache_key)
    if cached is None or cached[0] is not slots:
        found = [
            (table.row_of[slot.observed_host], slot.full.memory_bytes - slot.expected_memory_bytes)
            for slot in slots
            if slot.is_ready
            and slot.observed_host in table.row_of
            and request.zone in {"", slot.zone}
        ]
        cached = (slots, np.array(found, dtype=np.int64).reshape(-1, 2))
        table.slot_cache[cache_key] = cached
    rows_and_room: Int64Column = cached[1]
    rows: Int64Column = rows_and_room[rows_and_room[:, 1] >= request.memory_bytes, 0]
    return rows
