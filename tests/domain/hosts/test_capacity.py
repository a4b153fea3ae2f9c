from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.domain.capacity import HostInventory, allowed_projects, effective_amount, host_resource
from hosts.domain.operating_system import os_type_of_image

RATIOS = st.decimals("0.0001", "9999", places=4, allow_nan=False)


@given(
    total=st.integers(0, 2**43), reserved=st.integers(0, 2**43), ratio=RATIOS, unit=st.just(2**20)
)
def test_effective_amount_is_the_exact_floor(
    total: int, reserved: int, ratio: Decimal, unit: int
) -> None:
    inventory = HostInventory(total=total, reserved=reserved, ratio=ratio)
    exact = floor(Fraction(max(0, total - reserved)) * unit * Fraction(ratio))
    assert effective_amount(inventory, unit=unit) == exact


def test_effective_amount_does_not_lose_a_unit_to_binary_fractions() -> None:
    inventory = HostInventory(total=100, reserved=0, ratio=Decimal("1.1"))
    assert effective_amount(inventory) == 110


def test_a_host_resource_is_the_sum_of_its_inventories() -> None:
    shared = HostInventory(total=64, reserved=4, ratio=Decimal(2))
    dedicated = HostInventory(total=32)
    found = host_resource([shared, dedicated])
    assert (found.total, found.reserved, found.ratio, found.effective) == (96, 4, Decimal(2), 152)


def test_a_host_without_inventories_has_nothing() -> None:
    assert host_resource([]).effective == 0


@pytest.mark.parametrize(
    ("metadata", "projects"),
    [
        pytest.param([], (), id="no aggregates"),
        pytest.param([{}], (), id="no metadata"),
        pytest.param([{"filter_tenant_id": "a"}], ("a",), id="one"),
        pytest.param(
            [{"filter_tenant_id": "a"}, {"filter_tenant_id": "b"}], ("a", "b"), id="united"
        ),
        pytest.param([{"filter_tenant_id": "a, b , c"}], ("a", "b", "c"), id="list"),
        pytest.param(
            [{"filter_tenant_id": "a", "filter_tenant_id1": "d,e"}], ("a", "d", "e"), id="suffix"
        ),
        pytest.param([{"filter_tenant_id": ""}], (), id="empty does not restrict"),
        pytest.param([{"other": "a"}], (), id="other key"),
    ],
)
def test_allowed_projects(metadata: list[dict[str, str]], projects: tuple[str, ...]) -> None:
    assert allowed_projects(metadata) == projects


@pytest.mark.parametrize(
    ("properties", "os_type"),
    [
        pytest.param({}, "unknown", id="nothing"),
        pytest.param({"vmware_ostype": "sles15_64Guest", "os_distro": "sles"}, "sles15_64Guest"),
        pytest.param({"vmware_ostype": "not valid!", "os_distro": "sles"}, "sles", id="invalid"),
        pytest.param({"tags": ["x", "ostype:rhel"]}, "rhel", id="tag"),
        pytest.param({"os_distro": "", "tags": ["ostype:rhel"]}, "rhel", id="empty"),
    ],
)
def test_operating_system_of_an_image(properties: dict[str, object], os_type: str) -> None:
    assert os_type_of_image(properties) == os_type
