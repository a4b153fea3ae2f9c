"""What a flavor needs of a host besides memory, vCPUs and disk (spec hosts, A.1, D.12).

The database counts the same of slots that it stores (``capacity_flavor_needs``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

#: In the order in which they are taken.
OTHER_RESOURCES: Final = ("network", "disk_io", "gpu")
#: Left of a resource that nothing is known of: no request is refused for it.
UNLIMITED: Final = 2**62

VIF_KEYS: Final = ("quota:vif_inbound_average", "quota:vif_outbound_average")
DISK_TOTAL_KEY: Final = "quota:disk_total_bytes_sec"
DISK_KEYS: Final = ("quota:disk_read_bytes_sec", "quota:disk_write_bytes_sec")
GPU_KEYS: Final = ("resources:VGPU", "resources:PGPU")
_LONGEST: Final = 12


class Needs(NamedTuple):
    """Amounts of network and disk I/O in bytes per second, and GPUs."""

    network: int = 0
    disk_io: int = 0
    gpu: int = 0

    def share(self, part: int, whole: int) -> Needs:
        """Return what a part of something needs, rounded up: half a GPU is one."""
        if whole <= 0 or part <= 0:
            return Needs()
        return Needs(*(-(-amount * part // whole) for amount in self))

    def with_more(self, more: Needs) -> Needs:
        """Return the sums."""
        return Needs(*(one + other for one, other in zip(self, more, strict=True)))

    def with_less(self, less: Needs) -> Needs:
        """Return the differences, which may be negative."""
        return Needs(*(one - other for one, other in zip(self, less, strict=True)))


NO_NEEDS: Final = Needs()
NOTHING_KNOWN: Final = Needs(UNLIMITED, UNLIMITED, UNLIMITED)


def flavor_needs(extra_specs: Mapping[str, str]) -> Needs:
    """Return what a VM of a flavor needs.

    Network is the larger of both directions, which share the link; Nova's unit is 1000 bytes per
    second. Text that is no whole number counts as nothing, as with Nova's own limits.
    """
    network = 1000 * max((_number(extra_specs.get(key)) for key in VIF_KEYS), default=0)
    disk_io = (
        _number(extra_specs[DISK_TOTAL_KEY])
        if _is_number(extra_specs.get(DISK_TOTAL_KEY))
        else sum(_number(extra_specs.get(key)) for key in DISK_KEYS)
    )
    gpu = sum(_number(extra_specs.get(key)) for key in GPU_KEYS)
    return Needs(network=network, disk_io=disk_io, gpu=gpu)


def _is_number(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= _LONGEST


def _number(text: object) -> int:
    return int(str(text)) if _is_number(text) else 0
