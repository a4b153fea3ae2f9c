"""Weighers of VMware hosts, which work on knowledge (spec scheduling, 17.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.filters import free_columns
from scheduling.knowledge import HostContention, HostUtilisation, Knowledge
from scheduling.pipelines import (
    PipelineSpec,
    StepParam,
    StepSpec,
    load_pipeline,
    needs_knowledge,
)
from scheduling.request import PlacementRequest
from scheduling.resources import GIB
from scheduling.shipped_pipelines import SHIPPED
from scheduling.step_catalogue import WEIGHERS
from scheduling.table import HostTable
from scheduling.table_rows import HostRow
from scheduling.weighers import (
    Bounds,
    Weigher,
    vmware_anti_affinity_noisy_projects,
    vmware_avoid_contended_hosts,
    vmware_binpack,
)

from .full_worlds import HOSTS, World, asked_of, full_requests, full_worlds
from .test_every_weigher import activations, hosts
from .worlds import ask, readable


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
    ids=readable,
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


KNOWN = Knowledge(
    utilisation={"h": HostUtilisation(memory_bytes=1, used_memory_bytes=0, vcpus=1, used_vcpus=0)},
    long_term_contention={"h": HostContention(average_percent=1.0, maximum_percent=1.0)},
    short_term_contention={"h": HostContention(average_percent=1.0, maximum_percent=1.0)},
    noisiness={"p": {"h": 1.0}},
)
KNOWLEDGE_OF = {
    "vmware_binpack": "utilisation",
    "vmware_avoid_long_term_contended_hosts": "long_term_contention",
    "vmware_avoid_short_term_contended_hosts": "short_term_contention",
    "vmware_anti_affinity_noisy_projects": "noisiness",
}
PARAMS = {
    "vmware_binpack": (StepParam(key="resourceWeights", number_map={"memory": 1.0}),),
    "vmware_anti_affinity_noisy_projects": (
        StepParam(key="avgCPUUsageActivationUpperBound", number=-0.5),
    ),
}
CONTENDED = ("avgCPUContention", "maxCPUContention")


def definition(name: str, *params: StepParam) -> PipelineSpec:
    return PipelineSpec(name="p", weighers=(StepSpec(name=name, params=params),))


@pytest.mark.parametrize("name", KNOWLEDGE_OF)
def test_weigher_waits_for_its_own_knowledge(name: str) -> None:
    spec = definition(name, *PARAMS.get(name, ()))
    loaded = load_pipeline(spec, KNOWN)
    assert loaded.pipeline is not None
    assert [weigher.name for weigher in loaded.pipeline.weighers] == [name]
    without = load_pipeline(spec, replace(KNOWN, **{KNOWLEDGE_OF[name]: {}}))
    assert without.pipeline is not None
    assert without.pipeline.weighers == ()
    assert without.conditions["Ready"][0]
    assert without.conditions["AllStepsReady"][1] == "SomeStepsNotReady"
    assert "is missing or empty" in without.failed_weighers[name]


def test_only_definitions_with_these_weighers_ask_for_knowledge() -> None:
    asking = {name for name, spec in SHIPPED.items() if needs_knowledge(spec)}
    assert asking == {"vmware-general-purpose-load-balancing"}
    assert all(needs_knowledge(definition(name)) for name in KNOWLEDGE_OF)
    assert not needs_knowledge(definition("nobody_knows_it"))


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        *((name, prefix) for name in KNOWLEDGE_OF if "contended" in name for prefix in CONTENDED),
        ("vmware_anti_affinity_noisy_projects", "avgCPUUsage"),
    ],
)
@pytest.mark.parametrize("end", ["", "Activation"])
def test_equal_bounds_are_refused(name: str, prefix: str, end: str) -> None:
    params = [
        StepParam(key=f"{prefix}{end}{which}Bound", number=7.0) for which in ("Lower", "Upper")
    ]
    loaded = load_pipeline(definition(name, *params), KNOWN)
    assert loaded.failed_weighers[name].endswith("lower and upper bounds must differ")


@pytest.mark.parametrize("term", ["long", "short"])
def test_shipped_contention_bounds_are_those_of_the_table(term: str) -> None:
    """0..10 gives 0..-0.75 for the average and 0..-0.25 for the maximum."""
    name = f"vmware_avoid_{term}_term_contended_hosts"
    figures = {
        "calm": HostContention(average_percent=0.0, maximum_percent=0.0),
        "half": HostContention(average_percent=5.0, maximum_percent=5.0),
        "average": HostContention(average_percent=10.0, maximum_percent=0.0),
        "maximum": HostContention(average_percent=0.0, maximum_percent=99.0),
    }
    knowledge = replace(KNOWN, long_term_contention=figures, short_term_contention={})
    if term == "short":
        knowledge = replace(KNOWN, long_term_contention={}, short_term_contention=figures)
    loaded = load_pipeline(SHIPPED["vmware-general-purpose-load-balancing"], knowledge)
    assert loaded.pipeline is not None
    (weigher,) = (one for one in loaded.pipeline.weighers if one.name == name)
    found = activations(HostTable.from_rows(hosts(*figures)), ask(), weigher)
    assert found == pytest.approx([0.0, -0.5, -0.75, -0.25])


# --- every weigher against one host at a time ---------------------------------------------------


def min_max_scale(figure: float, bounds: Bounds) -> float:
    lo, hi = bounds.lower, bounds.upper
    alo, ahi = bounds.lower_activation, bounds.upper_activation
    if lo == hi or alo == ahi:
        return 0.0
    scaled = alo + (figure - lo) / (hi - lo) * (ahi - alo)
    return min(max(scaled, min(alo, ahi)), max(alo, ahi))


percents = st.sampled_from([-5.0, 0.0, 1.5, 5.0, 10.0, 33.3, 100.0])
some_bounds = st.builds(
    Bounds,
    lower=st.sampled_from([0.0, 5.0]),
    upper=st.sampled_from([10.0, 1.0]),
    lower_activation=st.sampled_from([0.0, 0.5]),
    upper_activation=st.sampled_from([-0.75, 1.0]),
)
host_names = st.sampled_from((*HOSTS, "host-gone"))
utilisations = st.dictionaries(
    host_names,
    st.builds(
        HostUtilisation,
        memory_bytes=st.sampled_from([0, 8 * GIB, 24 * GIB]),
        used_memory_bytes=st.sampled_from([0, GIB, 9 * GIB]),
        vcpus=st.integers(0, 8),
        used_vcpus=st.integers(0, 9),
    ),
    min_size=1,
)
contentions = st.dictionaries(
    host_names,
    st.builds(HostContention, average_percent=percents, maximum_percent=percents),
    min_size=1,
)
noisinesses = st.dictionaries(
    st.sampled_from(["p1", "p2"]), st.dictionaries(host_names, percents), min_size=1
)
Slow = Callable[[HostRow, PlacementRequest], float]


@st.composite
def binpacks(draw: st.DrawFn) -> tuple[Weigher, Slow]:
    figures = draw(utilisations)
    weights = draw(st.sampled_from([{"memory": 1.0}, {"cpu": 2.0}, {"memory": 1.0, "cpu": 3.0}]))

    def slow(host: HostRow, request: PlacementRequest) -> float:
        one, asked, parts = figures.get(host.name), asked_of(request), []
        if one is not None and one.memory_bytes and "memory" in weights:
            used = one.used_memory_bytes + asked.memory_bytes
            parts.append((weights["memory"], used / one.memory_bytes))
        if one is not None and one.vcpus and "cpu" in weights:
            parts.append((weights["cpu"], (one.used_vcpus + asked.vcpus) / one.vcpus))
        total = sum(weight for weight, _ in parts)
        return sum(weight * part for weight, part in parts) / total if parts else 0.0

    return vmware_binpack(utilisation=figures, resource_weights=weights), slow


@st.composite
def avoiders(draw: st.DrawFn, name: str) -> tuple[Weigher, Slow]:
    figures, average, maximum = draw(contentions), draw(some_bounds), draw(some_bounds)

    def slow(host: HostRow, _request: PlacementRequest) -> float:
        one = figures.get(host.name)
        if one is None:
            return 0.0
        scaled = min_max_scale(one.average_percent, average)
        return scaled + min_max_scale(one.maximum_percent, maximum)

    weigher = vmware_avoid_contended_hosts(
        name=name, contention=figures, average_bounds=average, maximum_bounds=maximum
    )
    return weigher, slow


@st.composite
def noise_avoiders(draw: st.DrawFn) -> tuple[Weigher, Slow]:
    figures, bounds = draw(noisinesses), draw(some_bounds)

    def slow(host: HostRow, request: PlacementRequest) -> float:
        here: Mapping[str, float] = figures.get(request.project_id, {})
        return min_max_scale(here[host.name], bounds) if host.name in here else 0.0

    return vmware_anti_affinity_noisy_projects(noisiness=figures, bounds=bounds), slow


STRATEGIES: dict[str, st.SearchStrategy[tuple[Weigher, Slow]]] = {
    "vmware_binpack": binpacks(),
    "vmware_avoid_long_term_contended_hosts": avoiders("vmware_avoid_long_term_contended_hosts"),
    "vmware_avoid_short_term_contended_hosts": avoiders("vmware_avoid_short_term_contended_hosts"),
    "vmware_anti_affinity_noisy_projects": noise_avoiders(),
}


def test_every_vmware_weigher_of_the_catalogue_is_compared() -> None:
    assert set(STRATEGIES) == {name for name in WEIGHERS if name.startswith("vmware_")}


@pytest.mark.parametrize("name", STRATEGIES)
def test_weigher_equals_the_per_host_rule(name: str) -> None:
    @given(made=STRATEGIES[name], world=full_worlds, request=full_requests, some=st.booleans())
    def check(
        made: tuple[Weigher, Slow], world: World, request: PlacementRequest, some: bool
    ) -> None:
        weigher, slow = made
        assert weigher.name == name
        table = world.table()
        rows = np.arange(0, len(table), 2 if some else 1)
        free = free_columns(table, request).at(rows)
        expected = [slow(world.hosts[row], request) for row in rows.tolist()]
        assert weigher.activation(table, request, free).tolist() == pytest.approx(expected)

    check()
