from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.decision import explain_removals
from scheduling.engine import schedule, schedule_many
from scheduling.evaluation import CompiledPipeline
from scheduling.explain import explain_host
from scheduling.filters import (
    Filter,
    filter_has_enough_capacity,
    filter_quota_enforcement,
    filter_status_conditions,
)
from scheduling.filters.base import StepError
from scheduling.intents import CallOptions, Intent
from scheduling.pipelines import compile_pipeline
from scheduling.record import DecisionRecord, InvalidOptionsError, PackedMask, record_run
from scheduling.request import InstanceGroup, PlacementRequest
from scheduling.shipped_pipelines import SHIPPED
from scheduling.table import HostTable
from scheduling.weighers import Weigher
from scheduling.weighing_text import WeighedHost, weighing_text

from .full_worlds import World, full_requests, full_worlds, kept, only, slow_verdict
from .test_every_filter import can_be_judged
from .test_every_weigher import slow_activation
from .worlds import ask, gib, mix_by_hand, roomy


def weigher(name: str, figures: Mapping[str, float], multiplier: float = 1.0) -> Weigher:
    return Weigher(
        name=name,
        activation=lambda table, _request, free: np.array(
            [figures.get(host, 0.0) for host in table.names]
        )[free.rows],
        multiplier=multiplier,
    )


def keeping(name: str, hosts: Collection[str], **fields: Any) -> Filter:
    return Filter(
        name=name,
        mask=lambda table, _request, free: np.array([host in hosts for host in table.names])[
            free.rows
        ],
        **fields,
    )


def pipeline(*steps: Filter | Weigher) -> CompiledPipeline:
    return CompiledPipeline(
        name="p",
        filters=tuple(one for one in steps if isinstance(one, Filter)),
        weighers=tuple(one for one in steps if isinstance(one, Weigher)),
    )


def scores_of(record: DecisionRecord) -> dict[str, float]:
    return dict(zip(record.ordered_hosts, record.scores.tolist(), strict=True))


def table(names: str) -> HostTable:
    return HostTable.from_rows([roomy(name) for name in names])


def test_hosts_that_come_first_whatever_the_weights_are_told_apart() -> None:
    loud = weigher("loud", {"a": 3.0, "b": 2.0, "c": -1.0}, 2.0)
    tier = replace(weigher("tier", {}), preferred_rows=lambda rows, _: [rows.row_of["c"]])
    record = record_run(table("abc"), ask(), pipeline(loud, tier))
    assert (record.ordered_hosts, record.preferred) == (("c", "a", "b"), 1)
    lines = record.text().splitlines()
    assert "Before all others, whatever the weights: c." in lines
    assert not [line for line in lines if "c is ahead" in line]
    assert [line for line in lines if line.startswith("a is ahead of b because of loud")]


def test_each_step_is_timed_by_the_clock_of_the_caller() -> None:
    ticks = itertools.count()
    inactive = replace(weigher("w2", {}), is_active=lambda _: False)
    steps = pipeline(keeping("f1", "ab"), keeping("f2", "a"), weigher("w1", {"a": 1.0}), inactive)
    record = record_run(table("abc"), ask(), steps, clock=lambda: float(next(ticks) ** 2))
    assert record.step_seconds == (("f1", 1.0), ("f2", 5.0), ("w1", 9.0))
    assert record_run(table("abc"), ask(), steps).step_seconds == ()


def given_weights(**weights: float) -> PlacementRequest:
    return ask(hosts=tuple(weights), weights=weights)


# --- 5.2 ----------------------------------------------------------------------------------------


def test_filter_and_weigher_together() -> None:
    steps = pipeline(keeping("f", "ab"), weigher("w", {"a": 0.5, "b": 1.0}))
    record = record_run(table("abc"), given_weights(a=0.0, b=0.0, c=0.0), steps)
    assert record.ordered_hosts == ("b", "a")
    assert record.target_host == "b"


def test_input_weights_are_squashed_if_there_is_a_weigher() -> None:
    request = given_weights(a=1000.0, b=-1000.0, c=0.0)
    record = record_run(table("abc"), request, pipeline(weigher("w", {})))
    assert dict(zip(record.ordered_hosts, record.start_weights, strict=True)) == {
        "a": 1.0,
        "c": 0.0,
        "b": -1.0,
    }
    assert scores_of(record_run(table("abc"), request, pipeline())) == request.weights


