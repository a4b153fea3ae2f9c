from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine import schedule
from scheduling.evaluation import CompiledPipeline
from scheduling.explain import explain_host
from scheduling.filters import capacity_filter, free_columns
from scheduling.intents import Intent
from scheduling.request import InstanceGroup, PlacementRequest
from scheduling.resources import GIB, ResourceVector
from scheduling.step_catalogue import WEIGHERS
from scheduling.table import HostTable
from scheduling.table_rows import HostRow, ReservationRow
from scheduling.weighers import (
    Weigher,
    kvm_binpack,
    kvm_committed_resource_reservation,
    kvm_failover_evacuation,
    kvm_failover_reservation_consolidation,
    kvm_instance_group_soft_affinity,
    kvm_prefer_smaller_hosts,
)

from .full_worlds import World, asked_of, full_requests, full_worlds
from .worlds import ask, gib, readable, roomy


def activations(table: HostTable, request: PlacementRequest, weigher: Weigher) -> list[float]:
    if weigher.is_active is not None and not weigher.is_active(request):
        return [0.0] * len(table)
    return list(map(float, weigher.activation(table, request, free_columns(table, request))))


def hosts(*names: str) -> tuple[HostRow, ...]:
    return tuple(roomy(name) for name in names)


def world(rows: tuple[HostRow, ...], *slots: ReservationRow) -> HostTable:
    numbered = tuple(replace(slot, reservation_id=number) for number, slot in enumerate(slots))
    return World(hosts=rows, reservations=numbered).table()


# --- 8.2 prefer smaller hosts -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "weights", "expected"),
    [
        pytest.param([(64, 0), (128, 0), (256, 0)], {"memory": 1.0}, [1.0, 0.667, 0.0], id="64"),
        pytest.param([(100, 0), (150, 0), (200, 0)], {"memory": 1.0}, [1.0, 0.5, 0.0], id="100"),
        pytest.param([(128, 0)] * 3, {"memory": 1.0}, [0.0, 0.0, 0.0], id="equal"),
        pytest.param([(128, 0)], {"memory": 1.0}, [0.0], id="single"),
        pytest.param(
            [(64, 0), (128, 0), (0, 9)], {"memory": 1.0}, [1.0, 0.0, 0.0], id="no memory value"
        ),
        pytest.param(
            [(64, 256), (128, 128), (256, 64)],
            {"memory": 1.0, "cpu": 1.0},
            [0.5, 0.667, 0.5],
            id="1:1",
        ),
        pytest.param([(64, 256), (256, 64)], {"memory": 2.0, "cpu": 1.0}, [0.667, 0.333], id="2:1"),
        pytest.param([(0, 0)], {"memory": 1.0}, [0.0], id="nobody has a value"),
        pytest.param([(64, 0), (128, 0)], {"memory": 0.0}, [0.0, 0.0], id="weight 0"),
    ],
)
def test_smaller_hosts_are_preferred(
    sizes: list[tuple[int, int]], weights: Mapping[str, float], expected: list[float]
) -> None:
    rows = [
        roomy(str(number), effective=gib(memory, cpu)) for number, (memory, cpu) in enumerate(sizes)
    ]
    weigher = kvm_prefer_smaller_hosts(resource_weights=weights)
    found = activations(HostTable.from_rows(rows), ask(), weigher)
    assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("weigher", "request_", "expected"),
    [
        pytest.param(kvm_prefer_smaller_hosts(), ask(), [1.0, 0.0, 0.0], id="prefer smaller hosts"),
        pytest.param(kvm_binpack(), ask(64), [1.0, 0.5, 0.0], id="binpack"),
        pytest.param(
            kvm_instance_group_soft_affinity(),
            ask(instance_group=InstanceGroup(policy="soft-affinity", members=frozenset("v"))),
            [0.0, 1.0, 0.0],
            id="soft affinity",
        ),
    ],
)
def test_unknown_host_weighs_nothing(
    weigher: Weigher, request_: PlacementRequest, expected: list[float]
) -> None:
    rows = [roomy("1", effective=gib(64, 9)), roomy("2", effective=gib(128, 9), instances=("v",))]
    table = HostTable.from_rows(rows).with_unknown(["unknown"])
    assert activations(table, request_, weigher) == expected


