from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.columns import BoolColumn
from scheduling.decision import StepRemoval, explain_removals
from scheduling.engine import SLOT_PIPELINE, Batch, passing_hosts, schedule, schedule_many
from scheduling.evaluation import CompiledPipeline
from scheduling.filters import (
    Filter,
    FreeColumns,
    filter_has_enough_capacity,
    filter_status_conditions,
)
from scheduling.request import PlacementRequest, UnplaceableRequestError
from scheduling.resources import GIB, ZERO, ResourceVector
from scheduling.table import HostTable
from scheduling.table_rows import HostRow
from scheduling.weighers import kvm_binpack, kvm_prefer_smaller_hosts

from .worlds import (
    SlowScheduler,
    ask,
    easy_requests,
    free_of,
    fullest_of_all,
    gib,
    requests,
    roomy,
    worlds,
)

BOTH = {"memory": 2.0, "cpu": 1.0}
SPREADING = CompiledPipeline(
    name="spreading",
    filters=(filter_has_enough_capacity, *SLOT_PIPELINE.filters[:-1]),
    weighers=(kvm_binpack(resource_weights=BOTH, multiplier=-1.5, count_reservations=True),),
)
ORACLES = {
    "packing": (SLOT_PIPELINE, {"memory": 1.0}, 1.0),
    "spreading, capacity first": (SPREADING, BOTH, -1.5),
    "weigher that looks at all survivors": (
        replace(SLOT_PIPELINE, weighers=(fullest_of_all(is_row_local=False),)),
        {"memory": 1.0},
        1.0,
    ),
}
batches = st.lists(easy_requests, max_size=12) | st.lists(requests | easy_requests, max_size=8)


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("max_candidates", [0, 1, 2])
def test_batch_equals_one_slow_decision_after_the_other(name: str, max_candidates: int) -> None:
    pipeline, weights, multiplier = ORACLES[name]

    @given(rows=worlds, batch=batches)
    def check(rows: list[HostRow], batch: list[PlacementRequest]) -> None:
        slow = SlowScheduler(
            rows=rows,
            steps=[step.name for step in pipeline.filters],
            weights=weights,
            multiplier=multiplier,
        )
        table = HostTable.from_rows(rows)
        decisions = schedule_many(table, batch, pipeline, max_candidates=max_candidates)
        assert [decision.request for decision in decisions] == batch
        for decision in decisions:
            expected = slow.decide(decision.request)
            names = [candidate.host_name for candidate in decision.top]
            assert decision.host_name == expected.host_name
            assert names == expected.ordered[: max_candidates or None]
            assert [removal.removed for removal in decision.removals] == expected.removed
            closest = decision.closest
            assert (closest.host_name if closest else None) == expected.closest

    check()


@given(rows=worlds, batch=batches)
def test_weigher_of_survivors_is_asked_again_only_when_others_survive(
    rows: list[HostRow], batch: list[PlacementRequest]
) -> None:
    small = kvm_prefer_smaller_hosts(resource_weights=BOTH)
    spared, always = (
        replace(SLOT_PIPELINE, weighers=(*SLOT_PIPELINE.weighers, weigher))
        for weigher in (small, replace(small, is_of_survivors=False))
    )
    table = HostTable.from_rows(rows)
    assert schedule_many(table, batch, spared, max_candidates=0) == schedule_many(
        table, batch, always, max_candidates=0
    )


@given(rows=worlds, batch=batches)
def test_batch_never_books_a_host_beyond_its_room(
    rows: list[HostRow], batch: list[PlacementRequest]
) -> None:
    row_of = {row.name: row for row in rows}
    taken: dict[str, ResourceVector] = {}
    for decision in schedule_many(HostTable.from_rows(rows), batch):
        if decision.host_name is not None:
            name, request = decision.host_name, decision.request
            taken[name] = taken.get(name, ZERO) + request.asked
            assert taken[name].fits_into(free_of(row_of[name], request))
            assert decision.host_id == row_of[name].host_id


