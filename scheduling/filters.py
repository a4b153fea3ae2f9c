"""Filters: which hosts may take a request at all (spec scheduling, 7.2 - 7.12).

A filter is a named function of the table, the request and the free columns. A *static* filter does
not look at the free columns; it states the key that its mask depends on, so that the engine
evaluates it once for all requests of a compatibility class. The others must be row-local: the mask
of some rows depends on these rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from scheduling.request import (
    KIND_COMMITTED,
    KIND_FAILOVER,
    KIND_IN_FLIGHT,
    PlacementRequest,
)
from scheduling.table import (
    BoolColumn,
    HostTable,
    Int64Column,
    UInt64Column,
    normalized_hypervisor_type,
)

_REQUIRED_CONDITIONS: Mapping[str, str] = {"HypervisorDisabled": "False", "Terminating": "False"}
_TYPES_WITH_CAPABILITIES = frozenset({"qemu", "ch"})
_BITS_PER_WORD = 64

Rows: TypeAlias = slice | Int64Column


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FreeColumns:
    """What a request may use of each host, negative where a host is over-used.

    Attributes:
        memory_bytes: int64, one figure for each of ``rows``.
        vcpus: int64, likewise.
        rows: The rows of the table that the figures (and a mask made from them) are about.
    """

    memory_bytes: Int64Column
    vcpus: Int64Column
    rows: Rows = field(default_factory=lambda: slice(None))


MaskFunction: TypeAlias = Callable[[HostTable, PlacementRequest, FreeColumns], BoolColumn]
KeyFunction: TypeAlias = Callable[[HostTable, PlacementRequest], Hashable]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter as a step of a pipeline.

    Attributes:
        name: Stable name, as in explanations and pipeline definitions.
        mask: Returns true for the hosts to keep.
        static_key: What the mask of a static filter depends on besides the table's static columns;
            None for a filter that looks at the free columns.
    """

    name: str
    mask: MaskFunction
    static_key: KeyFunction | None = None


def free_columns(table: HostTable, request: PlacementRequest) -> FreeColumns:
    """Return what every host has free for a request.

    Effective capacity minus allocation (unless hosts are assumed empty) minus the blocks of all
    kinds that the request does not ignore. Not clamped. The arrays are fresh and may be written.

    Source: spec scheduling, 7.11 steps A and B.
    """
    memory_bytes = table.eff_memory_bytes.copy()
    vcpus = table.eff_vcpus.copy()
    if not request.assume_empty_hosts:
        memory_bytes -= table.alloc_memory_bytes
        vcpus -= table.alloc_vcpus
    blocks = (
        (KIND_COMMITTED, table.committed_memory_bytes, table.committed_vcpus),
        (KIND_FAILOVER, table.failover_memory_bytes, table.failover_vcpus),
        (KIND_IN_FLIGHT, table.in_flight_memory_bytes, table.in_flight_vcpus),
    )
    for kind, blocked_memory_bytes, blocked_vcpus in blocks:
        if kind not in request.ignored_kinds:
            memory_bytes -= blocked_memory_bytes
            vcpus -= blocked_vcpus
    return FreeColumns(memory_bytes=memory_bytes, vcpus=vcpus)


def conditions_allow_placement(conditions: Mapping[str, str]) -> bool:
    """Return whether a host with these conditions may get anything new.

    ``Ready`` must be there and True (product: a host without it fails), ``HypervisorDisabled`` and
    ``Terminating`` must be False or missing, other conditions do not matter.

    Args:
        conditions: Condition type -> status (``True``, ``False``, ``Unknown``).

    Source: spec scheduling, 7.2.
    """
    return conditions.get("Ready") == "True" and all(
        conditions.get(name, wanted) == wanted for name, wanted in _REQUIRED_CONDITIONS.items()
    )


def _status_mask(table: HostTable, _request: PlacementRequest, _free: FreeColumns) -> BoolColumn:
    return table.state_ok


def _no_key(_table: HostTable, _request: PlacementRequest) -> Hashable:
    return None


def _zone_mask(table: HostTable, request: PlacementRequest, _free: FreeColumns) -> BoolColumn:
    if not request.zone:
        return _everything(table)
    if request.zone not in table.zones:
        return _nothing(table)
    kept: BoolColumn = table.zone == table.zones.index(request.zone)
    return kept


def _zone_key(_table: HostTable, request: PlacementRequest) -> Hashable:
    return request.zone


def _host_instructions_mask(
    table: HostTable, request: PlacementRequest, _free: FreeColumns
) -> BoolColumn:
    if request.force_hosts is None:
        kept = _everything(table)
    else:
        kept = _nothing(table)
        kept[_known_rows(table, request.force_hosts)] = True
    if request.ignore_hosts is not None:
        kept[_known_rows(table, request.ignore_hosts)] = False
    return kept