@pytest.mark.parametrize("weights", [{}, {"memory": -1.0}, {"disk": 1.0}, {"cpu": float("nan")}])
def test_wrong_weights_are_refused(weights: Mapping[str, float]) -> None:
    with pytest.raises(ValueError, match="kvm_prefer_smaller_hosts"):
        kvm_prefer_smaller_hosts(resource_weights=weights)


# --- 8.3 binpack: several instances -------------------------------------------------------------


def test_binpack_counts_all_instances() -> None:
    table = HostTable.from_rows([roomy("h", effective=gib(100, 100), allocated=gib(0, 80))])
    weigher = kvm_binpack(resource_weights={"cpu": 1.0})
    assert activations(table, ask(1, 4, num_instances=2), weigher) == pytest.approx([0.88])


# --- 8.4 soft groups ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "policy", "sign"),
    [
        ((2, 1, 0), "soft-affinity", 1),
        ((2, 1, 0), "soft-anti-affinity", -1),
        ((3, 1, 2), "soft-affinity", 1),
        ((3, 1, 2), "soft-anti-affinity", -1),
        ((2, 1, 0), "affinity", 0),
        ((2, 1, 0), "anti-affinity", 0),
    ],
    ids=readable,
)
def test_soft_groups_count_members(counts: tuple[int, ...], policy: str, sign: int) -> None:
    rows = [
        roomy(str(row), instances=[f"m{row}{number}" for number in range(count)])
        for row, count in enumerate(counts)
    ]
    members = frozenset(vm for row in rows for vm in row.instances)
    request = ask(instance_group=InstanceGroup(policy=policy, members=members))
    found = activations(HostTable.from_rows(rows), request, kvm_instance_group_soft_affinity())
    assert found == [sign * count for count in counts]
    assert activations(HostTable.from_rows(rows), ask(), kvm_instance_group_soft_affinity()) == [
        0.0
    ] * len(rows)


# --- 8.5 evacuation -----------------------------------------------------------------------------


def spare(
    host: str, group: str, *users: str, ready: bool = True, kind: str = "failover"
) -> ReservationRow:
    return ReservationRow(
        reservation_id=0,
        kind=kind,
        is_ready=ready,
        resource_group=group,
        target_host=host,
        observed_host=host,
        full=gib(8, 4),
        blocked=gib(8, 4),
        vm_uuids=users,
    )


@pytest.mark.parametrize(
    ("slots", "intent", "weights", "expected"),
    [
        ((spare("1", "", "r"),), Intent.EVACUATE, (1.0, 0.1), [1.0, 0.1, 0.1]),
        ((spare("1", "", "x"),), Intent.EVACUATE, (1.0, 0.1), [0.1, 0.1, 0.1]),
        ((spare("1", "", "r"), spare("3", "", "r")), Intent.EVACUATE, (1.0, 0.1), [1.0, 0.1, 1.0]),
        ((), Intent.EVACUATE, (1.0, 0.1), [0.1, 0.1, 0.1]),
        ((spare("1", "", "r", ready=False),), Intent.EVACUATE, (1.0, 0.1), [0.1, 0.1, 0.1]),
        ((spare("1", "", "r", kind="committed"),), Intent.EVACUATE, (1.0, 0.1), [0.1, 0.1, 0.1]),
        ((spare("1", "", "r"),), Intent.CREATE, (1.0, 0.1), [0.0, 0.0, 0.0]),
        ((spare("1", "", "r"),), Intent.EVACUATE, (0.9, 0.05), [0.9, 0.05, 0.05]),
    ],
    ids=[
        "h1 lists VM",
        "h1 lists others",
        "h1 and h3 list VM",
        "none",
        "h1 lists VM, not ready",
        "committed slot on h1",
        "h1 lists VM, create",
        "weights 0.9 and 0.05",
    ],
)
def test_evacuated_vm_prefers_the_hosts_of_its_slots(
    slots: tuple[ReservationRow, ...],
    intent: Intent,
    weights: tuple[float, float],
    expected: list[float],
) -> None:
    weigher = kvm_failover_evacuation(
        failover_host_weight=weights[0], default_host_weight=weights[1]
    )
    table = world(hosts("1", "2", "3"), *slots)
    assert activations(table, ask(intent=intent), weigher) == expected


