from __future__ import annotations

import configparser
from collections import Counter
from pathlib import Path

import pytest

from cloud.configs import (
    compute_conf,
    glance_conf,
    ini,
    keystone_conf,
    neutron_conf,
    nova_conf,
    scheduler_options,
)
from cloud.layout import FLAVORS, SHAPES, Layout, compute_hosts, headroom_variables


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(root=tmp_path, home=tmp_path / "cloud", base_port=21000, host_count=12)


def test_every_zone_gets_the_same_hardware_in_turn() -> None:
    hosts = compute_hosts(12)
    assert [host.name for host in hosts[:4]] == [
        "node001-az-a",
        "node002-az-b",
        "node003-az-c",
        "node004-az-a",
    ]
    kinds = Counter((host.zone, host.shape_name) for host in hosts)
    assert set(kinds.values()) == {1}
    assert {shape for _, shape in kinds} == set(SHAPES)


def test_more_hosts_keep_the_first_ones_as_they_are() -> None:
    assert compute_hosts(18)[:12] == compute_hosts(12)


def test_every_service_has_a_port_of_its_own_above_the_first(layout: Layout) -> None:
    ports = list(layout.ports.values())
    assert len(set(ports)) == len(ports)
    assert min(ports) == 21000
    assert layout.url("keystone") == "http://127.0.0.1:21000"
    assert headroom_variables(layout)["GRANIAN_PORT"] == str(layout.port("headroom"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(
            "g_c1_m2_swap",
            {"VCPU": 1, "MEMORY_MB": 2048, "DISK_GB": 10 + 5 + 2},
            id="swap counts as disk, rounded up to whole GiB",
        ),
        pytest.param("g_c2_m4_nodisk", {"VCPU": 2, "MEMORY_MB": 4096}, id="no disk is no claim"),
        pytest.param(
            "gpu_c8_m64_v1",
            {"VCPU": 8, "MEMORY_MB": 65536, "DISK_GB": 100, "VGPU": 1},
            id="resources of extra specs",
        ),
    ],
)
def test_resources_of_a_flavor_are_what_nova_claims(name: str, expected: dict[str, int]) -> None:
    (flavor,) = (flavor for flavor in FLAVORS if flavor.name == name)
    assert dict(flavor.resources) == expected


def test_every_config_file_is_read_back_as_it_was_meant(layout: Layout) -> None:
    host = compute_hosts(12)[0]
    for sections in (
        keystone_conf(layout),
        glance_conf(layout),
        neutron_conf(layout),
        nova_conf(layout, external_url=""),
        compute_conf(layout, host),
    ):
        read = configparser.RawConfigParser()
        read.read_string(ini(sections))
        assert read.sections() == [name for name in sections if name != "DEFAULT"]
        for name, options in sections.items():
            for key, content in options.items():
                assert read.get(name, key) == str(content)


def test_an_option_with_several_values_gets_a_line_for_each() -> None:
    assert ini({"a": {"x": ("1", "2"), "y": 3}}) == "[a]\nx = 1\nx = 2\ny = 3\n"


def test_only_a_scheduler_that_asks_headroom_has_its_filter_last() -> None:
    asking = scheduler_options(asks_headroom=True)
    assert str(asking["enabled_filters"]).endswith(",HeadroomFilter")
    assert "enabled_filters" not in scheduler_options(asks_headroom=False)