def test_scores_add_up() -> None:
    steps = pipeline(weigher("1", {"a": 0.5, "b": 0.2}), weigher("2", {"a": 0.3, "b": 0.4}))
    record = record_run(table("ab"), given_weights(a=1000.0, b=1000.0), steps)
    assert scores_of(record) == pytest.approx({"a": 1.7534, "b": 1.5773}, abs=1e-4)


def test_hosts_are_ordered_by_score() -> None:
    steps = pipeline(weigher("w", {"1": 0.5, "2": 1.0, "3": 0.2}))
    assert record_run(table("123"), ask(), steps).ordered_hosts == ("2", "1", "3")


def test_weigher_is_not_asked_when_no_host_survives() -> None:
    steps = pipeline(keeping("f", ""), Weigher(name="w", activation=broken))
    record = record_run(table("ab"), ask(), steps)
    assert (record.ordered_hosts, record.weighers[0].ignored_because) == ((), "")


@pytest.mark.parametrize(("limit", "count"), [(0, 4), (1, 1), (2, 2), (10, 4)])
def test_max_candidates_keeps_the_best(limit: int, count: int) -> None:
    request = given_weights(a=4.0, b=3.0, c=2.0, d=1.0)
    options = CallOptions(max_candidates=limit)
    record = record_run(table("abcd"), request, pipeline(), options)
    assert record.ordered_hosts == tuple("abcd")[:count]
    assert len(scores_of(record)) == count
    assert (
        "4 hosts remaining"
        in record_run(table("abcd"), request, pipeline(keeping("f", "abcd")), options).text()
    )


def test_hosts_listed_twice_count_once() -> None:
    record = record_run(table("ab"), ask(hosts=("a", "a", "b")), pipeline())
    assert sorted(record.ordered_hosts) == ["a", "b"]


def test_filter_that_adds_hosts_cannot() -> None:
    steps = pipeline(keeping("first", "a"), keeping("second", "ab"))
    record = record_run(table("ab"), ask(), steps)
    assert record.ordered_hosts == ("a",)


def broken(_table: HostTable, _request: PlacementRequest, _free: object) -> Any:
    raise StepError("no idea")


@pytest.mark.parametrize(
    "mask",
    [broken, lambda _table, _request, _free: np.ones(1, dtype=np.bool_)],
    ids=["raises", "shape"],
)
@pytest.mark.parametrize("is_static", [False, True])
def test_error_of_a_filter_fails_or_skips(mask: Any, is_static: bool) -> None:
    key = (lambda _table, _request: 1) if is_static else None
    safety = Filter(name="safety", mask=mask, static_key=key)
    failed = record_run(table("ab"), ask(), pipeline(safety))
    assert failed.failure
    assert failed.text() == f"CompiledPipeline run failed: {failed.failure}."
    assert failed.ordered_hosts == ()
    assert failed.target_host is None
    decision = schedule(table("ab"), ask(), pipeline(safety))
    assert decision.failure == failed.failure
    assert explain_removals(decision).endswith(f"the run failed: {failed.failure}")
    skipped = record_run(table("ab"), ask(), pipeline(replace(safety, on_error="skip")))
    assert sorted(skipped.ordered_hosts) == ["a", "b"]
    assert skipped.filters[0].skipped_because
    assert not skipped.failure


@pytest.mark.parametrize(
    "activation",
    [
        broken,
        lambda _table, _request, _free: np.zeros(1),
        lambda _table, _request, free: np.full(len(free.vcpus), math.nan),
    ],
    ids=["raises", "shape", "nan"],
)
def test_weigher_that_errs_has_no_effect(activation: Any) -> None:
    steps = pipeline(Weigher(name="bad", activation=activation), weigher("good", {"b": 1.0}))
    record = record_run(table("ab"), ask(), steps)
    assert record.ordered_hosts == ("b", "a")
    assert record.weighers[0].ignored_because
    assert not record.weighers[1].ignored_because


def test_contradicting_options_are_refused() -> None:
    with pytest.raises(InvalidOptionsError, match="read_only requires skip_history"):
        record_run(table("a"), ask(), pipeline(), CallOptions(read_only=True))


