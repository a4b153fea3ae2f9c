"""What a filter is (spec scheduling, 5.2, 7.1, 15.1).

A filter is a named function of the table, the request and the free columns. A *static* filter does
not look at the free columns; it states the key that its mask depends on, so that the engine
evaluates it once for all requests of a compatibility class. The others must be row-local: the mask
of some rows depends on these rows only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from scheduling.columns import BoolColumn
from scheduling.free import FreeColumns
from scheduling.intents import Intent
from scheduling.request import PlacementRequest
from scheduling.table import HostTable

ON_ERROR_FAIL = "fail"
ON_ERROR_SKIP = "skip"

NEVER_A_VM = frozenset({Intent.CAPACITY_PROBE})
"""Intents without a tenant: a probe asks about hosts. Failover slots are for their VM's tenant, so
tenant filters judge them like the VM itself (product, failover 16.4)."""

NO_IMAGE = frozenset(
    {
        Intent.RESERVE_FOR_FAILOVER,
        Intent.REUSE_FAILOVER_RESERVATION,
        Intent.RESERVE_FOR_COMMITTED_RESOURCE,
        Intent.CAPACITY_PROBE,
    }
)
"""Intents that place no VM of their own, so that image and destination say nothing (7.1)."""

NO_GROUP = frozenset({Intent.RESERVE_FOR_COMMITTED_RESOURCE, Intent.CAPACITY_PROBE})
"""Intents without server group; failover has that of its VM (product, failover 16.4)."""


class StepError(Exception):
    """A step cannot judge the request; what follows depends on the step's error policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """Something that a step wants counted.

    Attributes:
        step: Name of the step.
        event: Name of the event.
        labels: Further labels.
        count: How often it happened in the run.
    """

    step: str
    event: str
    labels: Mapping[str, str] = field(default_factory=dict)
    count: int = 1


MaskFunction: TypeAlias = Callable[[HostTable, PlacementRequest, FreeColumns], BoolColumn]
KeyFunction: TypeAlias = Callable[[HostTable, PlacementRequest], Hashable]
EventFunction: TypeAlias = Callable[[HostTable, PlacementRequest, BoolColumn], Iterable[StepEvent]]
RemedyFunction: TypeAlias = Callable[[HostTable, PlacementRequest, FreeColumns, int], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter as a step of a pipeline.

    Attributes:
        name: Stable name, as in explanations and pipeline definitions.
        mask: Returns true for the hosts to keep.
        static_key: What the mask of a static filter depends on besides the table's static columns;
            None for a filter that looks at the free columns.
        is_active: Whether the filter does anything for a request; None for always.
        on_error: ``fail`` fails the request when the filter cannot judge, ``skip`` keeps all hosts.
        adapt: Returns the request with the step's own parameters combined; None for none.
        measures_room: Whether it asks for room; the closest host is found without such filters.
        events: Returns what to count, given the candidates (bool[N]).
        remedy: Says what would have to change for a host (its row) that the filter removes.
    """

    name: str
    mask: MaskFunction
    static_key: KeyFunction | None = None
    is_active: Callable[[PlacementRequest], bool] | None = None
    on_error: str = ON_ERROR_FAIL
    adapt: Callable[[PlacementRequest], PlacementRequest] | None = None
    measures_room: bool = False
    events: EventFunction | None = None
    remedy: RemedyFunction | None = None


def everything(table: HostTable) -> BoolColumn:
    """Return a mask that keeps every host."""
    return np.ones(len(table), dtype=np.bool_)


def nothing(table: HostTable) -> BoolColumn:
    """Return a mask that keeps no host."""
    return np.zeros(len(table), dtype=np.bool_)


def known_rows(table: HostTable, names: Iterable[str]) -> list[int]:
    """Return the rows of the hosts that the table has."""
    return [table.row_of[name] for name in names if name in table.row_of]


def listed(words: Iterable[str]) -> str:
    """Return words in alphabetical order for a text."""
    return ", ".join(sorted(words))
