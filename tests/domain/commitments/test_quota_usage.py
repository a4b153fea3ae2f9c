from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.quota_usage import in_declared_units, quota_usage, usage_summary


@pytest.mark.parametrize(
    ("usage", "text"),
    [
        pytest.param({}, "", id="empty"),
        pytest.param(
            {
                "hw_version_2101_cores": 18,
                "hw_version_2101_instances": 7,
                "hw_version_2101_ram": 21,
            },
            "2101: c=18 i=7 r=21",
            id="one group",
        ),
        pytest.param(
            {
                "hw_version_2152_cores": 4,
                "hw_version_2152_instances": 2,
                "hw_version_2152_ram": 8,
                "hw_version_2101_cores": 18,
                "hw_version_2101_instances": 7,
                "hw_version_2101_ram": 21,
            },
            "2101: c=18 i=7 r=21; 2152: c=4 i=2 r=8",
            id="two groups",
        ),
        pytest.param({"hw_version_222_ram": 22}, "222: c=0 i=0 r=22", id="memory alone"),
        pytest.param(
            {"hw_version_222_ram": 22, "hw_version_2101_disks": 3, "some_random_key": 4},
            "222: c=0 i=0 r=22",
            id="names without scheme",
        ),
        pytest.param({"hw_version_2101_ram": 0}, "2101: c=0 i=0 r=0", id="all zero"),
        pytest.param(
            {
                "hw_version_hana_v2_ram": 64,
                "hw_version_hana_v2_cores": 16,
                "hw_version_hana_v2_instances": 2,
            },
            "hana_v2: c=16 i=2 r=64",
            id="a name with an underscore",
        ),
        pytest.param({"hw_version__ram": 1}, "", id="no group"),
        pytest.param({"2101_ram": 1}, "", id="no prefix"),
    ],
)
def test_summary(usage: dict[str, int], text: str) -> None:
    assert usage_summary(usage) == text


@pytest.mark.parametrize(
    ("used", "covered", "payg"),
    [
        pytest.param(
            {"hw_version_g_ram": 10}, {"hw_version_g_ram": 3}, {"hw_version_g_ram": 7}, id="part"
        ),
        pytest.param({"hw_version_g_ram": 5}, {}, {"hw_version_g_ram": 5}, id="no commitment"),
        pytest.param(
            {"hw_version_g_ram": 2},
            {"hw_version_g_ram": 10},
            {"hw_version_g_ram": 0},
            id="more than all",
        ),
        pytest.param({}, {"hw_version_g_ram": 5}, {}, id="nothing used"),
    ],
)
def test_pay_as_you_go(used: dict[str, int], covered: dict[str, int], payg: dict[str, int]) -> None:
    counted = quota_usage(quota={}, used=used, covered=covered, ram_unit_gib={})
    assert dict(counted.payg) == payg
    assert dict(counted.total) == used


def test_every_resource_of_the_quota_is_shown() -> None:
    counted = quota_usage(
        quota={"hw_version_g_ram": 100, "hw_version_g_cores": -1},
        used={"hw_version_g_ram": 9},
        covered={},
        ram_unit_gib={"g": 4},
    )
    assert dict(counted.total) == {"hw_version_g_ram": 9, "hw_version_g_cores": 0}
    assert counted.total_summary == "g: c=0 i=0 r=9"
    assert counted.limes_usage_summary == "g: c=0 i=0 r=2"
    assert counted.limes_quota_summary == "g: c=-1 i=0 r=25"


def test_unlimited_memory_stays_unlimited_in_declared_units() -> None:
    assert in_declared_units({"hw_version_g_ram": -1}, {"g": 16}) == {"hw_version_g_ram": -1}


amounts = st.dictionaries(
    st.sampled_from(["hw_version_a_ram", "hw_version_a_cores", "hw_version_b_ram", "odd"]),
    st.integers(0, 50),
)


@given(quota=amounts, used=amounts, covered=amounts)
def test_payg_and_what_is_covered_make_the_total(
    quota: dict[str, int], used: dict[str, int], covered: dict[str, int]
) -> None:
    counted = quota_usage(quota=quota, used=used, covered=covered, ram_unit_gib={"a": 3})
    assert counted.payg.keys() == counted.total.keys() == quota.keys() | used.keys()
    for name, total in counted.total.items():
        assert 0 <= counted.payg[name] <= total
        assert counted.payg[name] + min(covered.get(name, 0), total) == total