@pytest.mark.parametrize(
    ("rows", "slots", "expected"),
    [
        pytest.param(
            ("host2", "host3"),
            (spare("host3", "", "r"),),
            ["host3", "host2"],
            id="two hosts, 8/16 free",
        ),
        pytest.param(
            ("host1", "host2", "host3"),
            (spare("host1", "", "x"), spare("host3", "", "r")),
            ["host3", "host2"],
            id="three hosts, host1 filtered",
        ),
    ],
)
def test_evacuation_end_to_end(
    rows: tuple[str, ...], slots: tuple[ReservationRow, ...], expected: list[str]
) -> None:
    room = gib(16, 8) if len(rows) == 2 else gib(8, 4)
    table = world(tuple(roomy(name, effective=room) for name in rows), *slots)
    pipeline = CompiledPipeline(
        name="p", filters=(capacity_filter(),), weighers=(kvm_failover_evacuation(),)
    )
    request = ask(8, 4, intent=Intent.EVACUATE, hosts=rows, weights=dict.fromkeys(rows, 1.0))
    decision = schedule(table, request, pipeline, max_candidates=0)
    assert [candidate.host_name for candidate in decision.top] == expected


def against(host: str) -> Weigher:
    return Weigher(
        name="against",
        activation=lambda table, _request, free: np.array(
            [-5.0 if name == host else 5.0 for name in table.names]
        )[free.rows],
        multiplier=9.0,
    )


@pytest.mark.parametrize(
    ("evacuation", "intent", "limit", "expected"),
    [
        pytest.param({}, Intent.EVACUATE, 0, ["b", "a", "c"], id="slot hosts come first"),
        pytest.param({}, Intent.EVACUATE, 1, ["b"], id="the best one is a slot host"),
        pytest.param({}, Intent.EVACUATE, 2, ["b", "a"], id="the rest fills up"),
        pytest.param({}, Intent.CREATE, 0, ["a", "c", "b"], id="another intent"),
        pytest.param({"multiplier": -1.0}, Intent.EVACUATE, 0, ["a", "c", "b"], id="reversed"),
        pytest.param(
            {"failover_host_weight": 0.1}, Intent.EVACUATE, 0, ["a", "c", "b"], id="no preference"
        ),
    ],
)
def test_other_weighers_cannot_outvote_the_evacuation_preference(
    evacuation: dict[str, float], intent: Intent, limit: int, expected: list[str]
) -> None:
    table = world(hosts("a", "b", "c"), spare("b", "", "r"))
    steps = CompiledPipeline(
        name="p", filters=(), weighers=(against("b"), kvm_failover_evacuation(**evacuation))
    )
    weights = {"a": 0.2, "b": 0.0, "c": 0.1}
    request = ask(intent=intent, hosts=("a", "b", "c"), weights=weights)
    decision = schedule(table, request, steps, max_candidates=limit)
    assert [candidate.host_name for candidate in decision.top] == expected
    ranks = [explain_host(table, request, steps, name).rank for name in expected]
    assert ranks == list(range(1, len(expected) + 1))


# --- 8.6 consolidation --------------------------------------------------------------------------


def spares(text: str) -> tuple[ReservationRow, ...]:
    return tuple(
        spare(host, group)
        for part in text.split()
        for host, groups in [part.split(":")]
        for group in groups
    )


