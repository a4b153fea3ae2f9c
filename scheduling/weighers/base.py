"""What a weigher is, and how ties are broken (spec scheduling, 5.2, 8.1, 15.12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from scheduling.columns import FloatColumn, UInt64Column, text_hash
from scheduling.free import FreeColumns
from scheduling.request import PlacementRequest
from scheduling.table import HostTable

ActivationFunction: TypeAlias = Callable[[HostTable, PlacementRequest, FreeColumns], FloatColumn]

_MIX_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_MIX_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_FACTOR_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1 = np.uint64(30)
_SHIFT_2 = np.uint64(27)
_SHIFT_3 = np.uint64(31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weigher:
    """A weigher as a step of a pipeline.

    Attributes:
        name: Stable name, as in explanations and pipeline definitions.
        activation: Returns one figure for each row of the free columns; 0 means "no effect".
        multiplier: Factor of ``tanh(activation)`` in the score.
        is_row_local: Whether the activation of a host depends on that host alone. The engine then
            follows changes row by row, else it weighs all survivors again.
        is_of_survivors: Of one that is not, whether it depends on which hosts survive and what
            they are, not on their room: it is weighed again only when others survive.
        is_active: Whether the weigher has any effect for a request; None for always.
        preferred_rows: Rows of hosts that come before all others whatever the scores, as a tier
            of their own; None if the weigher only weighs.
    """

    name: str
    activation: ActivationFunction
    multiplier: float = 1.0
    is_row_local: bool = True
    is_of_survivors: bool = False
    is_active: Callable[[PlacementRequest], bool] | None = None
    preferred_rows: Callable[[HostTable, PlacementRequest], Sequence[int]] | None = None


def no_effect(free: FreeColumns) -> FloatColumn:
    """Return an activation of 0 for each row."""
    return np.zeros(len(free.vcpus), dtype=np.float64)


def tie_break_hashes(name_hashes: UInt64Column, request_key: str) -> UInt64Column:
    """Return one stable pseudo-random number per host for a request; the lowest wins a tie.

    The mix of both hashes (splitmix64 finaliser) is the same in every process and spreads the
    choices of different requests evenly.

    Args:
        name_hashes: uint64[K], hashes of the tied hosts' names.
        request_key: Key of the request.

    Source: spec scheduling, 5.2 "Ties".
    """
    mixed: UInt64Column = (name_hashes ^ np.uint64(text_hash(request_key))) + _MIX_INCREMENT
    mixed = (mixed ^ (mixed >> _SHIFT_1)) * _MIX_FACTOR_1
    mixed = (mixed ^ (mixed >> _SHIFT_2)) * _MIX_FACTOR_2
    return mixed ^ (mixed >> _SHIFT_3)
