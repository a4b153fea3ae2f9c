"""What comes next of a host that comes or goes (spec hosts, C.3)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.domain.lifecycle import (
    Act,
    Do,
    Found,
    Phase,
    ProbeVM,
    Service,
    Wanted,
    next_offboarding_act,
    next_onboarding_act,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)
ZONES = {"az-a": "az-a", "fast": "", "tests": ""}
WANTED = Wanted(aggregates=("az-a", "fast"), traits=("CUSTOM_A",), test_aggregate="tests")
UP = Service(is_enabled=True, is_up=True)
VM = ProbeVM(uuid="v", name="headroom-test-1", status="ACTIVE", since=NOW)


def ago(**how_long: float) -> datetime:
    return NOW - timedelta(**how_long)


def act(phase: Phase, found: Found, wanted: Wanted = WANTED, tried_at: Any = None) -> Act:
    return next_onboarding_act(phase, wanted, found, now=NOW, tried_at=tried_at)


@pytest.mark.parametrize(
    ("facts", "do", "target"),
    [
        ({"service": None}, Do.WAIT, ""),
        ({"zones": {"az-a": "az-a"}}, Do.WAIT, ""),
        ({"aggregates": ()}, Do.JOIN_AGGREGATE, "az-a"),
        ({"aggregates": ("az-a",)}, Do.JOIN_AGGREGATE, "tests"),
        ({"aggregates": ("az-a", "tests", "fast")}, Do.WAIT, ""),
        ({"service": replace(UP, is_enabled=False)}, Do.ENABLE_SERVICE, ""),
        ({"service": replace(UP, is_up=False, is_forced_down=True)}, Do.ENABLE_SERVICE, ""),
        ({"service": replace(UP, is_up=False)}, Do.WAIT, ""),
        ({}, Do.ADVANCE, "testing"),
    ],
)
def test_initial(facts: dict[str, Any], do: Do, target: str) -> None:
    ready: dict[str, Any] = {"service": UP, "zones": ZONES, "aggregates": ("az-a", "tests")}
    found = act(Phase.INITIAL, Found(**(ready | facts)))
    assert (found.do, found.target) == (do, target)
    assert bool(found.why) == (do is Do.WAIT)


def test_tests_may_be_skipped() -> None:
    wanted = Wanted(aggregates=("az-a",), skips_tests=True)
    found = Found(service=UP, zones=ZONES, aggregates=("az-a",))
    assert act(Phase.INITIAL, found, wanted) == Act(do=Do.ADVANCE, target="handover")


@pytest.mark.parametrize(
    ("vm", "do"),
    [
        ({}, Do.WAIT),
        ({"console": "booting\nheadroom-test-1 login:"}, Do.ADVANCE),
        ({"console": "other login:"}, Do.WAIT),
        ({"since": ago(minutes=5)}, Do.DELETE_TEST_VM),
        ({"since": ago(minutes=5), "console": "headroom-test-1 login:"}, Do.ADVANCE),
        ({"since": ago(minutes=4, seconds=59)}, Do.WAIT),
        ({"status": "BUILD"}, Do.WAIT),
        ({"status": "BUILD", "since": ago(minutes=5)}, Do.DELETE_TEST_VM),
        ({"status": "ERROR", "fault": "no disk"}, Do.DELETE_TEST_VM),
        ({"status": "ERROR", "is_deleting": True}, Do.WAIT),
    ],
)
def test_a_test_vm_has_to_say_its_name(vm: dict[str, Any], do: Do) -> None:
    assert act(Phase.TESTING, Found(test_vms=(replace(VM, **vm),))).do is do


@pytest.mark.parametrize(
    ("tried_at", "do"),
    [(None, Do.BOOT_TEST_VM), (ago(seconds=59), Do.WAIT), (ago(minutes=1), Do.BOOT_TEST_VM)],
)
def test_the_next_one_is_tried_a_minute_later(tried_at: datetime | None, do: Do) -> None:
    assert act(Phase.TESTING, Found(), tried_at=tried_at).do is do


@pytest.mark.parametrize(
    ("facts", "do", "target"),
    [
        ({"test_vms": (VM,)}, Do.DELETE_TEST_VM, "v"),
        ({"test_vms": (replace(VM, is_deleting=True),)}, Do.WAIT, ""),
        ({"traits": ("HW_X",)}, Do.SET_TRAITS, ""),
        ({"aggregates": ("az-a", "tests")}, Do.JOIN_AGGREGATE, "fast"),
        ({"aggregates": ("az-a", "fast", "tests")}, Do.LEAVE_AGGREGATE, "tests"),
        ({"zones": {}}, Do.WAIT, ""),
        ({}, Do.ADVANCE, "succeeded"),
    ],
)
def test_handover_is_traits_then_aggregates(facts: dict[str, Any], do: Do, target: str) -> None:
    done: dict[str, Any] = {
        "zones": ZONES,
        "traits": ("HW_X", "CUSTOM_A"),
        "aggregates": ("az-a", "fast"),
    }
    found = act(Phase.HANDOVER, Found(**(done | facts)))
    assert (found.do, found.target) == (do, target)


def test_an_abort_is_over_when_no_test_vm_is_left() -> None:
    assert act(Phase.ABORTING, Found(test_vms=(VM,))).do is Do.DELETE_TEST_VM
    assert act(Phase.ABORTING, Found()) == Act(do=Do.ADVANCE, target="aborted")
    assert act(Phase.ABORTING, Found(), tried_at=ago(minutes=2, seconds=59)).do is Do.WAIT
    assert act(Phase.ABORTING, Found(), tried_at=ago(minutes=3)).target == "aborted"


@pytest.mark.parametrize(
    ("facts", "do", "why"),
    [
        ({"reservations": 2}, Do.WAIT, "reservations are left: 2"),
        ({"vms": 1}, Do.WAIT, "VMs are left: 1"),
        ({"has_agent": True}, Do.WAIT, "its agent is not decommissioned"),
        ({"service": UP}, Do.WAIT, "nova-compute still answers"),
        ({"service": replace(UP, is_up=False, is_forced_down=True)}, Do.WAIT, "still answers"),
        (
            {"service": replace(UP, is_up=False, is_forced_down=True, updated_at=ago(minutes=3))},
            Do.LEAVE_AGGREGATE,
            "",
        ),
        ({}, Do.LEAVE_AGGREGATE, ""),
        ({"aggregates": ()}, Do.DELETE_SERVICE, ""),
        ({"aggregates": (), "service": None}, Do.DELETE_PROVIDER, ""),
        ({"aggregates": (), "service": None, "has_provider": False}, Do.ADVANCE, ""),
    ],
)
def test_a_host_is_taken_out_in_this_order(facts: dict[str, Any], do: Do, why: str) -> None:
    whole: dict[str, Any] = {
        "service": replace(UP, is_up=False), "aggregates": ("az-a",), "has_provider": True,
    }  # fmt: skip
    found = next_offboarding_act(Found(**(whole | facts)), now=NOW)
    assert found.do is do
    assert why in found.why


SERVICES = st.none() | st.builds(
    Service, is_enabled=st.booleans(), is_up=st.booleans(), is_forced_down=st.booleans(),
    updated_at=st.none() | st.integers(0, 10).map(lambda minutes: ago(minutes=minutes)),
)  # fmt: skip
FOUND = st.builds(
    Found,
    service=SERVICES,
    aggregates=st.lists(st.sampled_from(["az-a", "fast", "tests"]), unique=True).map(tuple),
    reservations=st.integers(0, 1),
    vms=st.integers(0, 1),
    has_agent=st.booleans(),
    has_provider=st.booleans(),
)


@given(FOUND)
def test_nothing_is_taken_from_a_host_that_still_has_something(found: Found) -> None:
    next_one = next_offboarding_act(found, now=NOW)
    is_used = bool(found.reservations or found.vms or found.has_agent)
    answers = found.service is not None and found.service.answers(NOW)
    assert (next_one.do is Do.WAIT) == (is_used or answers)
    is_left = found.aggregates or found.service or found.has_provider
    assert (next_one.do is Do.ADVANCE) == (not is_used and not is_left)
