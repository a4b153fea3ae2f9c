from __future__ import annotations

from typing import Any

import pytest

from placement.domain.capacity import InventoryAmounts
from placement.domain.host_providers import (
    HostFacts,
    HostProvider,
    plan_host_providers,
    retired_inventories,
)

CPUS = {"VCPU": InventoryAmounts(total=8)}


def host(number: int = 1, **fields: Any) -> HostFacts:
    return HostFacts(**{"uuid": f"u{number}", "name": f"h{number}", **fields})


def provider(number: int = 1, **fields: Any) -> HostProvider:
    return HostProvider(**{"uuid": f"u{number}", "name": f"h{number}", **fields})


def test_what_agrees_is_left_alone() -> None:
    fields: dict[str, Any] = {"zone": "a"}
    plan = plan_host_providers(
        [host(traits=frozenset({"T"}), aggregates=frozenset({"A"}), inventories=CPUS, **fields)],
        [provider(host_traits=frozenset({"T"}), host_aggregates=frozenset({"A"}), **fields)],
    )
    assert (plan.create, plan.update, plan.retire, plan.refused) == ((), (), (), {})


@pytest.mark.parametrize(
    "fields",
    [
        {"is_host": False},
        {"is_retiring": True},
        {"name": "old"},
        {"zone": "old"},
        {"host_traits": frozenset({"OLD"})},
        {"host_aggregates": frozenset({"OLD"})},
        {"follows_host": True},
    ],
)
def test_whatever_differs_is_followed(fields: dict[str, Any]) -> None:
    wanted = host(inventories=CPUS)
    assert plan_host_providers([wanted], [provider(**fields)]).update == (wanted,)


def test_inventories_that_clients_write_are_left_alone() -> None:
    plan = plan_host_providers([host(inventories=CPUS)], [provider(inventories={})])
    assert plan.update == ()


def test_new_hosts_get_a_provider_and_lost_ones_retire() -> None:
    plan = plan_host_providers([host(1)], [provider(2), provider(3, is_host=False)])
    assert plan.create == (host(1),)
    assert plan.retire == ("u2",)


def test_of_two_hosts_with_one_id_the_second_is_refused() -> None:
    plan = plan_host_providers([host(1, name="z"), host(1, name="a")], [])
    assert [made.name for made in plan.create] == ["a"]
    assert plan.refused == {"z": "has the id of a"}


def test_a_name_that_another_provider_has_is_refused() -> None:
    plan = plan_host_providers([host(1)], [provider(2, name="h1", is_host=False)])
    assert plan.create == ()
    assert plan.refused == {"h1": "provider u2 has its name"}


@pytest.mark.parametrize(
    ("known", "lost", "is_suspicious"),
    [(20, 4, False), (20, 5, True), (25, 5, False), (26, 6, True), (4, 4, False)],
)
def test_too_many_lost_hosts_are_taken_for_a_broken_source(
    known: int, lost: int, is_suspicious: bool
) -> None:
    plan = plan_host_providers(
        [host(number) for number in range(lost, known)],
        [provider(number) for number in range(known)],
    )
    assert plan.is_suspicious is is_suspicious
    assert len(plan.retire) == (0 if is_suspicious else lost)


def test_those_that_retire_already_are_not_counted_as_lost() -> None:
    gone = [provider(number, is_retiring=True) for number in range(10)]
    plan = plan_host_providers([], gone)
    assert not plan.is_suspicious
    assert len(plan.retire) == 10


def test_nothing_can_be_allocated_of_what_retires() -> None:
    amounts = InventoryAmounts(total=8, allocation_ratio=16.0, max_unit=4, step_size=2)
    retired = retired_inventories({"VCPU": amounts})["VCPU"]
    assert retired.capacity == 0
    assert (retired.total, retired.max_unit, retired.step_size) == (8, 4, 2)
    assert retired.allocation_ratio == 16.0
