"""The filter of what slots need besides memory and vCPUs (spec hosts, D.12)."""

from __future__ import annotations

import numpy as np

from scheduling.columns import BoolColumn, Int64Column
from scheduling.filters.base import Filter
from scheduling.free import FreeColumns
from scheduling.needs import OTHER_RESOURCES
from scheduling.request import PlacementRequest
from scheduling.table import HostTable

NEEDS_FILTER = "filter_has_other_resources"


def _mask(_table: HostTable, request: PlacementRequest, free: FreeColumns) -> BoolColumn:
    assert free.others is not None  # noqa: S101 - columns of a request with needs have them
    missing: Int64Column = np.array(request.needs, dtype=np.int64) - free.others
    kept: BoolColumn = missing.max(axis=1) <= 0
    return kept


def _remedy(_table: HostTable, request: PlacementRequest, free: FreeColumns, row: int) -> str:
    assert free.others is not None  # noqa: S101 - as above
    return short_of(request, tuple(free.others[row].tolist()))


def short_of(request: PlacementRequest, left: tuple[int, ...]) -> str:
    """Return what of a request's needs is not left, with the numbers; empty if all is."""
    return ", ".join(
        f"{name}: requested {needed}, available {max(0, available)}"
        for name, needed, available in zip(OTHER_RESOURCES, request.needs, left, strict=True)
        if needed > available
    )


filter_has_other_resources = Filter(
    name=NEEDS_FILTER,
    mask=_mask,
    is_active=lambda request: any(request.needs),
    measures_room=True,
    remedy=_remedy,
)
"""Keep hosts that have network, disk I/O and GPUs left for a slot; hosts of which nothing is known
are kept. Slots whose flavor needs some of it are judged by it beside their own pipeline."""
