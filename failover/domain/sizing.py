"""How large a failover reservation is (spec failover, 12.2)."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFlavor:
    """The largest flavor of a flavor group.

    Attributes:
        group: The group.
        flavor_name: Its largest flavor.
        memory_bytes: Memory of that flavor.
        vcpus: vCPUs of that flavor.
    """

    group: str
    flavor_name: str
    memory_bytes: int
    vcpus: int
