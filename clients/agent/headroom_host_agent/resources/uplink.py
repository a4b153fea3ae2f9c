"""The network card that carries a host's traffic, and its speed (spec hosts, A.3, A.14)."""

from __future__ import annotations

import logging
from pathlib import Path

from headroom_host_agent.resources.facts import Capacity, Source
from headroom_host_agent.resources.tree import SYSTEM, names_below, read_integer, read_or_none

log = logging.getLogger(__name__)
_UP, _REJECT = 0x1, 0x200  # flags of a route
_BYTES_PER_MEGABIT = 125_000


def detect_network(interface: str = "", sysroot: Path = SYSTEM) -> Capacity:
    """Return the uplink's bytes per second; 0 from an unknown source when nothing tells it.

    Args:
        interface: Name of the uplink; empty for that of the default route.
    """
    name = interface or default_interface(sysroot)
    megabits = _speed_megabits(sysroot, name, seen=frozenset()) if name else None
    if not megabits:
        log.warning("network: the speed of the uplink %s is unknown", name or "(none)")
        return Capacity(amount=0, source=Source.UNKNOWN, details={"interface": name})
    return Capacity(
        amount=megabits * _BYTES_PER_MEGABIT,
        source=Source.DETECTED,
        details={"interface": name},
    )


def default_interface(sysroot: Path = SYSTEM) -> str | None:
    """Return the interface of the default route of least metric, IPv4 before IPv6."""
    routes = _ipv4_defaults(sysroot) or _ipv6_defaults(sysroot)
    return min(routes, key=lambda route: route[0])[1] if routes else None


def _ipv4_defaults(sysroot: Path) -> list[tuple[int, str]]:
    found = []
    for line in (read_or_none(sysroot / "proc/net/route") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or (fields[1], fields[7]) != ("00000000", "00000000"):  # noqa: PLR2004
            continue
        flags, metric = _hexadecimal(fields[3]), fields[6]
        if flags & _UP and not flags & _REJECT and metric.isdecimal():
            found.append((int(metric), fields[0]))
    return found


def _ipv6_defaults(sysroot: Path) -> list[tuple[int, str]]:
    found = []
    for line in (read_or_none(sysroot / "proc/net/ipv6_route") or "").splitlines():
        fields = line.split()
        if len(fields) < 10 or (fields[0], fields[1]) != ("0" * 32, "00"):  # noqa: PLR2004
            continue
        flags = _hexadecimal(fields[8])
        if flags & _UP and not flags & _REJECT and fields[9] != "lo":
            found.append((_hexadecimal(fields[5]), fields[9]))
    return found


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def _speed_megabits(sysroot: Path, name: str, *, seen: frozenset[str]) -> int | None:
    """Return the speed of what carries an interface; None when unknown.

    A bridge or VLAN states a speed of its own that its virtual ports may have made, so what lies
    below comes first.
    """
    if name in seen or name in ("", ".", "..") or "/" in name:
        return None
    base = sysroot / "sys/class/net" / name
    seen |= {name}
    if (base / "bonding").exists():
        return _bond_megabits(sysroot, base, seen=seen)
    below = [
        lower.removeprefix("lower_") for lower in names_below(base) if lower.startswith("lower_")
    ]
    if not below:
        return _positive(read_integer(base / "speed"))
    carrying = (lower for lower in below if _carries(sysroot / "sys/class/net" / lower))
    return (
        max((_speed_megabits(sysroot, lower, seen=seen) or 0 for lower in carrying), default=0)
        or None
    )


def _bond_megabits(sysroot: Path, base: Path, *, seen: frozenset[str]) -> int | None:
    bonding = base / "bonding"
    mode = (read_or_none(bonding / "mode") or "").split(" ")[0]
    if mode == "active-backup":
        active = read_or_none(bonding / "active_slave")
        return _speed_megabits(sysroot, active, seen=seen) if active else None
    members = (read_or_none(bonding / "slaves") or "").split()
    up = [
        member
        for member in members
        if read_or_none(sysroot / "sys/class/net" / member / "operstate") == "up"
    ]
    return sum(_speed_megabits(sysroot, member, seen=seen) or 0 for member in up) or None


def _carries(base: Path) -> bool:
    """Return whether an interface leads out: ports of VMs state speeds that mean nothing."""
    is_stacked = any(lower.startswith("lower_") for lower in names_below(base))
    return (base / "device").exists() or (base / "bonding").exists() or is_stacked


def _positive(number: int | None) -> int | None:
    return number if number is not None and number > 0 else None