def test_options_reach_the_filters() -> None:
    host = roomy("a", effective=gib(8, 8), allocated=gib(4, 4))
    steps = pipeline(filter_has_enough_capacity)
    rows = HostTable.from_rows([host])
    assert record_run(rows, ask(8, 8), steps).target_host is None
    empty = CallOptions(assume_empty_hosts=True)
    assert record_run(rows, ask(8, 8), steps, empty).target_host == "a"


def test_equal_hashes_fall_back_to_the_name() -> None:
    base = table("cab")
    equal = replace(base, name_hashes=np.zeros(3, dtype=np.uint64))
    assert record_run(equal, ask(), pipeline()).ordered_hosts == ("a", "b", "c")


# --- 10.1 and 10.3 ------------------------------------------------------------------------------


def test_record_knows_what_every_step_did() -> None:
    steps = pipeline(keeping("one", "abc"), keeping("two", ""), weigher("w", {}))
    record = record_run(table("abcd"), ask(intent=None), steps)
    assert [(one.step, one.removed_count, one.remaining) for one in record.filters] == [
        ("one", 1, 3),
        ("two", 3, 0),
    ]
    assert record.intent_label == "Unknown"
    assert record.text() == (
        "Started with 4 host(s).\n\none filtered out d\ntwo filtered out a, b, c\n\n"
        "0 hosts remaining"
    )


def test_top_hosts_carry_the_contributions() -> None:
    record = record_run(table("ab"), ask(), pipeline(weigher("w", {"b": 0.5}, 2.0)))
    (best,) = record.top(1)
    assert best.host_name == "b"
    assert dict(best.contributions) == pytest.approx({"w": 0.9242}, abs=1e-4)
    assert record.intent_label == "create"
    assert "b is ahead of a because of w" in record.text()


def named_table(*names: str) -> HostTable:
    return HostTable.from_rows([roomy(name) for name in names])


FIFTY = [f"host-{number:03}" for number in range(50)]
LETTERS = ["host-a", "host-b", "host-c"]


@pytest.mark.parametrize(
    ("names", "steps", "expected"),
    [
        pytest.param(
            LETTERS,
            [("filter_capacity", LETTERS[:2]), ("filter_status", LETTERS[:1])],
            "Started with 3 host(s).\n\nfilter_capacity filtered out host-c\n"
            "filter_status filtered out host-b\n\n1 hosts remaining (host-a)\n\n"
            "Selected host: host-a.",
            id="two filters",
        ),
        pytest.param(
            FIFTY,
            [("filter_big", FIFTY[:30])],
            "Started with 50 host(s).\n\nfilter_big filtered out "
            + ", ".join(FIFTY[30:40])
            + " (and 10 more)\n\n30 hosts remaining ("
            + ", ".join(FIFTY[:10])
            + " (and 20 more))\n\nSelected host: host-000.",
            id="many",
        ),
        pytest.param(
            ["a"],
            [("f", ["a"])],
            "Started with 1 host(s).\n\n\n1 hosts remaining (a)\n\nSelected host: a.",
            id="all survive",
        ),
        pytest.param(["a"], [], "Selected host: a.", id="no steps"),
        pytest.param([], [], "", id="no hosts"),
    ],
)
def test_explanation_text(
    names: list[str], steps: list[tuple[str, list[str]]], expected: str
) -> None:
    request = given_weights(**{name: -float(place) for place, name in enumerate(names)})
    filters = [keeping(name, kept) for name, kept in steps]
    text = record_run(named_table(*names), request, pipeline(*filters)).text()
    assert text.partition("\n\nInput")[0] == expected


@given(mask=st.lists(st.booleans(), max_size=40))
def test_packed_mask_gives_back_its_rows(mask: list[bool]) -> None:
    packed = PackedMask.pack(np.array(mask, dtype=np.bool_))
    assert packed.rows().tolist() == [row for row, is_set in enumerate(mask) if is_set]


# --- 10.4 ---------------------------------------------------------------------------------------


def weighed(
    steps: Mapping[str, tuple[float, Mapping[str, float]]],
    inputs: Mapping[str, float] | None = None,
) -> str:
    names = {name for _, figures in steps.values() for name in figures} | set(inputs or {})
    hosts = [
        WeighedHost(
            name=name,
            input_weight=(inputs or {}).get(name, 0.0),
            contributions=tuple(
                (step, multiplier * math.tanh(figures.get(name, 0.0)))
                for step, (multiplier, figures) in steps.items()
            ),
        )
        for name in sorted(names)
    ]
    return weighing_text(sorted(hosts, key=lambda host: -host.score))


