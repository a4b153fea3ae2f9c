"""Filters by server group and requested destination (spec scheduling, 7.10, 7.15)."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from scheduling.columns import BoolColumn, Int64Column, bit_words
from scheduling.filters.base import NO_GROUP, NO_IMAGE, Filter, everything, known_rows, nothing
from scheduling.free import FreeColumns
from scheduling.request import InstanceGroup, PlacementRequest, RequestedDestination
from scheduling.table import HostTable

_NO_GROUP = InstanceGroup(policy="")
_ANYWHERE = RequestedDestination()


def member_counts(table: HostTable, group: InstanceGroup, free: FreeColumns) -> Int64Column:
    """Return how many members of a group run on each host, one figure for each of ``free.rows``.

    Members that the same batch has placed before count too.
    """
    counts = np.zeros(len(table), dtype=np.int64)
    for member in group.members:
        rows = {*table.instance_index.rows_of(member), *free.placed.get(member, ())}
        counts[sorted(rows)] += 1
    return counts[free.rows]


def _affinity_mask(table: HostTable, request: PlacementRequest, _free: FreeColumns) -> BoolColumn:
    kept = nothing(table)
    kept[known_rows(table, (request.instance_group or _NO_GROUP).hosts)] = True
    return kept


def _affinity_key(_table: HostTable, request: PlacementRequest) -> Hashable:
    return (request.instance_group or _NO_GROUP).hosts


def _wants_affinity(request: PlacementRequest) -> bool:
    group = request.instance_group or _NO_GROUP
    return request.intent not in NO_GROUP and group.policy == "affinity" and bool(group.hosts)


def _affinity_remedy(
    _table: HostTable, _request: PlacementRequest, _free: FreeColumns, _row: int
) -> str:
    return "the host must run a member of the server group"


def _spread_mask(table: HostTable, request: PlacementRequest, free: FreeColumns) -> BoolColumn:
    group = request.instance_group or _NO_GROUP
    kept: BoolColumn = member_counts(table, group, free) < group.max_per_host
    runs_it = np.zeros(len(table), dtype=np.bool_)
    runs_it[list(table.instance_index.rows_of(request.request_key))] = True
    return (kept | runs_it[free.rows]) & table.is_known[free.rows]


def _wants_spread(request: PlacementRequest) -> bool:
    group = request.instance_group or _NO_GROUP
    return (
        request.intent not in NO_GROUP and group.policy == "anti-affinity" and bool(group.members)
    )


def _spread_remedy(table: HostTable, request: PlacementRequest, free: FreeColumns, row: int) -> str:
    group = request.instance_group or _NO_GROUP
    rows = np.array([row], dtype=np.int64)
    if not table.is_known[row]:
        return "the host is not known"
    count = int(member_counts(table, group, free.at(rows))[0])
    return (
        f"{count} members of the server group are on the host, less than {group.max_per_host} may"
    )


def _destination_mask(
    table: HostTable, request: PlacementRequest, _free: FreeColumns
) -> BoolColumn:
    wanted = request.requested_destination or _ANYWHERE
    kept = everything(table)
    for choice in wanted.aggregates:
        members = [word.strip() for word in choice.split(",")]
        words = bit_words([members], table.aggregate_bit, table.aggregates.shape[1])[0]
        kept &= ((table.aggregates & words) != 0).any(axis=1)
    if wanted.host:
        is_it = nothing(table)
        is_it[known_rows(table, (wanted.host,))] = True
        kept &= is_it
    return kept


def _destination_key(_table: HostTable, request: PlacementRequest) -> Hashable:
    return request.requested_destination


def _wants_destination(request: PlacementRequest) -> bool:
    wanted = request.requested_destination
    return (
        wanted is not None
        and request.intent not in NO_IMAGE
        and bool(wanted.host or wanted.aggregates)
    )


def _destination_remedy(
    table: HostTable, request: PlacementRequest, _free: FreeColumns, row: int
) -> str:
    wanted = request.requested_destination or _ANYWHERE
    if wanted.host and table.names[row] != wanted.host:
        return f"host {wanted.host} is asked for"
    return f"the host must be in the aggregates {' and '.join(wanted.aggregates)}"


filter_instance_group_affinity = Filter(
    name="filter_instance_group_affinity",
    mask=_affinity_mask,
    static_key=_affinity_key,
    is_active=_wants_affinity,
    remedy=_affinity_remedy,
)
"""Keep hosts of the VM's affinity group (spec scheduling, 7.10)."""

filter_instance_group_anti_affinity = Filter(
    name="filter_instance_group_anti_affinity",
    mask=_spread_mask,
    is_active=_wants_spread,
    remedy=_spread_remedy,
)
"""Remove hosts with enough members of the VM's anti-affinity group (spec scheduling, 7.10)."""

filter_requested_destination = Filter(
    name="filter_requested_destination",
    mask=_destination_mask,
    static_key=_destination_key,
    is_active=_wants_destination,
    remedy=_destination_remedy,
)
"""Keep hosts of the requested aggregates, or the requested host alone (7.15)."""
