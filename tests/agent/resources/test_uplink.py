"""The uplink and its speed (spec hosts, A.3, A.14)."""

from __future__ import annotations

from pathlib import Path

import pytest
from headroom_host_agent.resources.facts import Source
from headroom_host_agent.resources.uplink import default_interface, detect_network

from tests.agent.trees import plant

HEADING = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"


def route(name: str, *, metric: int = 0, flags: str = "0003", destination: str = "00000000") -> str:
    mask = "00000000" if destination == "00000000" else "00FFFFFF"
    return f"{name}\t{destination}\t0100000A\t{flags}\t0\t0\t{metric}\t{mask}\t0\t0\t0\n"


def route6(name: str, *, metric: str = "00000400", flags: str = "00450003") -> str:
    zeros = "0" * 32
    return f"{zeros} 00 {zeros} 00 fe80{'0' * 28} {metric} 00000000 00000000 {flags} {name}\n"


def net(name: str, **files: str) -> dict[str, str]:
    return {f"sys/class/net/{name}/{key}": text for key, text in files.items()}


@pytest.mark.parametrize(
    ("speed", "bytes_per_second", "source"),
    [
        ("10000\n", 1_250_000_000, Source.DETECTED),
        ("1000\n", 125_000_000, Source.DETECTED),
        ("-1\n", 0, Source.UNKNOWN),
        ("0\n", 0, Source.UNKNOWN),
        ("what\n", 0, Source.UNKNOWN),
    ],
)
def test_the_speed_of_the_default_routes_card_counts(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    speed: str,
    bytes_per_second: int,
    source: Source,
) -> None:
    plant(tmp_path, {"proc/net/route": HEADING + route("eno1")} | net("eno1", speed=speed))

    found = detect_network("", tmp_path)

    assert (found.amount, found.source) == (bytes_per_second, source)
    assert len(caplog.records) == (source == Source.UNKNOWN)


def test_a_speed_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/net/route": HEADING + route("eno1")})
    (tmp_path / "sys/class/net/eno1/speed").mkdir(parents=True)  # reading it is an error

    assert detect_network("", tmp_path).source == Source.UNKNOWN


def test_without_a_route_nothing_is_known(tmp_path: Path) -> None:
    assert detect_network("", tmp_path).source == Source.UNKNOWN


def test_a_configured_uplink_is_taken_whatever_the_routes(tmp_path: Path) -> None:
    routes = {"proc/net/route": HEADING + route("eno1")}
    plant(tmp_path, routes | net("eno1", speed="1000") | net("eno2", speed="25000"))

    assert detect_network("eno2", tmp_path).amount == 3_125_000_000


@pytest.mark.parametrize(
    ("ipv4", "ipv6", "interface"),
    [
        (route("b", metric=200) + route("a", metric=100), route6("c", metric="00000001"), "a"),
        (route("lan", destination="0000A8C0"), route6("c"), "c"),
        (route("down", flags="0002") + route("no", flags="0203"), "", None),
        ("", route6("lo", flags="00200200"), None),
        ("", route6("far", metric="00000401") + route6("near"), "near"),
        ("broken\n", "broken\n", None),
        ("", "", None),
    ],
)
def test_the_default_route_of_least_metric_leads_out(
    tmp_path: Path, ipv4: str, ipv6: str, interface: str | None
) -> None:
    plant(tmp_path, {"proc/net/route": HEADING + ipv4, "proc/net/ipv6_route": ipv6})

    assert default_interface(tmp_path) == interface


def bond(tmp_path: Path, mode: str, active: str) -> None:
    plant(
        tmp_path,
        {
            "sys/class/net/bond0/bonding/mode": f"{mode} 1\n",
            "sys/class/net/bond0/bonding/active_slave": active,
            "sys/class/net/bond0/bonding/slaves": "eno1 eno2 eno3\n",
        }
        | net("bond0", speed="99")
        | net("eno1", speed="10000", operstate="up")
        | net("eno2", speed="25000", operstate="up")
        | net("eno3", speed="40000", operstate="down"),
    )


def test_a_bond_in_reserve_has_the_speed_of_its_active_member(tmp_path: Path) -> None:
    bond(tmp_path, "active-backup", "eno2\n")

    assert detect_network("bond0", tmp_path).amount == 25_000 * 125_000


def test_a_bond_in_reserve_without_an_active_member_is_unknown(tmp_path: Path) -> None:
    bond(tmp_path, "active-backup", "\n")

    assert detect_network("bond0", tmp_path).source == Source.UNKNOWN


def test_another_bond_has_the_speed_of_its_members_that_are_up(tmp_path: Path) -> None:
    bond(tmp_path, "802.3ad", "")

    assert detect_network("bond0", tmp_path).amount == 35_000 * 125_000


def test_a_bridge_over_a_vlan_over_a_bond_has_the_bonds_speed(tmp_path: Path) -> None:
    bond(tmp_path, "802.3ad", "")
    plant(
        tmp_path,
        net("br0", speed="10") | net("tap0", speed="10") | net("bond0.7", speed="10"),
        {
            "sys/class/net/br0/lower_tap0": "sys/class/net/tap0",
            "sys/class/net/br0/lower_bond0.7": "sys/class/net/bond0.7",
            "sys/class/net/bond0.7/lower_bond0": "sys/class/net/bond0",
        },
    )

    assert detect_network("br0", tmp_path).amount == 35_000 * 125_000


def test_ports_of_vms_make_no_uplink(tmp_path: Path) -> None:
    plant(
        tmp_path,
        net("br0", speed="10000") | net("veth0", speed="10000"),
        {"sys/class/net/br0/lower_veth0": "sys/class/net/veth0"},
    )

    assert detect_network("br0", tmp_path).source == Source.UNKNOWN


def test_cards_that_lie_upon_each_other_are_unknown(tmp_path: Path) -> None:
    plant(
        tmp_path,
        net("a", speed="1") | net("b", speed="1"),
        {
            "sys/class/net/a/lower_b": "sys/class/net/b",
            "sys/class/net/b/lower_a": "sys/class/net/a",
        },
    )

    assert detect_network("a", tmp_path).source == Source.UNKNOWN
