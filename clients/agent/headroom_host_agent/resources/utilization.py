"""What a VM uses, from the counters of its process and its tap device (spec hosts, A.12)."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from headroom_host_agent.resources.tree import SYSTEM, read_integer, read_text

log = logging.getLogger(__name__)
_LEAST_FIELDS = 13  # of stat after the command's name, up to stime


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceUtilizationInfo:
    """Where a VM's counters are, and what it was given.

    Attributes:
        tap_device: Empty for a VM without one.
    """

    id: str
    name: str
    hypervisor_pid: int | None
    tap_device: str
    allocated_vcpus: int
    allocated_memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """Counters of a VM, from its own view: what it sent is what its tap received.

    Attributes:
        cpu_microseconds: User and system time since its process began.
    """

    cpu_microseconds: int = 0
    rss_bytes: int = 0
    vms_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


def read_utilization(vm: InstanceUtilizationInfo, sysroot: Path = SYSTEM) -> Utilization:
    """Return a VM's counters; what is gone counts zero, said once at debug level."""
    cpu_microseconds = rss_bytes = vms_bytes = 0
    missing = []
    if vm.hypervisor_pid is not None:
        process = sysroot / "proc" / str(vm.hypervisor_pid)
        try:
            cpu_microseconds = parse_stat(read_text(process / "stat"))
            rss_bytes, vms_bytes = parse_statm(read_text(process / "statm"))
        except (OSError, ValueError) as error:
            missing.append(str(error))
    counters = sysroot / "sys/class/net" / vm.tap_device / "statistics"
    sent_bytes = read_integer(counters / "rx_bytes") if vm.tap_device else 0
    received_bytes = read_integer(counters / "tx_bytes") if vm.tap_device else 0
    if sent_bytes is None or received_bytes is None:
        missing.append(f"no counters of {vm.tap_device}")
    if missing:
        log.debug("utilization of %s is not complete: %s", vm.id, "; ".join(missing))
    return Utilization(
        cpu_microseconds=cpu_microseconds,
        rss_bytes=rss_bytes,
        vms_bytes=vms_bytes,
        sent_bytes=sent_bytes or 0,
        received_bytes=received_bytes or 0,
    )


def parse_stat(text: str, *, ticks_per_second: int | None = None) -> int:
    """Return the CPU microseconds of a process's ``stat``; its name may hold anything.

    Raises:
        ValueError: The text is too short or has no numbers where they belong.
    """
    fields = text.rpartition(")")[2].split()
    if len(fields) < _LEAST_FIELDS:
        raise ValueError(f"stat has {len(fields)} fields after the name")
    ticks = int(fields[11]) + int(fields[12])
    return ticks * 1_000_000 // (ticks_per_second or os.sysconf("SC_CLK_TCK"))


def parse_statm(text: str, *, page_bytes: int | None = None) -> tuple[int, int]:
    """Return resident and virtual bytes of a process's ``statm``.

    Raises:
        ValueError: The text has no numbers where they belong.
    """
    fields = text.split()
    if len(fields) < 2:  # noqa: PLR2004
        raise ValueError("statm has no two fields")
    page = page_bytes or os.sysconf("SC_PAGE_SIZE")
    return int(fields[1]) * page, int(fields[0]) * page