@pytest.mark.parametrize(
    ("slots", "group", "weights", "expected"),
    [
        pytest.param(spares("1:ABC 2:B"), "D", (1.0, 0.1), [0.75, 0.25, 0.0], id="ABC B"),
        pytest.param(spares("1:BBCCD 2:AAACD"), "A", (1.0, 0.1), [0.5, 0.47, 0.0], id="five"),
        pytest.param(spares("2:AAACD"), "A", (1.0, 0.1), [0.0, 0.94, 0.0], id="alone"),
        pytest.param(spares("1:BA 2:B"), "A", (1.0, 0.1), [0.6333, 0.3333, 0.0], id="defaults"),
        pytest.param(
            (*spares("1:A"), spare("2", "A", kind="committed")),
            "A",
            (1.0, 0.1),
            [0.9, 0.0, 0.0],
            id="committed slot",
        ),
        pytest.param(
            (*spares("1:A"), spare("2", "A", ready=False)),
            "A",
            (1.0, 0.1),
            [0.9, 0.0, 0.0],
            id="not ready",
        ),
        pytest.param(spares("1:AA 2:B"), "A", (2.0, 0.5), [1.0, 0.6667, 0.0], id="weights"),
        pytest.param((), "A", (1.0, 0.1), [0.0, 0.0, 0.0], id="none"),
        pytest.param(spares("1:A gone:A"), "", (1.0, 0.1), [0.5, 0.0, 0.0], id="no hint"),
    ],
)
def test_failover_slots_are_gathered_and_equal_ones_kept_apart(
    slots: tuple[ReservationRow, ...],
    group: str,
    weights: tuple[float, float],
    expected: list[float],
) -> None:
    weigher = kvm_failover_reservation_consolidation(
        total_count_weight=weights[0], same_spec_penalty=weights[1]
    )
    table = world(hosts("1", "2", "3"), *slots)
    request = ask(intent=Intent.RESERVE_FOR_FAILOVER, resource_group=group)
    for _ in range(2):  # the second time from the cache
        assert activations(table, request, weigher) == pytest.approx(expected, abs=1e-4)
    assert activations(table, replace(request, intent=Intent.CREATE), weigher) == [0.0] * 3


@pytest.mark.parametrize(
    ("total", "penalty", "is_valid"),
    [
        (1.0, 0.1, True),
        (0.0, 0.0, True),
        (0.0, 0.1, False),
        (1.0, 1.0, False),
        (1.0, 0.0, True),
        (-1.0, 0.0, False),
        (1.0, -0.1, False),
    ],
    ids=readable,
)
def test_consolidation_weights_are_checked(total: float, penalty: float, is_valid: bool) -> None:
    def make() -> Weigher:
        return kvm_failover_reservation_consolidation(
            total_count_weight=total, same_spec_penalty=penalty
        )

    if is_valid:
        assert make().name == "kvm_failover_reservation_consolidation"
    else:
        with pytest.raises(ValueError, match="sameSpecPenalty"):
            make()


# --- 8.7 committed slots ------------------------------------------------------------------------


def slot(host: str, *, gib_: int = 16, taken: int = 0, **fields: object) -> ReservationRow:
    row = ReservationRow(
        reservation_id=0,
        kind="committed",
        project_id="A",
        resource_group="group-2101",
        zone="qa-de-1a",
        target_host=host,
        observed_host=host,
        full=gib(gib_, 4),
        expected_memory_bytes=taken * GIB,
    )
    return replace(row, **fields)  # type: ignore[arg-type]  # keyword pass-through


HINT: Mapping[str, Any] = {"resource_group": "group-2101"}


@pytest.mark.parametrize(
    ("slots", "fields", "expected"),
    [
        pytest.param((slot("1"),), HINT, [1.0, 0.1, 0.1], id="16 GiB free"),
        pytest.param((slot("1", gib_=8, taken=8),), HINT, [0.1] * 3, id="fully allocated"),
        pytest.param((slot("1", taken=4),), HINT, [1.0, 0.1, 0.1], id="4 allocated"),
        pytest.param((slot("1", project_id="B"),), HINT, [0.1] * 3, id="other project"),
        pytest.param((slot("1", resource_group="x"),), HINT, [0.1] * 3, id="other group"),
        pytest.param((slot("1", zone="qa-de-1b"),), HINT, [0.1] * 3, id="other AZ"),
        pytest.param((slot("1", is_ready=False),), HINT, [0.1] * 3, id="not ready"),
        pytest.param((slot("1", kind="failover"),), HINT, [0.1] * 3, id="failover"),
        pytest.param((slot("1", observed_host=""),), HINT, [0.1] * 3, id="not observed"),
        pytest.param((slot("1"),), {}, [0.0] * 3, id="no hint, no group"),
        pytest.param(
            (slot("1"),),
            {"extra_specs": {"quota:hw_version": "group-2101"}},
            [1.0, 0.1, 0.1],
            id="no hint (product: group of the flavor)",
        ),
        pytest.param(
            (slot("1"),), {"flavor_group": "group-2101"}, [1.0, 0.1, 0.1], id="group known"
        ),
        pytest.param(
            (slot("1"),),
            {**HINT, "intent": Intent.RESERVE_FOR_FAILOVER},
            [0.0] * 3,
            id="reserve for failover",
        ),
        pytest.param((slot("1"), slot("2")), HINT, [1.0, 1.0, 0.1], id="two slots"),
    ],
)
def test_vm_prefers_hosts_of_slots_with_room(
    slots: tuple[ReservationRow, ...], fields: Mapping[str, Any], expected: list[float]
) -> None:
    request = ask(8, 4, project_id="A", zone="qa-de-1a", **fields)
    table = world(hosts("1", "2", "3"), *slots)
    for _ in range(2):  # the second time from the cache
        assert activations(table, request, kvm_committed_resource_reservation()) == expected


