"""Whether a host is fit: what is looked at with each report (spec hosts, D.10).

A check says what it saw and decides nothing; one that cannot look says nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headroom_host_agent.resources.tree import SYSTEM, names_below, read_integer, read_or_none
from headroom_host_agent.resources.uplink import default_interface

MOST_OFFSET_SECONDS = 5.0
_GOOD_STATES = frozenset({"running", "live"})
_TEXT = bytes(range(256)) * 256
_DIGEST = "7daca2095d0438260fa849183dfc67faa459fdf4936e1bc91eec6b281b27e4c2"
_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFinding:
    """What a check saw; ``message`` is for people."""

    check: str
    ok: bool
    message: str

    def to_json(self) -> dict[str, object]:
        """Return the fields as they are reported."""
        return {"check": self.check, "ok": self.ok, "message": self.message}


class Health:
    """Looks at clock, disks, uplink and, one after the other, CPUs."""

    def __init__(
        self,
        *,
        sysroot: Path = SYSTEM,
        uplink: str = "",
        offset_seconds: Callable[[], float | None] = lambda: None,
        digest: Callable[[bytes], str] = lambda text: hashlib.sha256(text).hexdigest(),
    ) -> None:
        self._sysroot, self._uplink = sysroot, uplink
        self._offset_seconds, self._digest = offset_seconds, digest
        self._turn = 0

    def look(self) -> tuple[HealthFinding, ...]:
        """Return what is seen now."""
        return (*self._clock(), *self._disks(), *self._network(), *self._cpu())

    def _clock(self) -> Iterator[HealthFinding]:
        offset = self._offset_seconds()
        if offset is not None:
            message = f"the clock is {offset:.3f} s behind Headroom's"
            yield HealthFinding(
                check="clock", ok=abs(offset) <= MOST_OFFSET_SECONDS, message=message
            )

    def _disks(self) -> Iterator[HealthFinding]:
        wrong, looked = [], 0
        for name in names_below(self._sysroot / "sys/block"):
            base = self._sysroot / "sys/block" / name
            state = read_or_none(base / "device/state")
            degraded = read_integer(base / "md/degraded")
            looked += state is not None or degraded is not None
            if state is not None and state not in _GOOD_STATES:
                wrong.append(f"{name} is {state}")
            if degraded:
                wrong.append(f"{name} lacks {degraded} disks")
        for name in names_below(self._sysroot / "sys/fs/ext4"):
            errors = read_integer(self._sysroot / "sys/fs/ext4" / name / "errors_count")
            looked += errors is not None
            if errors:
                wrong.append(f"the file system on {name} had {errors} errors")
        if looked:
            message = "; ".join(wrong) or f"{looked} disks and file systems are well"
            yield HealthFinding(check="disk", ok=not wrong, message=message)

    def _network(self) -> Iterator[HealthFinding]:
        name = self._uplink or default_interface(self._sysroot)
        state = read_or_none(self._sysroot / "sys/class/net" / name / "operstate") if name else None
        if state is not None:
            message = f"the uplink {name} is {state}"
            yield HealthFinding(check="network", ok=state in ("up", "unknown"), message=message)

    def _cpu(self) -> Iterator[HealthFinding]:
        """Compute something known on the next CPU, in this thread alone."""
        allowed = sorted(os.sched_getaffinity(0))
        cpu = allowed[self._turn % len(allowed)]
        self._turn += 1
        try:
            os.sched_setaffinity(0, {cpu})
            try:
                is_right = all(self._digest(_TEXT) == _DIGEST for _ in range(_ROUNDS))
            finally:
                os.sched_setaffinity(0, allowed)
        except OSError:
            return
        said = "computes as it should" if is_right else "computes wrongly"
        yield HealthFinding(check="cpu", ok=is_right, message=f"CPU {cpu} {said}")
