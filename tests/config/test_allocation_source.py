from __future__ import annotations

import pytest

from config.environment import ConfigurationError, load_environment

BASE = {"HEADROOM_SECRET_KEY": "s" * 40}
NAME = "HEADROOM_ALLOCATION_SOURCE"


@pytest.mark.parametrize(
    ("variables", "source"),
    [({}, "instances"), ({NAME: "instances"}, "instances"), ({NAME: "placement"}, "placement")],
)
def test_sources_that_are_there(variables: dict[str, str], source: str) -> None:
    assert load_environment(BASE | variables).allocation_source == source


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        pytest.param({NAME: "nova"}, "should be 'instances', 'placement'", id="unknown"),
        pytest.param({NAME: ""}, "should be 'instances', 'placement'", id="empty"),
        pytest.param({NAME: "hypervisor"}, "needs the bridge", id="not there yet"),
        pytest.param(
            {NAME: "placement", "HEADROOM_PLACEMENT__HOST_PROVIDERS": "false"},
            "needs PLACEMENT__HOST_PROVIDERS",
            id="hosts without providers",
        ),
    ],
)
def test_others_stop_the_start_with_one_line(variables: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_environment(BASE | variables)
    assert told in str(caught.value)
    assert str(caught.value).startswith(NAME)
    assert "\n" not in str(caught.value)
