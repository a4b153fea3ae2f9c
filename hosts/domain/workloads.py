"""The life of a host's workload, and what results of agents do to it (spec hosts, D.8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MOST_ATTEMPTS: Final = 3
_PAGE_BYTES: Final = {"2MiB": 2 << 20, "1GiB": 1 << 30}


class WorkloadState(StrEnum):
    """How far a workload is."""

    PENDING = "pending"  # no poll has fetched it
    DISPATCHED = "dispatched"
    DEPLOYED = "deployed"
    FAILED = "failed"
    LOST = "lost"  # the host went down before it said what became of it
    DELETING = "deleting"
    DELETED = "deleted"


class ResultKind(StrEnum):
    """What is told once for each attempt."""

    RESULT = "result"
    DEATH = "death"  # an error after the attempt had succeeded
    DELETED = "deleted"


#: States in which an agent's word on an attempt is still to come.
OPEN: Final = frozenset({WorkloadState.PENDING, WorkloadState.DISPATCHED})
#: States from which a workload may be tried again.
ENDED: Final = frozenset({WorkloadState.FAILED, WorkloadState.LOST})
#: States whose rows an agent that begins at 0 has no use for.
UNLISTED: Final = frozenset({WorkloadState.DELETED, WorkloadState.FAILED, WorkloadState.LOST})


def _of_pages(data: Mapping[str, object]) -> dict[str, int]:
    page_bytes = _PAGE_BYTES.get(str(data.get("page_size")), 0)
    return {"mru": page_bytes * _whole(data.get("count"))}


def _of_folder(data: Mapping[str, object]) -> dict[str, int]:
    return {"disk": _whole(data.get("size_bytes"))}


def _of_nothing(_: Mapping[str, object]) -> dict[str, int]:
    return {}


def _whole(number: object) -> int:
    return number if isinstance(number, int) and not isinstance(number, bool) else 0


#: Types whose units are not the resources of the workload: what their data say (spec hosts, D.11).
UNITS_OF_DATA: Final[Mapping[str, Callable[[Mapping[str, object]], Mapping[str, int]]]] = {
    "hugepages": _of_pages,
    "disk_quota": _of_folder,
    "vgpu": _of_nothing,
    "noop": _of_nothing,
}


class Refusal(StrEnum):
    """Why a result is not taken; the codes that agents get."""

    CONFLICT = "result_conflict"
    SUPERSEDED = "attempt_superseded"
    STALE = "stale_epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A result as an agent sent it.

    Attributes:
        state: ``ok``, ``error`` or ``deleted``.
        digest: The same for what says the same; when it was said counts for nothing.
    """

    attempt: int
    fence_epoch: int
    state: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is stored of the workload.

    Attributes:
        fence_epoch: The host's epoch now.
        results: Kind -> digest, of the attempt that the result is of.
        first_state: State of the stored ``result`` of that attempt; empty without one.
    """

    state: WorkloadState
    attempt: int
    fence_epoch: int
    results: dict[ResultKind, str]
    first_state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a result.

    Attributes:
        refusal: None when it is taken.
        kind: Under which it is stored; None when it is stored already.
        state: The workload's state afterwards.
    """

    state: WorkloadState
    kind: ResultKind | None = None
    refusal: Refusal | None = None


def judge(known: Known, told: Told) -> Verdict:
    """Return what a result does to a workload: the first rule that matches.

    1. The same was stored before: nothing changes, whatever happened since.
    2. It is of an older attempt, or of one that was never asked for: refused.
    3. It is of another epoch than the host's: refused.
    4. Something else was stored of the attempt: refused, but for an error after a success.
    5. It is stored; what is being deleted stays so until its deletion is told.
    """
    kind = _kind(known, told)
    if known.results.get(kind) == told.digest or _is_first(known, told):
        return Verdict(state=known.state)
    refusal = _refusal(known, told, kind)
    if refusal is not None:
        return Verdict(state=known.state, refusal=refusal)
    if kind == ResultKind.DELETED:
        return Verdict(state=WorkloadState.DELETED, kind=kind)
    if known.state in (WorkloadState.DELETING, WorkloadState.DELETED):
        return Verdict(state=known.state, kind=kind)
    state = WorkloadState.DEPLOYED if told.state == "ok" else WorkloadState.FAILED
    return Verdict(state=state, kind=kind)


def _refusal(known: Known, told: Told, kind: ResultKind) -> Refusal | None:
    if told.attempt != known.attempt:
        return Refusal.SUPERSEDED
    if told.fence_epoch != known.fence_epoch:
        return Refusal.STALE
    return Refusal.CONFLICT if kind in known.results else None


def _is_first(known: Known, told: Told) -> bool:
    """Return whether a result is what was told first, and a death since."""
    return told.state != "deleted" and known.results.get(ResultKind.RESULT) == told.digest


def _kind(known: Known, told: Told) -> ResultKind:
    if told.state == "deleted":
        return ResultKind.DELETED
    is_death = told.state == "error" and known.first_state == "ok"
    return ResultKind.DEATH if is_death else ResultKind.RESULT