@given(rows=worlds, batch=batches, seed=st.randoms(use_true_random=False))
def test_order_of_the_table_rows_does_not_change_the_choice(
    rows: list[HostRow], batch: list[PlacementRequest], seed: object
) -> None:
    shuffled = list(rows)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis' random.Random
    straight = schedule_many(HostTable.from_rows(rows), batch, max_candidates=3)
    assert schedule_many(HostTable.from_rows(shuffled), batch, max_candidates=3) == straight


@given(rows=worlds, request=requests, filters=st.permutations(SLOT_PIPELINE.filters))
def test_order_of_the_filters_never_changes_the_survivors(
    rows: list[HostRow], request: PlacementRequest, filters: list[object]
) -> None:
    table = HostTable.from_rows(rows)
    shuffled = replace(SLOT_PIPELINE, filters=tuple(filters))  # type: ignore[arg-type]
    straight = schedule(table, request, max_candidates=0)
    permuted = schedule(table, request, shuffled, max_candidates=0)
    assert permuted.top == straight.top
    assert passing_hosts(table, request, shuffled).sum() == len(straight.top)


@given(rows=worlds, batch=batches)
def test_same_input_gives_the_same_output_with_warm_and_cold_masks(
    rows: list[HostRow], batch: list[PlacementRequest]
) -> None:
    table = HostTable.from_rows(rows)
    first = schedule_many(table, batch)
    assert schedule_many(table, batch) == first
    assert schedule_many(HostTable.from_rows(rows), batch) == first


def test_static_mask_is_made_once_for_a_compatibility_class() -> None:
    asked: list[str] = []

    def mask(rows: HostTable, request: PlacementRequest, _free: FreeColumns) -> BoolColumn:
        asked.append(request.zone)
        return filter_status_conditions.mask(rows, request, _free)

    step = Filter(name="by zone", mask=mask, static_key=lambda _table, request: request.zone)
    pipeline = CompiledPipeline(name="p", filters=(step,), weighers=())
    table = HostTable.from_rows([roomy("a"), roomy("b")])
    for zone in ("az-1", "az-1", "az-2", "az-1"):
        for memory_gib in (1, 2):
            schedule(table, ask(memory_gib, zone=zone), pipeline)
    assert asked == ["az-1", "az-2"]
    busier = table.replace_rows([roomy("a", allocated=gib(5, 5))])
    schedule(busier, ask(zone="az-1"), pipeline)
    assert asked == ["az-1", "az-2"], "the room of a host is no part of the class"
    elsewhere = table.replace_rows([roomy("a", zone="az-9")])
    schedule(elsewhere, ask(zone="az-1"), pipeline)
    assert asked == ["az-1", "az-2", "az-1"]


def test_packing_fills_one_host_before_it_opens_the_next() -> None:
    rows = [roomy(f"host-{number}", effective=gib(8, 8)) for number in range(3)]
    batch = [replace(ask(2, 2), request_key=f"slot-{number}") for number in range(13)]
    decisions = schedule_many(HostTable.from_rows(rows), batch)
    names = [decision.host_name for decision in decisions]
    assert [len(set(names[start : start + 4])) for start in (0, 4, 8)] == [1, 1, 1]
    assert set(names[:12]) == {"host-0", "host-1", "host-2"}
    assert names[12] is None


def test_host_full_of_reservations_counts_as_full_when_slots_are_packed() -> None:
    rows = [
        roomy("reserved", committed=gib(600, 0)),
        roomy("used", allocated=gib(500, 0)),
    ]
    assert schedule(HostTable.from_rows(rows), ask()).host_name == "reserved"


def test_refused_request_blocks_nothing_for_the_next() -> None:
    table = HostTable.from_rows([roomy("h", effective=gib(8, 8))])
    too_big, fitting = schedule_many(table, [ask(9, 1), ask(8, 8)])
    assert (too_big.host_name, fitting.host_name) == (None, "h")


def test_what_the_caller_places_blocks_like_what_the_batch_chose() -> None:
    table = HostTable.from_rows([roomy(name, effective=gib(8, 8)) for name in "ab"])
    batch = Batch(table, SLOT_PIPELINE)
    by_hand, chosen = (replace(ask(8, 8), request_key=key) for key in ("by hand", "chosen"))
    batch.place(table.row_of["b"], by_hand)
    assert batch.decide(chosen, 1).host_name == "a"
    assert batch.decide(ask(1, 1), 1).host_name is None
    assert list(batch.placed) == [(table.row_of["b"], by_hand), (table.row_of["a"], chosen)]


