from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.domain.readiness import hindering_conditions
from scheduling.filters import conditions_allow_placement

STATUSES = st.sampled_from(["True", "False", "Unknown"])
TYPES = st.sampled_from(["Ready", "HypervisorDisabled", "Terminating", "Tainted", "Onboarding"])


@pytest.mark.parametrize(
    ("conditions", "hindering"),
    [
        pytest.param({}, (), id="none at all"),
        pytest.param({"Ready": "True"}, (), id="ready"),
        pytest.param({"Ready": True, "Tainted": "True"}, (), id="tainted does not matter"),
        pytest.param({"Tainted": "False"}, ("Ready is missing",), id="no ready condition"),
        pytest.param({"Ready": None}, ("Ready is missing",), id="ready without a status"),
        pytest.param({"Ready": "Unknown"}, ("Ready is Unknown",), id="unknown"),
        pytest.param(
            {"Ready": "False", "HypervisorDisabled": "True", "Terminating": "True"},
            ("Ready is False", "HypervisorDisabled is True", "Terminating is True"),
            id="all",
        ),
    ],
)
def test_conditions_that_hinder_are_named(
    conditions: dict[str, object], hindering: tuple[str, ...]
) -> None:
    assert hindering_conditions(conditions) == hindering


@given(st.dictionaries(TYPES, STATUSES, min_size=1))
def test_a_host_is_hindered_exactly_when_the_filter_removes_it(conditions: dict[str, str]) -> None:
    assert bool(hindering_conditions(conditions)) is not conditions_allow_placement(conditions)
