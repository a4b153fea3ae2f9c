"""The rules of readiness, and leaving service step by step (spec hosts, C.3, D.3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.domain.offboarding import Holdings, Step, conditions_of, offboarding, shown_state
from hosts.domain.readiness import (
    LIFE_CYCLE,
    Condition,
    Readiness,
    compute_ready,
    hindering_conditions,
    host_readiness,
)

SUCCEEDED = Condition(status="False", reason="Succeeded")
ABORTED = Condition(status="False", reason="Aborted")
BUSY = Condition(status="True", reason="Testing", message="boots a VM")


def true(reason: str = "") -> Condition:
    return Condition(status="True", reason=reason)


@pytest.mark.parametrize(
    ("conditions", "maintenance", "reason", "message"),
    [
        pytest.param({"Offboarded": true(), "Onboarding": SUCCEEDED}, "", "Offboarded", "", id="1"),
        pytest.param({"Terminating": true()}, "termination", "Terminating", "", id="2"),
        pytest.param({"Onboarding": BUSY}, "", "Onboarding", "Testing: boots a VM", id="3"),
        pytest.param({"Evicting": true()}, "auto", "Evicting", "", id="4a"),
        pytest.param({"Evicting": SUCCEEDED}, "auto", "Evicted", "", id="4b"),
        pytest.param({"Onboarding": SUCCEEDED}, "manual", "Maintenance", "", id="4c"),
        pytest.param({}, "", "Onboarding", "not started", id="5a"),
        pytest.param({"Onboarding": ABORTED}, "", "Onboarding", "aborted", id="5b"),
        pytest.param(
            {"Onboarding": Condition(status="False", reason="Handover", message="traits")},
            "",
            "Onboarding",
            "not completed: traits",
            id="5c",
        ),
        pytest.param({"Onboarding": SUCCEEDED, "Tainted": true()}, "", "Ready", "", id="6"),
        pytest.param(
            {"Offboarded": true(), "Terminating": true()}, "", "Offboarded", "", id="1 before 2"
        ),
        pytest.param(
            {"Onboarding": BUSY}, "manual", "Onboarding", "Testing: boots a VM", id="3 before 4"
        ),
        pytest.param({}, "manual", "Maintenance", "", id="never onboarded"),
        pytest.param({"Onboarding": ABORTED}, "manual", "Maintenance", "", id="aborted"),
    ],
)
def test_the_first_rule_that_matches_says_it(
    conditions: dict[str, Condition], maintenance: str, reason: str, message: str
) -> None:
    found = compute_ready(conditions, maintenance=maintenance, lifecycle_managed=True)
    assert (found.is_ready, found.reason, found.message) == (reason == "Ready", reason, message)


def test_a_host_that_nova_does_not_know_yet_waits_for_its_ids() -> None:
    found = compute_ready({}, maintenance="", lifecycle_managed=True, has_ids=False)
    assert (found.reason, found.message) == ("Onboarding", "waiting for the ids of Nova")


def test_nobody_onboards_a_host_that_no_operator_manages() -> None:
    for conditions in ({}, {"Onboarding": BUSY}, {"Onboarding": ABORTED}):
        assert compute_ready(conditions, maintenance="", lifecycle_managed=False).is_ready


STATED = st.dictionaries(
    st.sampled_from(
        ["Ready", "Onboarding", "Offboarded", "Terminating", "HypervisorDisabled", "Evicting"]
    ),
    st.sampled_from(["True", "False", "Unknown"]),
)
REASONS = st.dictionaries(
    st.sampled_from(["Ready", "Onboarding"]),
    st.fixed_dictionaries({"reason": st.sampled_from(["Onboarding", "Testing", "Maintenance"])}),
)
SERVICE: dict[str, Any] = {"state": "up", "status": "enabled", "held_off": ""}


@given(STATED, REASONS, st.sampled_from(["", "ha", "manual", "termination"]))
def test_a_host_that_is_ready_is_hindered_by_nothing(
    stated: dict[str, str], reasons: dict[str, dict[str, str]], maintenance: str
) -> None:
    found = host_readiness(stated, **SERVICE, maintenance=maintenance, reasons=reasons)
    takes = maintenance in {"", "ha"} and not hindering_conditions(stated)
    assert not found.is_ready or takes
    if takes and not found.is_ready:  # something stated contradicts Ready
        assert stated.get("Offboarded") == "True" or not stated.get("Ready")


@pytest.mark.parametrize(
    ("conditions", "reasons", "reason", "message"),
    [
        (
            {"Ready": "False"},
            {"Ready": {"reason": "Onboarding", "message": "x"}},
            "Onboarding",
            "x",
        ),
        ({"Ready": "False"}, {"Ready": {"reason": "Odd"}}, "Conditions", "Ready is False (Odd)"),
        ({"Ready": "False", "Onboarding": "True"}, {}, "Onboarding", ""),
        ({"Ready": "True", "Onboarding": "True"}, {}, "Ready", ""),
    ],
)
def test_who_onboards_a_host_says_so(
    conditions: dict[str, str], reasons: dict[str, dict[str, str]], reason: str, message: str
) -> None:
    found = host_readiness(conditions, **SERVICE, maintenance="", reasons=reasons)
    assert (found.reason, found.message) == (reason, message)


def readiness_of(holdings: Holdings) -> str:
    conditions = {name: one.status for name, one in conditions_of(holdings).items()}
    return host_readiness(conditions, **SERVICE, maintenance=holdings.maintenance).reason


def test_a_host_leaves_service_step_by_step() -> None:
    everything: dict[str, Any] = {"reservations": 2, "vms": 3, "has_agent": True, "aggregates": 1}
    assert readiness_of(Holdings(maintenance="", **everything)) == "Ready"
    steps: list[tuple[dict[str, Any], str]] = [
        ({"maintenance": "termination"}, "Evicting"),
        ({"reservations": 0}, "Evicting"),
        ({"vms": 0}, "Evicted"),
        ({"has_agent": False}, "Evicted"),
        ({"aggregates": 0}, "Offboarded"),
    ]
    facts = {"maintenance": "", **everything}
    for number, (change, reason) in enumerate(steps, 1):
        facts |= change
        holdings = Holdings(**facts)
        assert readiness_of(holdings) == reason
        assert [is_done for _, is_done in offboarding(holdings)] == [
            place < number for place in range(len(Step))
        ]


HOLDINGS = st.builds(
    Holdings,
    maintenance=st.sampled_from(["", "manual", "auto", "ha", "termination"]),
    reservations=st.integers(0, 2),
    vms=st.integers(0, 2),
    has_agent=st.booleans(),
    aggregates=st.integers(0, 2),
)


@given(HOLDINGS)
def test_only_an_empty_host_that_is_to_go_is_offboarded(holdings: Holdings) -> None:
    reason = readiness_of(holdings)
    is_held = bool(holdings.reservations or holdings.vms)
    is_left = is_held or holdings.has_agent or bool(holdings.aggregates)
    assert (reason == "Offboarded") == (holdings.maintenance == "termination" and not is_left)
    assert (reason == "Ready") == (holdings.maintenance in {"", "ha"})
    assert reason != "Evicting" or is_held
    assert reason != "Evicted" or not is_held


@given(st.sampled_from([*sorted(LIFE_CYCLE), "Ready", "ServiceDown", "Conditions"]))
def test_one_word_is_shown(reason: str) -> None:
    word = shown_state(Readiness(is_ready=reason == "Ready", reason=reason), "suspect")
    assert word == (reason.lower() if reason in LIFE_CYCLE else "suspect")
