"""Which fields of Hypervisor objects are not as they should be (spec hosts, C.1 and C.5)."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from bridge.domain.owned_fields import (
    Amounts,
    Field,
    Requested,
    Stated,
    amounts_patch,
    cells_patch,
    groups_patch,
    overcommit_patch,
)
from bridge.hypervisors.reading import object_node, read_hypervisor, stated_fields
from config.environment import load_environment
from config.sections_hypervisors import HypervisorSettings
from hosts.domain.overcommit import OvercommitRule, overcommit_of
from tests.bridge.hypervisor_objects import hypervisor_object, with_spec

BASE = {"HEADROOM_SECRET_KEY": "k" * 40, "DATABASE_URL": "postgresql:///x"}
IMPORT = {"HEADROOM_HYPERVISORS__SYNC": "import"}


def has(trait: str, **ratios: str) -> OvercommitRule:
    return OvercommitRule(
        ratios={name: Decimal(ratio) for name, ratio in ratios.items()},
        trait=trait,
        is_present=True,
    )


def hasnt(trait: str, **ratios: str) -> OvercommitRule:
    return replace(has(trait, **ratios), is_present=False)


def said(spec: dict[str, Any] | None = None, **status: Any) -> Stated:
    return stated_fields(object_node(with_spec(hypervisor_object(**status), **(spec or {}))))


@pytest.mark.parametrize(
    ("traits", "rules", "expected"),
    [
        pytest.param({"GPU"}, [has("GPU", cpu="4")], {"cpu": 4}, id="has"),
        pytest.param(set(), [hasnt("X", cpu="2")], {"cpu": 2}, id="has not"),
        pytest.param({"GPU"}, [hasnt("GPU", cpu="2")], {}, id="has what it should not"),
        pytest.param(
            {"GPU", "STD"}, [has("STD", cpu="2"), has("GPU", cpu="4")], {"cpu": 4}, id="last wins"
        ),
        pytest.param(
            {"GPU"},
            [has("GPU", cpu="4"), hasnt("STD", memory="1.5")],
            {"cpu": 4, "memory": Decimal("1.5")},
            id="both",
        ),
        pytest.param({"GPU"}, [], {}, id="no rules"),
        pytest.param({"GPU"}, [has("GPU")], {}, id="a rule without effect"),
    ],
)
def test_the_rules_of_the_specification(
    traits: set[str], rules: list[OvercommitRule], expected: dict[str, Any]
) -> None:
    assert overcommit_of(traits, rules) == expected


@pytest.mark.parametrize(
    ("rule", "is_valid"),
    [
        ({"overcommit": {"cpu": 4}, "hasTrait": "GPU"}, True),
        ({"overcommit": {}, "hasntTrait": "GPU"}, True),
        ({"hasTrait": "GPU"}, True),
        ({"overcommit": {"cpu": 0.9}, "hasTrait": "GPU"}, False),
        ({"overcommit": {"cpu": 0}, "hasTrait": "GPU"}, False),
        ({"overcommit": {"memory": -1}, "hasTrait": "GPU"}, False),
        ({"overcommit": {"cpu": 2}, "hasTrait": "A", "hasntTrait": "B"}, False),
        ({"overcommit": {"cpu": 2}}, False),
        ({"overcommit": {}}, False),
        ({"overcommit": {"disk": 2}, "hasTrait": "A"}, False),
    ],
)
def test_rules_that_mean_nothing_stop_the_start(rule: dict[str, Any], is_valid: bool) -> None:
    given = {"sync": "import", "write_back": ["overcommit"], "overcommit_rules": [rule]}
    if is_valid:
        HypervisorSettings.model_validate(given)
        return
    with pytest.raises(ValidationError):
        HypervisorSettings.model_validate(given)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"WRITE_BACK": ["overcommit"], "SYNC": "off"}, "write_back needs"),
        ({"OVERCOMMIT_RULES": [{"hasTrait": "A"}]}, "overcommit_rules need"),
        ({"WRITE_BACK": ["allocation"]}, "allocation needs ALLOCATION_SOURCE=placement"),
    ],
)
def test_settings_that_contradict_each_other_stop_the_start(
    given: dict[str, Any], problem: str
) -> None:
    section = {
        f"HEADROOM_HYPERVISORS__{name}": text if isinstance(text, str) else json.dumps(text)
        for name, text in given.items()
    }
    with pytest.raises(Exception, match=problem):
        load_environment({**BASE, **IMPORT, **section})


def test_every_field_has_a_setting_and_a_manager_of_its_own() -> None:
    section = {
        "HEADROOM_HYPERVISORS__WRITE_BACK": json.dumps(list(Field)),
        "HEADROOM_ALLOCATION_SOURCE": "placement",
    }
    loaded = load_environment({**BASE, **IMPORT, **section})
    assert loaded.hypervisors.write_back == tuple(Field)
    assert len({field.manager for field in Field}) == len(Field)


def test_overcommit_is_written_only_where_it_differs() -> None:
    rules = [has("GPU", cpu="4", memory="1.5")]
    as_wanted = said({"overcommit": {"memory": 1.5, "cpu": 4}}, traits=["GPU"])
    assert overcommit_patch(as_wanted, rules) is None
    patch = overcommit_patch(said({"overcommit": {"cpu": 2, "disk": 3}}, traits=["GPU"]), rules)
    assert patch is not None
    assert (patch.wanted, patch.foreign) == ({"cpu": 4.0, "memory": 1.5}, ("disk",))
    gone = overcommit_patch(said({"overcommit": {"cpu": 2}}), rules)
    assert gone is not None
    assert (gone.wanted, gone.foreign) == ({}, ("cpu",))
    assert overcommit_patch(said(), rules) is None
    odd = overcommit_patch(said({"overcommit": {"disk": "much"}}), rules)
    assert odd is not None
    assert (odd.wanted, odd.foreign) == ({}, ("disk",))


def test_amounts_are_compared_by_what_they_mean() -> None:
    stated = said(effectiveCapacity={"cpu": "64k", "memory": "1Gi"})
    assert stated.effective == Amounts(vcpus=64_000, memory_bytes=1 << 30)
    assert amounts_patch(Field.EFFECTIVE_CAPACITY, stated.effective, stated.effective) is None
    patch = amounts_patch(
        Field.EFFECTIVE_CAPACITY, stated.effective, Amounts(vcpus=3, memory_bytes=5)
    )
    assert patch is not None
    assert patch.wanted == {"cpu": "3", "memory": "5"}
    assert amounts_patch(Field.ALLOCATION, stated.allocation, None) is None


@pytest.mark.parametrize(
    ("cpu", "ratio", "promised"),
    [("128", None, 128), ("10", 1.25, 12), ("1500m", 2, 2), ("7", 1.1, 7)],
)
def test_effective_capacity_of_ours_is_capacity_times_overcommit(
    cpu: str, ratio: float | None, promised: int
) -> None:
    spec = {} if ratio is None else {"overcommit": {"cpu": ratio}}
    body = with_spec(
        hypervisor_object(
            capacity={"cpu": cpu, "memory": "5Gi"}, effectiveCapacity={"cpu": "1", "memory": "1"}
        ),
        **spec,
    )
    assert stated_fields(object_node(body)).promised == Amounts(
        vcpus=promised, memory_bytes=5 << 30
    )
    ours = read_hypervisor(object_node(body), is_effective_ours=True)
    assert (ours.effective_vcpus, ours.effective_memory_bytes) == (promised, 5 << 30)
    theirs = read_hypervisor(object_node(body))
    assert (theirs.effective_vcpus, theirs.effective_memory_bytes) == (1, 1)


def cell(number: int, **fields: Any) -> dict[str, Any]:
    return {"cellID": number, "capacity": {"cpu": "10", "memory": "4Gi"}, **fields}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        pytest.param(None, None, id="none"),
        pytest.param([], None, id="empty"),
        pytest.param(
            [cell(0), cell(1, allocation={"cpu": "3"}, effectiveCapacity={"cpu": "1"})],
            [
                cell(0, effectiveCapacity={"cpu": "12", "memory": str(4 << 30)}),
                cell(
                    1,
                    allocation={"cpu": "3"},
                    effectiveCapacity={"cpu": "12", "memory": str(4 << 30)},
                ),
            ],
            id="rounded down, made anew, the rest stays",
        ),
        pytest.param(
            [cell(0, effectiveCapacity={"cpu": 12, "memory": "4096Mi"})],
            None,
            id="the same in other words",
        ),
        pytest.param(
            [{"cellID": 0, "effectiveCapacity": {"cpu": "5"}}], None, id="has nothing known"
        ),
        pytest.param(
            [{"cellID": 0, "capacity": {"cpu": 2}}],
            [{"cellID": 0, "capacity": {"cpu": 2}, "effectiveCapacity": {"cpu": "2"}}],
            id="vcpus alone",
        ),
        pytest.param([cell(0), cell(0)], None, id="twice the same"),
        pytest.param([cell(0), {"capacity": {}}], None, id="without a number"),
        pytest.param([cell(0, capacity={"cpu": "lots"})], None, id="no quantity"),
        pytest.param("cells", None, id="no list"),
    ],
)
def test_cells_promise_what_they_have_times_overcommit(
    cells: Any, expected: list[Any] | None
) -> None:
    patch = cells_patch(said({"overcommit": {"cpu": 1.25}}, cells=cells), {})
    assert (None if patch is None else patch.wanted) == expected


def test_cells_say_what_is_held_of_them_where_somebody_knows() -> None:
    promise = {"effectiveCapacity": {"cpu": "10", "memory": "4Gi"}}
    cells = [
        cell(0, **promise, allocation={"cpu": 3, "memory": "1Gi"}),
        cell(1, **promise, allocation={"cpu": "3", "memory": "2Gi"}),
        cell(2, **promise, allocation={"cpu": "9"}),
        cell(3, **promise),
    ]
    held = Amounts(vcpus=3, memory_bytes=1 << 30)
    taken = {0: held, 1: held, 3: held, 4: held}
    written = {"allocation": {"cpu": "3", "memory": str(1 << 30)}}
    patch = cells_patch(said(cells=cells), taken)
    assert patch is not None
    assert patch.wanted == [cells[0], {**cells[1], **written}, cells[2], {**cells[3], **written}]
    assert cells_patch(said(cells=patch.wanted), taken) is None


def test_without_capacity_nothing_is_promised() -> None:
    assert said(capacity={"cpu": "4"}).promised is None
    assert said(capacity=None).promised is None


TRAIT_A, TRAIT_B = {"trait": {"name": "A"}}, {"trait": {"name": "B"}}
ONE = {"aggregate": {"name": "one", "uuid": "u1", "metadata": {"k": "v"}}}
TWO = {"aggregate": {"name": "two", "uuid": "u2"}}


@pytest.mark.parametrize(
    ("groups", "requested", "expected"),
    [
        pytest.param([TRAIT_A], None, None, id="nobody asked"),
        pytest.param([TRAIT_A, ONE], Requested(), None, id="neither kind asked"),
        pytest.param(
            [TRAIT_A, ONE],
            Requested(traits=frozenset("B")),
            [ONE, TRAIT_B],
            id="the other kind is kept",
        ),
        pytest.param(
            [TRAIT_A, ONE],
            Requested(aggregates={"u1": "one", "u2": "two"}),
            [TRAIT_A, ONE, TWO],
            id="metadata of others is kept",
        ),
        pytest.param(
            [], Requested(aggregates={"u2": ""}),
            [{"aggregate": {"name": "u2", "uuid": "u2"}}],
            id="a name is never empty",
        ),
        pytest.param(
            [TRAIT_A, TRAIT_A], Requested(traits=frozenset("A")), [TRAIT_A], id="none twice"
        ),
        pytest.param(
            [ONE, TRAIT_A], Requested(traits=frozenset("A")), None, id="as it is, in any order"
        ),
        pytest.param([TRAIT_A, ONE], Requested(traits=frozenset()), [ONE], id="all taken away"),
        pytest.param(
            ["odd", {"trait": 3}], Requested(traits=frozenset("A")),
            ["odd", {"trait": 3}, TRAIT_A],
            id="what nobody understands is kept",
        ),
    ],
)  # fmt: skip
def test_groups_are_what_clients_asked_for(
    groups: list[Any], requested: Requested | None, expected: list[Any] | None
) -> None:
    patch = groups_patch(said({"groups": groups}), requested)
    assert (None if patch is None else patch.wanted) == expected
