"""CPUs, memory and disk of a Linux host (spec hosts, A.3)."""

from __future__ import annotations

import logging
import os
import re
from decimal import Decimal
from pathlib import Path

from headroom_host_agent.resources.facts import Capacity, DetectionError, Source
from headroom_host_agent.resources.numa import hugepages_of_host
from headroom_host_agent.resources.tree import SYSTEM, parse_list, read_or_none, read_text

log = logging.getLogger(__name__)


def detect_cpu(sysroot: Path = SYSTEM) -> Capacity:
    """Return the logical CPUs that are online.

    Warns when this process may run on fewer of them: it is pinned or in a container and could
    describe the wrong machine.

    Raises:
        DetectionError: Neither the list of CPUs nor cpuinfo can be read.
    """
    online = _online_cpus(sysroot)
    amount = len(online) if online else _cpus_of_cpuinfo(sysroot)
    affinity = _affinity(sysroot, online)
    if affinity is not None and affinity < amount:
        log.warning("cpu: this process may use %d of %d CPUs", affinity, amount)
    details = {"affinity": affinity, "cgroup_cpu_max": _cgroup_cpu_max(sysroot)}
    return Capacity(amount=amount, source=Source.DETECTED, details=details)


def reference_cpus(cpuinfo: str) -> int:
    """Return the first ``siblings`` times the sockets, else the processors, at least 1."""
    siblings: int | None = None
    sockets, processors = set(), 0
    for line in cpuinfo.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        processors += line.startswith("processor")
        if key == "siblings" and siblings is None and value.isdecimal():
            siblings = int(value)
        elif key == "physical id" and value:
            sockets.add(value)
    if siblings and sockets:
        return siblings * len(sockets)
    return processors or 1


def _cpus_of_cpuinfo(sysroot: Path) -> int:
    path = sysroot / "proc/cpuinfo"
    try:
        cpuinfo = read_text(path)
    except OSError as error:
        raise DetectionError(f"cpu: cannot read {path}: {error.strerror}") from None
    processors = sum(line.startswith("processor") for line in cpuinfo.splitlines())
    return processors or reference_cpus(cpuinfo)


def _online_cpus(sysroot: Path) -> frozenset[int]:
    return _list_or_empty(read_or_none(sysroot / "sys/devices/system/cpu/online"))


def _list_or_empty(text: str | None) -> frozenset[int]:
    try:
        return parse_list(text or "")
    except ValueError:
        return frozenset()


def _affinity(sysroot: Path, online: frozenset[int]) -> int | None:
    """Return how many CPUs this process may use; the kernel's list names absent ones too."""
    status = read_or_none(sysroot / "proc/self/status") or ""
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)$", status, re.MULTILINE)
    allowed = _list_or_empty(found[1] if found else None)
    return len(allowed & online if online else allowed) or None


def _cgroup_cpu_max(sysroot: Path) -> str | None:
    """Return the CPUs that the tightest quota above this process grants, like ``2.5``."""
    own = re.search(r"^0::(/.*)$", read_or_none(sysroot / "proc/self/cgroup") or "", re.MULTILINE)
    if own is None:
        return None
    group = Path(own[1].lstrip("/"))
    quotas = []
    for path in (group, *group.parents):
        text = read_or_none(sysroot / "sys/fs/cgroup" / path / "cpu.max") or ""
        found = re.fullmatch(r"([0-9]{1,18}) ([1-9][0-9]{0,17})", text)
        if found:
            quotas.append(Decimal(found[1]) / Decimal(found[2]))
    return str(min(quotas).quantize(Decimal("0.01"))) if quotas else None


def detect_memory(sysroot: Path = SYSTEM) -> Capacity:
    """Return MemTotal in bytes; it includes pages that huge page pools hold already.

    Raises:
        DetectionError: It cannot be read.
    """
    path = sysroot / "proc/meminfo"
    try:
        text = read_text(path)
    except OSError as error:
        raise DetectionError(f"memory: cannot read {path}: {error.strerror}") from None
    line = next((line for line in text.splitlines() if line.startswith("MemTotal:")), None)
    if line is None:
        raise DetectionError("memory: MemTotal not found")
    fields = line.split()
    if len(fields) < 2 or not re.fullmatch(r"[0-9]{1,15}", fields[1]):  # noqa: PLR2004
        raise DetectionError(f"memory: cannot parse MemTotal: {line!r}")
    pools = [pool.to_json() for pool in hugepages_of_host(sysroot)]
    return Capacity(
        amount=int(fields[1]) * 1024, source=Source.DETECTED, details={"hugepages": pools}
    )


def detect_disk(data_dir: Path) -> Capacity:
    """Return the size of a directory's file system in bytes, with blocks reserved for root.

    Raises:
        DetectionError: The directory is missing.
    """
    try:
        found = os.statvfs(data_dir)
    except OSError as error:
        raise DetectionError(f"disk: cannot read {data_dir}: {error.strerror}") from None
    return Capacity(amount=found.f_blocks * found.f_frsize, source=Source.DETECTED)