@pytest.mark.parametrize(
    ("steps", "inputs", "mentions"),
    [
        pytest.param(
            {"w": (2.0, {"a": 1.0, "b": -0.5})}, None, "a is ahead of b because of w", id="x 2.0"
        ),
        pytest.param(
            {"w": (-1.0, {"a": -2.0, "b": 3.0})}, None, "a is ahead of b because of w", id="x -1.0"
        ),
        pytest.param(
            {
                "cpu": (3.0, {"a": 1.0, "b": 0.2, "c": -0.5}),
                "mem": (1.0, {"a": -0.3, "b": 0.8, "c": 0.1}),
            },
            None,
            "Without cpu, b would be first.",
            id="counterfactual",
        ),
        pytest.param(
            {"boost": (2.0, {"a": 1.5, "b": -0.5}), "penalty": (-0.5, {"a": 1.0, "b": -1.0})},
            None,
            "penalty opposed this order",
            id="opposed",
        ),
        pytest.param(
            {"big": (5.0, {"a": 1.0, "b": 0.0}), "tiny": (0.001, {"a": 1.0, "b": 0.0})},
            None,
            "Negligible here: tiny.",
            id="negligible",
        ),
        pytest.param(
            {"w": (1.0, {})},
            {"a": 0.8, "b": 0.2},
            "because of the input weights (+0.60)",
            id="bias",
        ),
        pytest.param({"w": (1.0, {})}, {"a": 0.2, "b": 0.2}, "by a narrow gap", id="narrow"),
    ],
)
def test_weighing_text_mentions(
    steps: Mapping[str, tuple[float, Mapping[str, float]]],
    inputs: Mapping[str, float] | None,
    mentions: str,
) -> None:
    assert mentions in weighed(steps, inputs)


def test_no_counterfactual_when_all_weighers_agree() -> None:
    text = weighed({"1": (1.0, {"a": 1.0, "b": 0.5}), "2": (1.0, {"a": 0.9, "b": 0.1})})
    assert "Without" not in text
    assert text.startswith("Best hosts: a, b.")


def test_nothing_is_said_without_pair_or_weigher() -> None:
    alone = WeighedHost(name="a", input_weight=0.0, contributions=(("w", 1.0),))
    bare = WeighedHost(name="a", input_weight=0.0, contributions=())
    assert weighing_text([]) == weighing_text([alone]) == weighing_text([bare, bare]) == ""


# --- the whole engine ---------------------------------------------------------------------------

SHIPPED_WHOLE = compile_pipeline(SHIPPED["kvm-general-purpose-load-balancing"])
ENFORCED = filter_quota_enforcement(enforce=True)
WHOLE = replace(
    SHIPPED_WHOLE,
    ignore_preselection=False,
    filters=tuple(ENFORCED if one.name == ENFORCED.name else one for one in SHIPPED_WHOLE.filters),
)
MULTIPLIERS = {one.name: one.multiplier for one in WHOLE.weighers}


def slow_run(world: World, request: PlacementRequest) -> tuple[list[str], dict[str, float]]:
    listed = [host for host in world.hosts if request.hosts is None or host.name in request.hosts]
    left = [
        host
        for host in listed
        if all(slow_verdict(step.name, world, host, replace(request)) for step in WHOLE.filters)
    ]
    view = World(hosts=tuple(left), reservations=world.reservations)
    scores = {}
    for host in left:
        score = math.tanh((request.weights or {}).get(host.name, 0.0))
        for name, multiplier in MULTIPLIERS.items():
            score += multiplier * math.tanh(slow_activation(name, view, host, request))
        scores[host.name] = score
    key = request.request_key
    ordered = sorted(scores, key=lambda name: (-scores[name], mix_by_hand(name, key)))
    return ordered, scores


def hosts_with_slot(world: World, request: PlacementRequest) -> set[str]:
    """Return the hosts that come first: with a failover slot of an evacuated VM (15.7)."""
    if request.intent is not Intent.EVACUATE:
        return set()
    return {
        row.observed_host
        for row in world.reservations
        if row.kind == "failover" and row.is_ready and request.request_key in row.vm_uuids
    }


