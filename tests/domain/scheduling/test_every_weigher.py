from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine import Pipeline, schedule
from scheduling.explain import explain_host
from scheduling.filters import capacity_filter, free_columns
from scheduling.knowledge import HostContention, HostUtilisation
from scheduling.request import InstanceGroup, Intent, PlacementRequest
from scheduling.resources import GIB
from scheduling.rows import HostRow, ReservationRow
from scheduling.table import HostTable
from scheduling.weighers import (
    Bounds,
    Weigher,
    kvm_binpack,
    kvm_committed_resource_reservation,
    kvm_failover_evacuation,
    kvm_failover_reservation_consolidation,
    kvm_instance_group_soft_affinity,
    kvm_prefer_smaller_hosts,
    vmware_anti_affinity_noisy_projects,
    vmware_avoid_contended_hosts,
    vmware_binpack,
)

from .full_worlds import World, full_requests, full_worlds
from .worlds import ask, gib, roomy


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
    pipeline = Pipeline(
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
    steps = Pipeline(
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


# --- 17.1 VMware --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figure", "bounds", "expected"),
    [
        (5.0, (0, 10, 0, 1), 0.5),
        (15.0, (0, 10, 0, 1), 1.0),
        (-5.0, (0, 10, 0, 1), 0.0),
        (5.0, (0, 10, 1, 2), 1.5),
        (5.0, (0, 0, 0, 1), 0.0),
        (5.0, (0, 10, 1, 1), 0.0),
        (20.0, (0, 10, 0, -0.75), -0.75),
        (5.0, (10, 0, 0, 1), 0.5),
    ],
)
def test_figures_are_scaled_between_bounds(
    figure: float, bounds: tuple[float, ...], expected: float
) -> None:
    scale = Bounds(
        lower=bounds[0], upper=bounds[1], lower_activation=bounds[2], upper_activation=bounds[3]
    )
    assert scale.scaled(np.array([figure])).tolist() == pytest.approx([expected])


def test_contended_hosts_are_avoided() -> None:
    contention = {
        "1": HostContention(average_percent=10.0, maximum_percent=20.0),
        "2": HostContention(average_percent=2.0, maximum_percent=4.0),
        "gone": HostContention(average_percent=2.0, maximum_percent=4.0),
    }
    weigher = vmware_avoid_contended_hosts(name="x", contention=contention)
    found = activations(HostTable.from_rows(hosts("1", "2", "3")), ask(), weigher)
    assert found == pytest.approx([-1.0, -0.25, 0.0])


def test_vmware_binpack_works_on_knowledge() -> None:
    used = HostUtilisation(
        memory_bytes=100 * GIB, used_memory_bytes=20 * GIB, vcpus=100, used_vcpus=80
    )
    table = HostTable.from_rows(hosts("1", "2"))
    both = {"memory": 1.0, "cpu": 1.0}
    weigher = vmware_binpack(utilisation={"1": used, "gone": used}, resource_weights=both)
    assert activations(table, ask(8, 4), weigher) == pytest.approx([(0.28 + 0.84) / 2, 0.0])


def test_noisy_project_avoids_its_noisy_hosts() -> None:
    bounds = Bounds(lower=0.0, upper=100.0, upper_activation=-0.5)
    weigher = vmware_anti_affinity_noisy_projects(
        noisiness={"p": {"1": 50.0, "gone": 9.0}}, bounds=bounds
    )
    table = HostTable.from_rows(hosts("1", "2"))
    assert activations(table, ask(project_id="p"), weigher) == pytest.approx([-0.25, 0.0])
    assert activations(table, ask(project_id="q"), weigher) == [0.0, 0.0]


def test_missing_knowledge_and_equal_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="host-utilization is missing"):
        vmware_binpack(utilisation={})
    with pytest.raises(ValueError, match="must differ"):
        vmware_anti_affinity_noisy_projects(noisiness={"p": {}}, bounds=Bounds())


# --- every weigher against one host at a time ---------------------------------------------------


def slow_activation(  # noqa: PLR0911 - one rule after the other
    name: str, world: World, host: HostRow, request: PlacementRequest
) -> float:
    side = world.reservations
    if name == "kvm_failover_evacuation":
        if request.intent is not Intent.EVACUATE:
            return 0.0
        return (
            1.0
            if any(
                one.kind == "failover"
                and one.is_ready
                and one.observed_host == host.name
                and request.request_key in one.vm_uuids
                for one in side
            )
            else 0.1
        )
    if name == "kvm_failover_reservation_consolidation":
        placed = [
            one for one in side if one.kind == "failover" and one.is_ready and one.observed_host
        ]
        if request.intent is not Intent.RESERVE_FOR_FAILOVER or not placed:
            return 0.0
        here = [one for one in placed if one.observed_host == host.name]
        same = [one for one in here if request.resource_group == one.resource_group != ""]
        return len(here) / len(placed) - 0.1 * len(same) / len(placed)
    if name == "kvm_committed_resource_reservation":
        group = request.resource_group or request.extra_specs.get("quota:hw_version", "")
        if request.intent is Intent.RESERVE_FOR_FAILOVER or not group:
            return 0.0
        found = [
            one
            for one in side
            if one.kind == "committed"
            and one.is_ready
            and one.observed_host == host.name
            and (one.project_id, one.resource_group) == (request.project_id, group)
            and request.zone in {"", one.zone}
            and one.full.memory_bytes - one.expected_memory_bytes >= request.memory_bytes
        ]
        return 1.0 if found else 0.1
    if name == "kvm_instance_group_soft_affinity":
        signs = {"soft-affinity": 1.0, "soft-anti-affinity": -1.0}
        wanted = request.instance_group
        sign = signs.get(wanted.policy, 0.0) if wanted else 0.0
        return sign * len(set(host.instances) & (wanted.members if wanted else set()))
    if name == "kvm_binpack":
        asked = request.memory_bytes * (request.num_instances or 1)
        used, room = host.allocated.memory_bytes + asked, host.effective.memory_bytes
        return used / room if room else 0.0
    sizes = [one.effective.memory_bytes for one in world.hosts if one.effective.memory_bytes]
    if not host.effective.memory_bytes or min(sizes) == max(sizes):
        return 0.0
    return 1.0 - (host.effective.memory_bytes - min(sizes)) / (max(sizes) - min(sizes))


EVERY_WEIGHER = (
    kvm_prefer_smaller_hosts(),
    kvm_instance_group_soft_affinity(),
    kvm_binpack(),
    kvm_failover_evacuation(),
    kvm_failover_reservation_consolidation(),
    kvm_committed_resource_reservation(),
)


@pytest.mark.parametrize("weigher", EVERY_WEIGHER, ids=[step.name for step in EVERY_WEIGHER])
def test_weigher_equals_the_per_host_rule(weigher: Weigher) -> None:
    @given(world=full_worlds, request=full_requests, some=st.booleans())
    def check(world: World, request: PlacementRequest, some: bool) -> None:
        table = world.table()
        rows = np.arange(0, len(table), 2 if some and weigher.is_row_local else 1)
        free = free_columns(table, request).at(rows)
        expected = [
            slow_activation(weigher.name, world, world.hosts[row], request) for row in rows.tolist()
        ]
        is_active = weigher.is_active is None or weigher.is_active(request)
        found = (
            weigher.activation(table, request, free).tolist() if is_active else [0.0] * len(rows)
        )
        assert list(found) == pytest.approx(expected)

    check()
