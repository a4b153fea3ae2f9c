from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from scheduling.engine import schedule
from scheduling.evaluation import CompiledPipeline
from scheduling.filters import free_columns
from scheduling.resources import ResourceVector
from scheduling.table import HostTable
from scheduling.table_rows import HostRow
from scheduling.weighers import Weigher, kvm_binpack, tie_break_hashes

from .worlds import ask, gib, mix_by_hand, roomy

MEMORY = {"memory": 1.0}
CPU = {"cpu": 1.0}


def activation_of(weigher: Weigher, row: HostRow, memory_gib: int, vcpus: int) -> float:
    table, request = HostTable.from_rows([row]), ask(memory_gib, vcpus)
    return float(weigher.activation(table, request, free_columns(table, request))[0])


def hundred(allocated: ResourceVector, **fields: object) -> HostRow:
    return roomy("h", effective=gib(100, 100), allocated=allocated, **fields)


@pytest.mark.parametrize(
    ("allocated", "asked", "weights", "expected"),
    [
        pytest.param(gib(80, 0), (8, 1), MEMORY, 0.88, id="80 GiB, memory"),
        pytest.param(gib(20, 0), (8, 1), MEMORY, 0.28, id="20 GiB, memory"),
        pytest.param(gib(0, 80), (1, 4), CPU, 0.84, id="80 cpu"),
        pytest.param(gib(0, 20), (1, 4), CPU, 0.24, id="20 cpu"),
        pytest.param(gib(80, 80), (8, 4), {"memory": 1.0, "cpu": 1.0}, 0.86, id="1:1"),
        pytest.param(
            gib(80, 80), (8, 4), {"memory": 1.0, "cpu": 2.0}, 0.8533, id="cpu 2, memory 1"
        ),
        pytest.param(gib(99, 0), (8, 1), MEMORY, 1.07, id="may exceed 1"),
    ],
)
def test_binpack_activation_is_the_weighted_mean_utilisation(
    allocated: ResourceVector, asked: tuple[int, int], weights: Mapping[str, float], expected: float
) -> None:
    weigher = kvm_binpack(resource_weights=weights)
    assert activation_of(weigher, hundred(allocated), *asked) == pytest.approx(expected, abs=1e-4)


def test_binpack_has_no_effect_on_a_host_without_capacity() -> None:
    host = roomy("h", effective=gib(0, 0), allocated=gib(4, 4))
    weigher = kvm_binpack(resource_weights={"memory": 1.0, "cpu": 1.0})
    assert activation_of(weigher, host, 8, 4) == 0.0


def test_binpack_leaves_out_a_resource_that_the_host_lacks() -> None:
    host = roomy("h", effective=gib(100, 0), allocated=gib(80, 0))
    weigher = kvm_binpack(resource_weights={"memory": 1.0, "cpu": 1.0})
    assert activation_of(weigher, host, 8, 4) == pytest.approx(0.88)


@pytest.mark.parametrize(("counts", "expected"), [(False, 0.28), (True, 0.48)])
def test_binpack_counts_blocks_as_used_only_when_told(counts: bool, expected: float) -> None:
    host = hundred(gib(20, 0), committed=gib(10, 0), failover=gib(6, 0), in_flight=gib(4, 0))
    weigher = kvm_binpack(count_reservations=counts)
    assert activation_of(weigher, host, 8, 4) == pytest.approx(expected)


@pytest.mark.parametrize(
    "weights",
    [{}, {"memory": 0.0}, {"cpu": -1.0}, {"memory": 1.0, "disk": 1.0}],
    ids=["empty", "zero", "negative", "unknown resource"],
)
def test_binpack_refuses_wrong_weights(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="kvm_binpack"):
        kvm_binpack(resource_weights=weights)


@pytest.mark.parametrize(("multiplier", "best"), [(1.0, "full"), (-1.0, "empty")])
def test_multiplier_turns_packing_into_spreading(multiplier: float, best: str) -> None:
    rows = [roomy("full", allocated=gib(500, 0)), roomy("empty")]
    weighers = (kvm_binpack(multiplier=multiplier),)
    pipeline = CompiledPipeline(name="p", filters=(), weighers=weighers)
    assert schedule(HostTable.from_rows(rows), ask(), pipeline).host_name == best


def test_score_is_the_sum_of_multiplier_times_tanh_in_weigher_order() -> None:
    def constant(name: str, activation: float, multiplier: float) -> Weigher:
        return Weigher(
            name=name,
            activation=lambda _table, _request, free: np.full(len(free.vcpus), activation),
            multiplier=multiplier,
        )

    weighers = (constant("one", 0.5, 1.0), constant("two", 0.3, 2.0))
    pipeline = CompiledPipeline(name="p", filters=(), weighers=weighers)
    (candidate,) = schedule(HostTable.from_rows([roomy("h")]), ask(), pipeline).top
    assert candidate.score == pytest.approx(0.4621 + 2 * 0.2913, abs=1e-4)
    assert dict(candidate.contributions) == {
        "one": pytest.approx(0.4621, abs=1e-4),
        "two": pytest.approx(2 * 0.2913, abs=1e-4),
    }


def test_tie_break_equals_the_same_arithmetic_on_python_integers() -> None:
    table = HostTable.from_rows([roomy(f"host-{number}") for number in range(50)])
    hashes = tie_break_hashes(table.name_hashes, "slot-7").tolist()
    assert hashes == [mix_by_hand(name, "slot-7") for name in table.names]


def test_tie_break_is_the_same_in_every_process() -> None:
    table = HostTable.from_rows([roomy("host-1")])
    assert tie_break_hashes(table.name_hashes, "slot-7").tolist() == [11866915880918667623]


def test_ties_of_different_requests_spread_over_the_hosts() -> None:
    table = HostTable.from_rows([roomy(f"host-{number}") for number in range(10)])
    chosen = Counter(
        schedule(table, replace(ask(), request_key=f"slot-{number}")).host_name
        for number in range(1000)
    )
    assert len(chosen) == 10
    assert min(chosen.values()) > 60