def _host_instructions_key(_table: HostTable, request: PlacementRequest) -> Hashable:
    return (request.ignore_hosts or None, request.force_hosts)


def _capabilities_mask(
    table: HostTable, request: PlacementRequest, _free: FreeColumns
) -> BoolColumn:
    if request.hypervisor_type is None:
        return _everything(table)
    wanted = normalized_hypervisor_type(request.hypervisor_type)
    if wanted not in _TYPES_WITH_CAPABILITIES or wanted not in table.hypervisor_types:
        return _nothing(table)
    kept: BoolColumn = table.hypervisor_type == table.hypervisor_types.index(wanted)
    return kept


def _capabilities_key(_table: HostTable, request: PlacementRequest) -> Hashable:
    return request.hypervisor_type


def _traits_mask(table: HostTable, request: PlacementRequest, _free: FreeColumns) -> BoolColumn:
    if not request.required_traits.issubset(table.trait_bit):
        return _nothing(table)
    kept = _everything(table)
    if request.required_traits:
        required = _trait_words(table, request.required_traits)
        kept &= ((table.traits & required) == required).all(axis=1)
    if request.forbidden_traits:
        forbidden = _trait_words(table, request.forbidden_traits)
        kept &= ((table.traits & forbidden) == 0).all(axis=1)
    return kept


def _traits_key(_table: HostTable, request: PlacementRequest) -> Hashable:
    return (request.required_traits, request.forbidden_traits)


def _allowed_projects_mask(
    table: HostTable, request: PlacementRequest, _free: FreeColumns
) -> BoolColumn:
    if not request.project_id:
        return _everything(table)
    class_is_open = np.zeros(len(table.tenant_classes), dtype=np.bool_)
    class_is_open[list(_open_classes(table, request))] = True
    return class_is_open[table.tenant_class]


def _allowed_projects_key(table: HostTable, request: PlacementRequest) -> Hashable:
    return _open_classes(table, request) if request.project_id else None


def _open_classes(table: HostTable, request: PlacementRequest) -> tuple[int, ...]:
    project_id = request.project_id
    return tuple(
        code
        for code, projects in enumerate(table.tenant_classes)
        if not projects or project_id in projects
    )


def _capacity_mask(_table: HostTable, request: PlacementRequest, free: FreeColumns) -> BoolColumn:
    kept: BoolColumn = free.memory_bytes >= request.memory_bytes
    if request.vcpus:
        kept &= free.vcpus >= request.vcpus
    return kept


def _everything(table: HostTable) -> BoolColumn:
    return np.ones(len(table), dtype=np.bool_)


def _nothing(table: HostTable) -> BoolColumn:
    return np.zeros(len(table), dtype=np.bool_)


def _known_rows(table: HostTable, names: Iterable[str]) -> list[int]:
    return [table.row_of[name] for name in names if name in table.row_of]


def _trait_words(table: HostTable, traits: Collection[str]) -> UInt64Column:
    words = [0] * table.traits.shape[1]
    for trait in traits:
        if trait in table.trait_bit:
            word, bit = divmod(table.trait_bit[trait], _BITS_PER_WORD)
            words[word] |= 1 << bit
    return np.array(words, dtype=np.uint64)


filter_status_conditions = Filter(
    name="filter_status_conditions", mask=_status_mask, static_key=_no_key
)
"""Keep hosts whose conditions allow placement (spec scheduling, 7.2)."""

filter_correct_az = Filter(name="filter_correct_az", mask=_zone_mask, static_key=_zone_key)
"""Keep hosts of the requested zone; hosts without a zone are removed (spec scheduling, 7.3)."""

filter_host_instructions = Filter(
    name="filter_host_instructions", mask=_host_instructions_mask, static_key=_host_instructions_key
)
"""Remove the hosts to ignore, then keep only the forced ones (spec scheduling, 7.4)."""

filter_capabilities = Filter(
    name="filter_capabilities", mask=_capabilities_mask, static_key=_capabilities_key
)
"""Keep hosts of the requested hypervisor type (spec scheduling, 7.6; other keys come later)."""

filter_has_requested_traits = Filter(
    name="filter_has_requested_traits", mask=_traits_mask, static_key=_traits_key
)
"""Keep hosts with all required and no forbidden trait (spec scheduling, 7.7)."""

filter_allowed_projects = Filter(
    name="filter_allowed_projects", mask=_allowed_projects_mask, static_key=_allowed_projects_key
)
"""Keep hosts that are open to all or to the request's project (spec scheduling, 7.12)."""

filter_has_enough_capacity = Filter(name="filter_has_enough_capacity", mask=_capacity_mask)
"""Keep hosts with room for the request; hosts without capacity figures have none (7.11)."""
