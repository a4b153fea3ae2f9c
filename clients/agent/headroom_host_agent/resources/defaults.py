"""Bandwidth of VMs that name none (spec hosts, A.8)."""

from __future__ import annotations

from dataclasses import dataclass

BURST_FACTOR = 4


def share_of_host(vcpus: int, *, limit: int, cpu_capacity: int) -> int:
    """Return a VM's share of a limit by its vCPUs, rounded down; 0 on a host without CPUs."""
    return vcpus * limit // cpu_capacity if cpu_capacity > 0 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """What to program for a VM's network card, in bytes per second and bytes.

    Attributes:
        download_bucket_bytes: Of the token bucket on the VM's tap device.
        upload_bps: Guaranteed rate of its class on the bridge.
        upload_ceiling_bps: What the class may borrow up to.
    """

    download_bps: int
    download_bucket_bytes: int
    upload_bps: int
    upload_ceiling_bps: int


def shaping(
    download_bps: int, upload_bps: int, *, download_multiplier: int, upload_multiplier: int
) -> Shaping:
    """Return a VM's rates with their bursts."""
    return Shaping(
        download_bps=download_bps,
        download_bucket_bytes=download_bps * download_multiplier,
        upload_bps=upload_bps,
        upload_ceiling_bps=upload_bps * upload_multiplier,
    )