# --- every weigher against one host at a time ---------------------------------------------------


EVACUATION = {"slot": 1.0, "other": 0.1}
COMMITTED = {"slot": 1.0, "other": 0.1}
CONSOLIDATION = {"total": 1.0, "same": 0.1}
MEMORY = {"memory": 1.0}
Weights = Mapping[str, float]


def slow_activation(
    name: str, world: World, host: HostRow, request: PlacementRequest, given: Weights | None = None
) -> float:
    """What a weigher thinks of one host; without ``given``, with the parameters of the product."""
    rule, usual = SLOW_WEIGHERS[name]
    return rule(world, host, request, usual if given is None else given)


def _evacuation(world: World, host: HostRow, request: PlacementRequest, given: Weights) -> float:
    if request.intent is not Intent.EVACUATE:
        return 0.0
    for one in world.reservations:
        is_own = one.kind == "failover" and request.request_key in one.vm_uuids
        if is_own and one.is_ready and one.observed_host == host.name:
            return given["slot"]
    return given["other"]


def _consolidation(world: World, host: HostRow, request: PlacementRequest, given: Weights) -> float:
    placed = [
        one
        for one in world.reservations
        if one.kind == "failover" and one.is_ready and one.observed_host
    ]
    if request.intent is not Intent.RESERVE_FOR_FAILOVER or not placed:
        return 0.0
    here = [one for one in placed if one.observed_host == host.name]
    same = [one for one in here if request.resource_group == one.resource_group != ""]
    share = 1 / len(placed)
    return given["total"] * share * len(here) - given["same"] * share * len(same)


def _committed(world: World, host: HostRow, request: PlacementRequest, given: Weights) -> float:
    own = request.flavor_group or request.extra_specs.get("quota:hw_version", "")
    group = request.resource_group or own
    if request.intent is Intent.RESERVE_FOR_FAILOVER or not group:
        return 0.0
    found = [
        one
        for one in world.reservations
        if one.kind == "committed"
        and one.is_ready
        and one.observed_host == host.name
        and (one.project_id, one.resource_group) == (request.project_id, group)
        and request.zone in {"", one.zone}
        and one.full.memory_bytes - one.expected_memory_bytes >= request.memory_bytes
    ]
    return given["slot"] if found else given["other"]


def _soft_affinity(_world: World, host: HostRow, request: PlacementRequest, _: Weights) -> float:
    signs = {"soft-affinity": 1.0, "soft-anti-affinity": -1.0}
    wanted = request.instance_group
    sign = signs.get(wanted.policy, 0.0) if wanted else 0.0
    return sign * len(set(host.instances) & (wanted.members if wanted else set()))


def amount(vector: ResourceVector, resource: str) -> int:
    return vector.memory_bytes if resource == "memory" else vector.vcpus


def weighted_mean(parts: list[tuple[float, float]]) -> float:
    weights = sum(weight for weight, _ in parts)
    return sum(weight * part for weight, part in parts) / weights if weights else 0.0


