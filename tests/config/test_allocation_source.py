from __future__ import annotations

import pytest

from config.environment import ConfigurationError, load_environment

BASE = {"HEADROOM_SECRET_KEY": "s" * 40}
NAME = "HEADROOM_ALLOCATION_SOURCE"


@pytest.mark.parametrize(
    ("variables", "source"),
    [
        ({}, "instances"),
        ({NAME: "instances"}, "instances"),
        ({NAME: "placement"}, "placement"),
        ({NAME: "hypervisor", "HEADROOM_HYPERVISORS__SYNC": "import"}, "hypervisor"),
    ],
)
def test_sources_that_are_there(variables: dict[str, str], source: str) -> None:
    assert load_environment(BASE | variables).allocation_source == source


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        pytest.param({NAME: "nova"}, "should be 'instances', 'placement'", id="unknown"),
        pytest.param({NAME: ""}, "should be 'instances', 'placement'", id="empty"),
        pytest.param({NAME: "hypervisor"}, "needs HYPERVISORS__SYNC=import", id="nobody reads it"),
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


@pytest.mark.parametrize(
    ("variables", "name", "told"),
    [
        pytest.param(
            {"HOST_CAPACITY": "true", "HOST_PROVIDERS": "false"},
            "HOST_CAPACITY",
            "needs PLACEMENT__HOST_PROVIDERS",
            id="capacity of hosts without providers",
        ),
        pytest.param(
            {"HIDE_FULLY_HELD": "true", "HOST_PROVIDERS": "false"},
            "HIDE_FULLY_HELD",
            "needs PLACEMENT__HOST_PROVIDERS",
            id="hidden hosts without providers",
        ),
        pytest.param(
            {"HOST_CAPACITY": "true", "HOST_INVENTORIES": "host"},
            "HOST_CAPACITY",
            "PLACEMENT__HOST_INVENTORIES=host refuses",
            id="each from the other",
        ),
        pytest.param(
            {"HOST_CAPACITY": "true", "HYPERVISORS__SYNC": "import"},
            "HOST_CAPACITY",
            "Hypervisor objects say what hosts have",
            id="two that say what hosts have",
        ),
        pytest.param({"SUBTRACT_HELD": "true"}, "SUBTRACT_HELD", "unknown", id="locked owners out"),
    ],
)
def test_settings_that_contradict_each_other_stop_the_start(
    variables: dict[str, str], name: str, told: str
) -> None:
    prefix = "HEADROOM_PLACEMENT__"
    with pytest.raises(ConfigurationError) as caught:
        load_environment(
            BASE
            | {
                f"HEADROOM_{key}" if "__" in key else prefix + key: text
                for key, text in variables.items()
            }
        )
    assert told in str(caught.value)
    assert str(caught.value).startswith(prefix + name)
    assert "\n" not in str(caught.value)
