"""What a run of the loop will do in a zone (spec failover, 9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FloatColumn = NDArray[np.float64]
BoolColumn = NDArray[np.bool_]


class ReuseOrder(StrEnum):
    """Which of the reservations that it may join a VM joins (spec failover, 11.1, 17.4)."""

    FEWEST_USERS = "fewest_users"
    MOST_USERS = "most_users"
    OLDEST = "oldest"


class RemovalReason(StrEnum):
    """Why a VM leaves a reservation."""

    GONE = "gone"
    MOVED = "moved"
    HOST_GONE = "host_gone"
    RULES = "rules"
    TOO_LARGE = "too_large"
    SURPLUS = "surplus"


STALE = frozenset({RemovalReason.GONE, RemovalReason.MOVED, RemovalReason.HOST_GONE})
"""Why users leave in step 3 of a run, before the rules are looked at (spec failover, 9.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What a run may do.

    Attributes:
        reuse_order: How a reservation to join is chosen.
        max_users: Most VMs that share a reservation, whatever the size of the zone.
        most_required: Reservations that some VM needs although it is not among those planned.
        limit: VMs handled; 0 and less is all.
        run_number: Number of the run, from 1.
        rotation_interval: Every so many limited runs start at a random VM.
        draw: Returns a random number below its argument.
        one_new_per_host: At most one new reservation per host.
        consolidate: Prefer hosts that hold many reservations.
        shrinks: Reduce reservations to their largest user.
        trims: Release what a VM has beyond its need.
        max_removal_ratio: Share of memberships that may go.
        max_shrink_ratio: Share by which the VM list may shrink.
        brake_floor: Removals, and VMs gone, that never halt a run.
        previous_vm_count: VMs listed at the last run; 0 if there was none.
        is_confirmed: Whether an operator allowed this run to remove whatever it finds.
    """

    reuse_order: ReuseOrder = ReuseOrder.FEWEST_USERS
    max_users: int = 20
    most_required: int = 0
    limit: int = 0
    run_number: int = 1
    rotation_interval: int = 0
    draw: Callable[[int], int] = lambda _: 0
    one_new_per_host: bool = False
    consolidate: bool = False
    shrinks: bool = True
    trims: bool = True
    max_removal_ratio: float = 0.05
    max_shrink_ratio: float = 0.2
    brake_floor: int = 20
    previous_vm_count: int = 0
    is_confirmed: bool = False


class HostChooser(Protocol):
    """What the scheduler says about hosts of the zone; rows are those of the snapshot."""

    def compatible(self, class_code: int) -> BoolColumn:
        """Return bool[H], hosts that VMs of a class may run on, whatever room they have."""

    def scores(self, class_code: int, memory_bytes: int, vcpus: int) -> FloatColumn:
        """Return float64[H], what the scheduler prefers; minus infinity where there is no room."""

    def place(self, host: int, class_code: int, memory_bytes: int, vcpus: int) -> None:
        """Count a new reservation on a host from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReservation:
    """A reservation to make.

    Attributes:
        number: By which joins refer to it: it continues the rows of the snapshot's reservations.
        host: Row of its host.
        vm: Row of the VM that it is made for.
        memory_bytes: Its size.
        vcpus: Likewise.
        facts: Counts of hosts behind the choice.
    """

    number: int
    host: int
    vm: int
    memory_bytes: int
    vcpus: int
    facts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A VM leaves a reservation.

    Attributes:
        member: Row of the membership.
        reason: Why.
    """

    member: int
    reason: RemovalReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """A reservation becomes smaller.

    Attributes:
        slot: Row of the reservation.
        memory_bytes: New size.
        vcpus: Likewise.
        users: Who the new size was found for; with others it does not hold.
    """

    slot: int
    memory_bytes: int
    vcpus: int
    users: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A VM that lacks reservations after the run.

    Attributes:
        vm: Row of the VM.
        current: Reservations it has then.
        reason: Word of :class:`failover.choices.Uncovered`.
        facts: Counts of hosts by what excluded them.
    """

    vm: int
    current: int
    reason: str
    facts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Brake:
    """Why a run must not remove anything.

    Attributes:
        code: Stable word.
        message: For people, with the numbers.
        facts: The numbers.
    """

    code: str
    message: str
    facts: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPlan:
    """What leaves before anything is added.

    Attributes:
        removals: In the order in which they happen.
        emptied: Rows of reservations that nobody is left in.
        resized: Reservations that become smaller.
        kept: Memberships of VMs that only hosts know, kept by the safeguard.
        brake: Why nothing of this may happen; None if it may.
    """

    removals: tuple[Removal, ...] = ()
    emptied: tuple[int, ...] = ()
    resized: tuple[Resize, ...] = ()
    kept: int = 0
    brake: Brake | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverPlan:
    """Whom the run gives reservations.

    Attributes:
        joins: (VM row, reservation number) in the order of joining; numbers from the count of the
            snapshot's reservations on are new.
        created: New reservations by number.
        shortfalls: VMs that still lack some, by row.
        missing_vms: VMs that lacked some before.
        processed_vms: VMs that were handled.
        needed: Reservations that those lacked.
        reused: Joins of reservations that were there before or made for another VM.
        failed: Reservations that could not be had.
        hit_limit: Whether VMs were left for the next run.
    """

    joins: tuple[tuple[int, int], ...] = ()
    created: tuple[PlannedReservation, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()
    missing_vms: int = 0
    processed_vms: int = 0
    needed: int = 0
    reused: int = 0
    failed: int = 0
    hit_limit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ZonePlan:
    """All steps of a run.

    Attributes:
        cleaning: What leaves.
        cover: What is added; empty when the brake holds.
    """

    cleaning: CleaningPlan
    cover: CoverPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Figures of one run in one zone.

    Attributes:
        total_vms: VMs on hosts of the zone.
        total_reservations: Failover reservations at the end.
        vms_missing_failover: VMs with fewer reservations than they need, before the run's work.
        vms_processed: VMs that the run handled.
        reservations_needed: Reservations that these lacked.
        reused: Existing reservations that were joined.
        created: New reservations.
        failed: Needs that could not be met.
        reservations_updated: Reservations that lost users; one that did so twice counts twice.
        reservations_deleted: Empty reservations that were deleted.
    """

    total_vms: int = 0
    total_reservations: int = 0
    vms_missing_failover: int = 0
    vms_processed: int = 0
    reservations_needed: int = 0
    reused: int = 0
    created: int = 0
    failed: int = 0
    reservations_updated: int = 0
    reservations_deleted: int = 0
