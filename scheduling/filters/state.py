"""Filters by state, place and name of a host (spec scheduling, 7.2 - 7.4, 7.17, 7.18)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

import numpy as np

from scheduling.columns import BoolColumn
from scheduling.filters.base import Filter, everything, known_rows, nothing
from scheduling.free import FreeColumns
from scheduling.request import PlacementRequest
from scheduling.table import HostTable

_REQUIRED_CONDITIONS: Mapping[str, str] = {"HypervisorDisabled": "False", "Terminating": "False"}
_HARMLESS_MAINTENANCE = ("", "auto", "ha")


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


def _status_remedy(
    table: HostTable, _request: PlacementRequest, _free: FreeColumns, row: int
) -> str:
    if not table.is_known[row]:
        return "the host is not known"
    return "the host must be ready, enabled and not terminating"


def _zone_mask(table: HostTable, request: PlacementRequest, _free: FreeColumns) -> BoolColumn:
    if request.zone not in table.zones:
        return nothing(table)
    kept: BoolColumn = table.zone == table.zones.index(request.zone)
    return kept


def _zone_key(_table: HostTable, request: PlacementRequest) -> Hashable:
    return request.zone


def _zone_remedy(table: HostTable, request: PlacementRequest, _free: FreeColumns, row: int) -> str:
    zone = table.zones[table.zone[row]]
    is_in = f"is in zone {zone}" if zone else "has no zone"
    return f"the host {is_in}, zone {request.zone} is asked for"


def _instructions_mask(
    table: HostTable, request: PlacementRequest, _free: FreeColumns
) -> BoolColumn:
    if request.force_hosts is None:
        kept = everything(table)
    else:
        kept = nothing(table)
        kept[known_rows(table, request.force_hosts)] = True
    if request.ignore_hosts is not None:
        kept[known_rows(table, request.ignore_hosts)] = False
    return kept


def _instructions_key(_table: HostTable, request: PlacementRequest) -> Hashable:
    return (request.ignore_hosts or None, request.force_hosts)


def _instructions_remedy(
    table: HostTable, request: PlacementRequest, _free: FreeColumns, row: int
) -> str:
    if request.ignore_hosts is not None and table.names[row] in request.ignore_hosts:
        return "the request must not ignore the host"
    return "the host must be among those that the request forces"


def _maintenance_mask(
    table: HostTable, _request: PlacementRequest, _free: FreeColumns
) -> BoolColumn:
    is_harmless = np.array(
        [mode in _HARMLESS_MAINTENANCE for mode in table.maintenance_modes], dtype=np.bool_
    )
    return is_harmless[table.maintenance]


def _maintenance_remedy(
    table: HostTable, _request: PlacementRequest, _free: FreeColumns, row: int
) -> str:
    return f"maintenance {table.maintenance_modes[table.maintenance[row]]} must end"


def filter_exclude_hosts(*, excluded_hosts: Collection[str]) -> Filter:
    """Return the filter that removes named hosts (spec scheduling, 7.17).

    Args:
        excluded_hosts: Exact names; unknown ones are harmless (``excludedHosts``).
    """
    excluded = frozenset(excluded_hosts)

    def mask(table: HostTable, _request: PlacementRequest, _free: FreeColumns) -> BoolColumn:
        kept = everything(table)
        kept[known_rows(table, excluded)] = False
        return kept

    def key(_table: HostTable, _request: PlacementRequest) -> Hashable:
        return excluded

    def remedy(_table: HostTable, _request: PlacementRequest, _free: FreeColumns, _row: int) -> str:
        return "the pipeline must not exclude the host"

    return Filter(name="filter_exclude_hosts", mask=mask, static_key=key, remedy=remedy)


filter_status_conditions = Filter(
    name="filter_status_conditions",
    mask=_status_mask,
    static_key=_no_key,
    remedy=_status_remedy,
)
"""Keep hosts whose conditions allow placement (spec scheduling, 7.2)."""

filter_takes_slots = Filter(
    name="filter_takes_slots",
    mask=lambda table, _request, _free: table.takes_slots,
    static_key=_no_key,
    remedy=lambda _table, _request, _free, _row: "the agent of the host must be heard and healthy",
)
"""Keep hosts whose agents give no reason against new slots; not for pipelines of VMs."""

filter_correct_az = Filter(
    name="filter_correct_az",
    mask=_zone_mask,
    static_key=_zone_key,
    is_active=lambda request: bool(request.zone),
    remedy=_zone_remedy,
)
"""Keep hosts of the requested zone; hosts without a zone are removed (spec scheduling, 7.3)."""

filter_host_instructions = Filter(
    name="filter_host_instructions",
    mask=_instructions_mask,
    static_key=_instructions_key,
    is_active=lambda request: bool(request.ignore_hosts) or request.force_hosts is not None,
    remedy=_instructions_remedy,
)
"""Remove the hosts to ignore, then keep only the forced ones (spec scheduling, 7.4)."""

filter_maintenance = Filter(
    name="filter_maintenance",
    mask=_maintenance_mask,
    static_key=_no_key,
    remedy=_maintenance_remedy,
)
"""Retired: remove hosts in manual, terminating or unknown maintenance (spec scheduling, 7.18)."""
