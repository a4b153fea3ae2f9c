from __future__ import annotations

from dataclasses import replace

import pytest

from placement.domain.capacity import InventoryAmounts
from placement.domain.contents_differences import differences
from placement.domain.transfer import ConsumerRecord, Contents, ProviderRecord

HOST = ProviderRecord(
    uuid="a", name="host", generation=3, inventories={"VCPU": InventoryAmounts(total=4)}
)
VM = ConsumerRecord(uuid="c", project="p", user="u", allocations={"a": {"VCPU": 1}})
SIDE = Contents(
    classes=frozenset({"VCPU"}),
    traits=frozenset({"CUSTOM_A"}),
    providers={"a": HOST},
    consumers={"c": VM},
)


def test_equal_sides_differ_in_nothing() -> None:
    assert differences(SIDE, replace(SIDE, classes=frozenset())) == []


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (replace(SIDE, providers={}), ("provider", "a", "only there")),
        (replace(SIDE, consumers={"c": VM, "d": VM}), ("consumer", "d", "only here")),
        (replace(SIDE, traits=frozenset()), ("trait", "CUSTOM_A", "only there")),
        (
            replace(SIDE, providers={"a": replace(HOST, generation=4)}),
            ("provider", "a", "generation: 3 there, 4 here"),
        ),
        (
            replace(SIDE, consumers={"c": replace(VM, allocations={"a": {"VCPU": 2}})}),
            ("consumer", "c", "allocations: {'a': {'VCPU': 1}} there, {'a': {'VCPU': 2}} here"),
        ),
    ],
)
def test_what_differs_is_named_with_both_sides(other: Contents, told: tuple[str, str, str]) -> None:
    (found,) = differences(SIDE, other)
    assert (found.kind, found.subject, found.detail) == told
