"""Hooks of ``capacity``: questions that only higher apps can answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from journal.errors import Busy
from scheduling.quota import QuotaFacts
from scheduling.resources import ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSource:
    """Where else than in the VM list it is written what VMs take on hosts.

    A host that the source does not know has to be answered from the VM list.

    Attributes:
        taken: SQL of ``host_id``, ``memory_bytes`` and ``vcpus``, a row for each host with VMs;
            its parameter ``host_ids`` is null for every host.
        claims: SQL of ``host_id``, ``vm_uuid``, the time of its last claim, ``memory_bytes`` and
            ``vcpus``, a row for each host on which one of ``vm_uuids`` holds something, and one
            without a VM for each of ``host_ids`` that the source knows.
        listed: SQL like ``taken`` of what the VM list says, but for VMs that were claimed since
            ``claimed_since`` (null: none), of which the list cannot know.
    """

    taken: str
    claims: str
    listed: str


_allocation_sources: dict[str, AllocationSource] = {}


def add_allocation_source(name: str, source: AllocationSource) -> None:
    """Register a source under its name in ``HEADROOM_ALLOCATION_SOURCE``."""
    _allocation_sources[name] = source


def allocation_sources() -> Mapping[str, AllocationSource]:
    """Return the sources that higher apps offer, by name."""
    return dict(_allocation_sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZonePosition:
    """From which state of the database something about a zone was computed.

    Attributes:
        snapshot: Text of the ``pg_snapshot``.
    """

    zone: str
    snapshot: str


class CommitmentFigures(Protocol):
    """What capacity has to know of commitments."""

    def committed_slots(self, zone: str, unit_bytes: Mapping[str, int]) -> Mapping[str, int]:
        """Return committed memory by flavor group, in units of its smallest flavor.

        Args:
            unit_bytes: Flavor group to the memory of its smallest flavor; others are left out.
        """

    def covered(self, zone: str) -> Mapping[str, ResourceVector]:
        """Return what VMs that commitments of memory cover take in a zone, by flavor group."""

    def zones_changed_since(self, positions: Sequence[ZonePosition]) -> set[str]:
        """Return the zones whose commitments changed since their position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedReservation:
    """A reservation that lost its host against its owner's will.

    Attributes:
        kind: What it is held for.
        commitment_id: The commitment whose slot it is; None for other kinds.
        reason: Why, for a person.
    """

    reservation_id: int
    kind: str
    commitment_id: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedPlacement:
    """A VM that was placed or refused, as commitments see it.

    Attributes:
        project_id: The VM's project, never the caller's.
        group: Flavor group of its flavor.
        zone: Zone asked for; empty means any.
        resources: What it takes.
    """

    vm_uuid: str
    project_id: str
    group: str
    zone: str
    resources: ResourceVector


class CommitmentTracker(Protocol):
    """What scheduling asks of commitments (spec scheduling, 7.16, 12; commitments, 17)."""

    def placed(self, vm: TrackedPlacement, *, candidates: Sequence[str], now: datetime) -> str:
        """Book a VM into a slot on its target host, inside the placement's transaction.

        Args:
            candidates: Hosts of the answer, the target first.
            now: When it was placed.

        Returns:
            The class of the placement.
        """

    def refused(self, vm: TrackedPlacement, *, input_hosts: Collection[str] | None) -> str:
        """Return the class of a refusal.

        Args:
            input_hosts: Hosts after candidate gathering; None means all.
        """

    def quota_facts(self, project_id: str, zone: str, group: str) -> QuotaFacts:
        """Return a project's quota and active memory commitments, without its usage."""

    def payg_usage(self, project_id: str, zone: str) -> Mapping[str, int]:
        """Return what the project uses in the zone that no commitment covers, as quota rows say it.

        Returns:
            Mapping resource name -> GiB of memory, cores or instances; unused ones may be missing.
        """


class BeingChanged(Busy):
    """Another transaction is changing what this one must lock at once or not at all.

    Attributes:
        wait: Waits until that one is over. To be called in a transaction that holds no locks and
            bounds its waits; raises ``Busy`` if it waited too long.
    """

    code = "being_changed"

    def __init__(self, message: str, *, wait: Callable[[], object]) -> None:
        super().__init__(message)
        self.wait = wait


class EvacuationGuide(Protocol):
    """Who knows where the VMs of a dead host are planned to go (spec failover, 17.2)."""

    def planned_host(self, vm_uuid: str) -> str:
        """Return the host that is planned for a VM; empty when there is no plan for it.

        Called once for every request to evacuate a VM; may note that the evacuation has begun, in
        a transaction of its own.
        """

    def arrived(self, reservation_ids: Collection[int]) -> None:
        """End reservations whose evacuated VM is on their host now, and give their room back.

        Runs inside the transaction of the VM's claim, which holds the rooms of their hosts.

        Raises:
            BeingChanged: Another is changing one of them; it is not waited for with rooms locked.
        """
        ...


class Hooks:
    """What higher apps fill when Django starts, and nobody changes afterwards.

    Attributes:
        referenced_groups: Takes names of flavor groups, returns those that rows of commitments
            still refer to.
        groups_resized: Told the names of groups whose flavors changed memory or vCPUs, came or
            went, and the time; inside the transaction of the refresh, which holds rows of groups.
        broken_amounts: Takes the name of a flavor group or ``*``, groups that ``*`` does not speak
            for, and bytes of a unit; returns how many stored amounts are no whole number of units
            (spec liquid, 12.2).
        reservations_released: Told the reservations that lose their host, and the time; inside the
            releasing transaction, which holds host rooms. It may lock rows of its own app, not
            reservations.
        commitment_figures: Who knows commitments.
        commitment_tracker: Who tracks placements.
        evacuation_guide: Who plans evacuations.
    """

    referenced_groups: Callable[[Collection[str]], set[str]]
    groups_resized: Callable[[Collection[str], datetime], object]
    broken_amounts: Callable[[str, Collection[str], int], int]
    reservations_released: Callable[[Sequence[ReleasedReservation], datetime], object]
    commitment_figures: CommitmentFigures
    commitment_tracker: CommitmentTracker
    evacuation_guide: EvacuationGuide


hooks = Hooks()
