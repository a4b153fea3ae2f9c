from __future__ import annotations

from dataclasses import replace

import pytest

from placement.domain.capacity import InventoryAmounts
from placement.domain.transfer import ConsumerRecord, Contents, ProviderRecord, plan_copy

VCPU = {"VCPU": InventoryAmounts(total=8)}


def contents(*providers: ProviderRecord, consumers: tuple[ConsumerRecord, ...] = ()) -> Contents:
    return Contents(
        classes=frozenset({"VCPU"}),
        providers={record.uuid: record for record in providers},
        consumers={record.uuid: record for record in consumers},
    )


def consumer(uuid: str, provider: str, **fields: object) -> ConsumerRecord:
    record = ConsumerRecord(uuid=uuid, project="p", user="u", allocations={provider: {"VCPU": 2}})
    return replace(record, **fields)  # type: ignore[arg-type]  # fields of the record


HOST = ProviderRecord(uuid="1", name="host", inventories=VCPU)
CELL = ProviderRecord(uuid="2", name="cell", parent="1", inventories=VCPU)


def test_everything_is_new_in_an_empty_target_parents_first() -> None:
    deep = ProviderRecord(uuid="0", name="deep", parent="2")

    plan = plan_copy(contents(deep, CELL, HOST, consumers=(consumer("c", "2"),)), Contents())

    assert plan.new_classes == ("VCPU",)
    assert [record.uuid for record in plan.new_providers] == ["1", "2", "0"]
    assert [record.uuid for record in plan.changed_consumers] == ["c"]
    assert plan.problems == ()


def test_copying_twice_plans_nothing() -> None:
    source = contents(HOST, CELL, consumers=(consumer("c", "2"),))

    assert plan_copy(source, source).is_empty


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(replace(CELL, name="other"), id="name"),
        pytest.param(replace(CELL, parent=""), id="parent"),
        pytest.param(replace(CELL, inventories={}), id="inventories"),
        pytest.param(replace(CELL, traits=frozenset({"T"})), id="traits"),
        pytest.param(replace(CELL, aggregates=frozenset({"a"})), id="aggregates"),
    ],
)
def test_a_provider_that_differs_is_written_as_it_is_there(changed: ProviderRecord) -> None:
    plan = plan_copy(contents(HOST, changed), contents(HOST, CELL))

    assert plan.changed_providers == (changed,)
    assert plan.new_providers == ()


def test_a_generation_alone_is_no_difference() -> None:
    newer = replace(HOST, generation=9)
    held = consumer("c", "1")

    plan = plan_copy(
        contents(newer, consumers=(replace(held, generation=7),)),
        contents(HOST, consumers=(held,)),
    )

    assert plan.is_empty


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(consumer("c", "1", project="q"), id="project"),
        pytest.param(consumer("c", "1", user="v"), id="user"),
        pytest.param(consumer("c", "1", type_name="INSTANCE"), id="type"),
        pytest.param(consumer("c", "1", allocations={"1": {"VCPU": 3}}), id="amount"),
    ],
)
def test_a_consumer_that_differs_is_written_as_it_is_there(changed: ConsumerRecord) -> None:
    plan = plan_copy(
        contents(HOST, consumers=(changed,)), contents(HOST, consumers=(consumer("c", "1"),))
    )

    assert plan.changed_consumers == (changed,)


def test_a_nested_provider_with_another_uuid_is_matched_by_name_with_what_it_holds() -> None:
    deep = ProviderRecord(uuid="4", name="deep", parent="2")
    source = contents(HOST, CELL, deep, consumers=(consumer("c", "2"),))
    target = contents(HOST, replace(CELL, uuid="9"))

    plan = plan_copy(source, target)

    assert plan.renamed == {"2": "9"}
    assert [(record.uuid, record.parent) for record in plan.new_providers] == [("4", "9")]
    assert plan.changed_consumers[0].allocations == {"9": {"VCPU": 2}}
    assert plan.changed_providers == ()


def test_a_root_with_another_uuid_is_a_problem() -> None:
    plan = plan_copy(contents(HOST), contents(replace(HOST, uuid="9")))

    assert plan.problems == ("provider host is 1 there and 9 here",)


def test_what_exists_here_only_is_left_alone() -> None:
    plan = plan_copy(Contents(), contents(HOST, CELL, consumers=(consumer("c", "2"),)))

    assert plan.is_empty
    assert plan.problems == ()


def test_consumers_that_hold_nothing_are_not_copied() -> None:
    empty = consumer("c", "1", allocations={})

    assert plan_copy(contents(HOST, consumers=(empty,)), contents(HOST)).is_empty


def test_contradictions_are_named() -> None:
    lost = ProviderRecord(uuid="5", name="lost", parent="6")
    other = ProviderRecord(uuid="6", name="other", parent="5")

    plan = plan_copy(contents(HOST, lost, other, consumers=(consumer("c", "5"),)), Contents())

    assert plan.problems == (
        "provider lost has no way up to a root",
        "provider other has no way up to a root",
        "consumer c holds VCPU of provider 5, which has none",
    )
