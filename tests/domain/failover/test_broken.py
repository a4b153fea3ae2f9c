"""Naming the rule that is broken (spec failover, 7.2, 7.3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failover.domain.blame import broken_rules
from failover.domain.slots import FailoverSlot, SlotUser
from tests.domain.failover.oracle import five_rules_hold, slots_of


@pytest.mark.parametrize(
    ("slots", "rule", "host", "reservations"),
    [
        pytest.param("r@1{v@1}", "C1", "1", ("r",), id="C1"),
        pytest.param("r@2{v@1}, q@2{v@1}", "C2", "2", ("q", "r"), id="C2"),
        pytest.param("r@2{v@1,u@1}", "C3", "1", ("r",), id="C3"),
        pytest.param("r@2{v@1,u@3}, q@3{v@1}", "C4", "3", ("q", "r"), id="C4"),
        pytest.param("r@2{v@1,u@3}, q@4{v@1,w@3}", "C5", "3", ("q", "r"), id="C5: two sharers"),
        pytest.param("r@2{v@1,u@3}, q@4{v@1,u@3}", "C5", "3", ("q", "r"), id="C5: shared twice"),
    ],
)
def test_rule_is_named(slots: str, rule: str, host: str, reservations: tuple[str, ...]) -> None:
    (found,) = broken_rules("v", slots_of(slots))
    assert (found.rule, found.host, found.reservations) == (rule, host, reservations)
    assert ("same VM" in found.words) == ("shared twice" in slots or slots.count("u@3") == 2)


HOSTS = st.sampled_from("123456")


@given(
    vms=st.dictionaries(st.sampled_from("abcde"), HOSTS, min_size=1),
    slots=st.lists(st.tuples(HOSTS, st.sets(st.sampled_from("abcde"), max_size=3)), max_size=4),
)
def test_something_is_named_exactly_where_a_rule_is_broken(
    vms: dict[str, str], slots: list[tuple[str, set[str]]]
) -> None:
    listed = [
        FailoverSlot(
            name=f"r{number}",
            host=host,
            users=tuple(SlotUser(vm_uuid=one, host=vms[one]) for one in sorted(users & set(vms))),
        )
        for number, (host, users) in enumerate(slots)
    ]
    found = [one for uuid in vms for one in broken_rules(uuid, listed)]
    assert bool(found) != five_rules_hold(listed)


def test_vm_without_reservations_breaks_nothing() -> None:
    assert broken_rules("x", slots_of("r@1{v@1}")) == ()