def test_empty_table_refuses_with_all_steps_at_zero() -> None:
    decision = schedule(HostTable.from_rows([]), ask())
    assert decision.host_name is None
    assert decision.candidates_in == 0
    assert decision.closest is None
    assert {(removal.removed, removal.remaining) for removal in decision.removals} == {(0, 0)}


def test_pipeline_without_filters_keeps_every_host() -> None:
    table = HostTable.from_rows([roomy("a"), roomy("b")])
    pipeline = CompiledPipeline(name="bare", filters=(), weighers=())
    decision = schedule(table, ask(), pipeline, max_candidates=0)
    assert sorted(candidate.host_name for candidate in decision.top) == ["a", "b"]
    assert decision.removals == ()


@pytest.mark.parametrize(("memory_gib", "vcpus"), [(0, 1), (1, 0)])
def test_request_without_memory_or_vcpus_fails(memory_gib: int, vcpus: int) -> None:
    with pytest.raises(UnplaceableRequestError):
        schedule(HostTable.from_rows([roomy("h")]), ask(memory_gib, vcpus))


def test_negative_request_and_unknown_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        ask(-1, 1)
    with pytest.raises(ValueError, match="unknown reservation kind: spare"):
        ask(ignored_kinds=frozenset({"spare"}))


def test_removals_are_counted_against_the_hosts_left_before_each_step() -> None:
    rows = [roomy("a", is_ready=False), roomy("b", effective=gib(1, 1)), roomy("c")]
    pipeline = CompiledPipeline(
        name="two", filters=(filter_status_conditions, filter_has_enough_capacity), weighers=()
    )
    assert schedule(HostTable.from_rows(rows), ask(4, 4), pipeline).removals == (
        StepRemoval(step="filter_status_conditions", removed=1, remaining=2),
        StepRemoval(step="filter_has_enough_capacity", removed=1, remaining=1),
    )


def test_refusal_names_what_was_asked_the_steps_and_the_largest_free_room() -> None:
    rows = [
        roomy("down", zone="az-1", is_ready=False),
        roomy("elsewhere", zone="az-2"),
        roomy("small", zone="az-1", effective=gib(64, 16)),
        roomy("larger", zone="az-1", effective=gib(128, 32), allocated=gib(32, 8)),
    ]
    decision = schedule(HostTable.from_rows(rows), ask(256, 8, zone="az-1"))
    assert explain_removals(decision) == (
        "asked 256 GiB and 8 vCPUs on one host in zone az-1; started with 4 hosts, "
        "filter_status_conditions removed 1, filter_correct_az removed 1, "
        "filter_has_enough_capacity removed 2, 0 left; "
        "largest free room: 96 GiB and 24 vCPUs on larger"
    )


def test_explanation_of_a_placement_names_the_host() -> None:
    decision = schedule(HostTable.from_rows([roomy("h")]), ask(4, 2))
    assert explain_removals(decision) == (
        "asked 4 GiB and 2 vCPUs on one host in any zone; chose h; started with 1 hosts, 1 left"
    )


def test_explanation_never_shows_room_that_is_not_there() -> None:
    host = replace(roomy("h"), effective=gib(4, 4), allocated=gib(0, 5))
    request = PlacementRequest(request_key="r", memory_bytes=4 * GIB + 1, vcpus=1)
    text = explain_removals(schedule(HostTable.from_rows([host]), request))
    assert "asked 4.01 GiB" in text
    assert "largest free room: 4 GiB and -1 vCPUs on h" in text


def test_explanation_shows_negative_room_of_an_over_used_host() -> None:
    host = replace(roomy("h"), effective=gib(4, 4), allocated=gib(10, 0))
    text = explain_removals(schedule(HostTable.from_rows([host]), ask()))
    assert "largest free room: -6 GiB and 4 vCPUs on h" in text