@given(world=full_worlds, request=full_requests)
def test_whole_pipeline_equals_the_slow_run(world: World, request: PlacementRequest) -> None:
    iaas_2_is_not_ignored_here = replace(request, domain_name="other")
    request = iaas_2_is_not_ignored_here
    known = {host.name for host in world.hosts}
    if request.hosts is not None:
        request = replace(request, hosts=tuple(name for name in request.hosts if name in known))
    rows = world.table()
    record = record_run(rows, request, WHOLE)
    if not can_be_judged(world, request):
        assert record.failure.startswith("filter_live_migratable: source host")
        return
    ordered, scores = slow_run(world, request)
    assert set(record.ordered_hosts) == set(ordered)
    assert scores_of(record) == pytest.approx(scores)
    first, rest = (
        [scores[name] for name in record.ordered_hosts if (name in with_slot) is is_first]
        for with_slot in [hosts_with_slot(world, request)]
        for is_first in (True, False)
    )
    assert record.preferred == len(first)
    assert [scores[name] for name in record.ordered_hosts] == first + rest, "slot hosts first"
    for tier in (first, rest):
        assert tier == pytest.approx(sorted(tier, reverse=True))
        assert all(abs(score) <= 1 + 5 for score in tier)
    for rank, name in enumerate(record.ordered_hosts, start=1):
        explained = explain_host(rows, request, WHOLE, name)
        assert (explained.rank, explained.objections) == (rank, ())
        assert explained.score == pytest.approx(scores[name])
    assert record_run(rows, request, WHOLE).ordered_hosts == record.ordered_hosts


@given(world=full_worlds, request=full_requests)
def test_objections_are_the_filters_that_remove_the_host(
    world: World, request: PlacementRequest
) -> None:
    request = replace(request, domain_name="other", hosts=None)
    if not can_be_judged(world, request):
        return
    for host in world.hosts:
        explained = explain_host(world.table(), request, WHOLE, host.name)
        expected = [
            step.name for step in WHOLE.filters if not slow_verdict(step.name, world, host, request)
        ]
        assert [objection.step for objection in explained.objections] == expected
        assert explained.removed_by == (expected[0] if expected else None)
        assert (explained.rank is None) is bool(expected)
        assert all(objection.remedy for objection in explained.objections)


def test_step_without_remedy_still_says_something() -> None:
    explained = explain_host(table("ab"), ask(), pipeline(keeping("f", "a")), "b")
    assert [(one.step, one.remedy) for one in explained.objections] == [
        ("f", "f must accept the host")
    ]


def test_unknown_host_is_explained_too() -> None:
    explained = explain_host(table("a"), ask(), pipeline(filter_status_conditions), "x")
    assert (explained.is_known, explained.is_candidate) == (False, False)
    assert explained.objections[0].remedy == "the host is not known"


@given(
    world=full_worlds,
    batch=st.lists(full_requests, min_size=1, max_size=5),
)
def test_batch_equals_single_runs_on_a_table_with_the_blocks_before(
    world: World, batch: list[PlacementRequest]
) -> None:
    steps = only(filter_status_conditions, filter_has_enough_capacity)
    requests = [replace(request, hosts=None) for request in batch]
    taken: dict[str, Any] = {}
    for decision in schedule_many(world.table(), requests, steps):
        hosts = tuple(
            replace(host, effective=host.effective - taken.get(host.name, gib(0, 0)))
            for host in world.hosts
        )
        now = World(hosts=hosts, reservations=world.reservations)
        fitting = kept(now.table(), decision.request, *steps.filters)
        assert (decision.host_name in fitting) if fitting else decision.host_name is None
        if decision.host_name is not None:
            before = taken.get(decision.host_name, gib(0, 0))
            taken[decision.host_name] = before + decision.request.asked


def test_batch_spreads_the_members_of_a_group() -> None:
    group = InstanceGroup(policy="anti-affinity", members=frozenset({"v1", "v2", "v3"}))
    requests = [
        ask(request_key=vm, instance_group=group, hypervisor_type="qemu")
        for vm in ("v1", "v2", "v3")
    ]
    decisions = schedule_many(table("ab"), requests, WHOLE)
    names = [decision.host_name for decision in decisions]
    assert sorted(names[:2]) == ["a", "b"]  # type: ignore[type-var]  # both are placed
    assert names[2] is None