def _binpack(_world: World, host: HostRow, request: PlacementRequest, given: Weights) -> float:
    used = host.allocated + asked_of(request)
    return weighted_mean(
        [
            (weight, amount(used, resource) / amount(host.effective, resource))
            for resource, weight in given.items()
            if amount(host.effective, resource)
        ]
    )


def _smaller(world: World, host: HostRow, _: PlacementRequest, given: Weights) -> float:
    parts = []
    for resource, weight in given.items():
        sizes = [amount(one.effective, resource) for one in world.hosts]
        sizes = [size for size in sizes if size]
        own = amount(host.effective, resource)
        if own and min(sizes) != max(sizes):
            parts.append((weight, 1.0 - (own - min(sizes)) / (max(sizes) - min(sizes))))
    return weighted_mean(parts)


SlowRule = Callable[[World, HostRow, PlacementRequest, Weights], float]
SLOW_WEIGHERS: dict[str, tuple[SlowRule, Weights]] = {
    "kvm_prefer_smaller_hosts": (_smaller, MEMORY),
    "kvm_instance_group_soft_affinity": (_soft_affinity, {}),
    "kvm_binpack": (_binpack, MEMORY),
    "kvm_failover_evacuation": (_evacuation, EVACUATION),
    "kvm_failover_reservation_consolidation": (_consolidation, CONSOLIDATION),
    "kvm_committed_resource_reservation": (_committed, COMMITTED),
}
BOTH, MOSTLY_CPU = {"memory": 1.0, "cpu": 1.0}, {"cpu": 2.5, "memory": 0.5}
EVERY_WEIGHER: dict[str, tuple[Weigher, Weights | None]] = {
    "prefer smaller hosts": (kvm_prefer_smaller_hosts(), None),
    "prefer smaller hosts, both": (kvm_prefer_smaller_hosts(resource_weights=BOTH), BOTH),
    "prefer smaller hosts, cpu": (
        kvm_prefer_smaller_hosts(resource_weights=MOSTLY_CPU),
        MOSTLY_CPU,
    ),
    "soft affinity": (kvm_instance_group_soft_affinity(), None),
    "binpack": (kvm_binpack(), None),
    "binpack, both": (kvm_binpack(resource_weights=BOTH), BOTH),
    "binpack, cpu": (kvm_binpack(resource_weights=MOSTLY_CPU), MOSTLY_CPU),
    "evacuation": (kvm_failover_evacuation(), None),
    "evacuation, weights": (
        kvm_failover_evacuation(failover_host_weight=0.9, default_host_weight=0.05),
        {"slot": 0.9, "other": 0.05},
    ),
    "consolidation": (kvm_failover_reservation_consolidation(), None),
    "consolidation, weights": (
        kvm_failover_reservation_consolidation(total_count_weight=2.0, same_spec_penalty=0.5),
        {"total": 2.0, "same": 0.5},
    ),
    "committed": (kvm_committed_resource_reservation(), None),
    "committed, weights": (
        kvm_committed_resource_reservation(reservation_host_weight=0.7, default_host_weight=0.2),
        {"slot": 0.7, "other": 0.2},
    ),
}


def test_every_weigher_of_the_catalogue_is_compared() -> None:
    """Those of VMware work on knowledge and are compared in a module of their own."""
    compared = {weigher.name for weigher, _ in EVERY_WEIGHER.values()}
    assert compared == {name for name in WEIGHERS if not name.startswith("vmware_")}


@pytest.mark.parametrize("case", EVERY_WEIGHER)
def test_weigher_equals_the_per_host_rule(case: str) -> None:
    weigher, weights = EVERY_WEIGHER[case]

    @given(world=full_worlds, request=full_requests, some=st.booleans())
    def check(world: World, request: PlacementRequest, some: bool) -> None:
        table = world.table()
        rows = np.arange(0, len(table), 2 if some and weigher.is_row_local else 1)
        free = free_columns(table, request).at(rows)
        expected = [
            slow_activation(weigher.name, world, world.hosts[row], request, weights)
            for row in rows.tolist()
        ]
        is_active = weigher.is_active is None or weigher.is_active(request)
        found = (
            weigher.activation(table, request, free).tolist() if is_active else [0.0] * len(rows)
        )
        assert list(found) == pytest.approx(expected)

    check()
