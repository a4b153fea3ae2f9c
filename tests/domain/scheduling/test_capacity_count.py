from __future__ import annotations

import numpy as np
import pytest

from scheduling.capacity_count import slots_per_host
from scheduling.engine import SLOT_PIPELINE
from scheduling.resources import GIB

STEPS = tuple(step.name for step in SLOT_PIPELINE.filters)


@pytest.mark.parametrize(
    ("memory_bytes", "vcpus", "flavor_vcpus", "slots"),
    [
        pytest.param(8 * GIB, 64, 2, 2, id="memory binds"),
        pytest.param(32 * GIB, 3, 2, 1, id="cores bind"),
        pytest.param(8 * GIB, 4, 2, 2, id="both bind"),
        pytest.param(8 * GIB, 0, 0, 2, id="flavor without vCPUs"),
        pytest.param(4 * GIB - 1, 64, 2, 0, id="one byte short"),
        pytest.param(32 * GIB, 1, 2, 0, id="one core short"),
        pytest.param(-8 * GIB, 64, 2, 0, id="negative memory"),
        pytest.param(8 * GIB, -64, 2, 0, id="negative cores"),
        pytest.param(8 * GIB, -64, 0, 2, id="negative cores, flavor without vCPUs"),
    ],
)
def test_slots_are_the_smaller_quotient(
    memory_bytes: int, vcpus: int, flavor_vcpus: int, slots: int
) -> None:
    counted = slots_per_host(np.array([memory_bytes]), np.array([vcpus]), 4 * GIB, flavor_vcpus)
    assert counted.tolist() == [slots]


@pytest.mark.parametrize(("memory_bytes", "vcpus"), [(0, 1), (-1, 1), (1, -1)])
def test_flavor_without_memory_cannot_be_counted(memory_bytes: int, vcpus: int) -> None:
    with pytest.raises(ValueError, match="flavor"):
        slots_per_host(np.array([1]), np.array([1]), memory_bytes, vcpus)


TOTAL = {
    "assume_empty_hosts": True,
    "ignored_kinds": frozenset({"committed", "failover"}),
}
