"""Hooks of ``capacity``: questions that only higher apps can answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from scheduling.quota import QuotaFacts
from scheduling.resources import ResourceVector

ReferenceCheck = Callable[[Collection[str]], set[str]]

_group_reference_checks: dict[str, ReferenceCheck] = {}


def add_group_reference_check(app_name: str, check: ReferenceCheck) -> None:
    """Register how to find which of some flavor groups an app's rows still refer to.

    Args:
        app_name: The app; registering again replaces its check.
        check: Takes names of flavor groups, returns those that are referred to.
    """
    _group_reference_checks[app_name] = check


def referenced_groups(names: Collection[str]) -> set[str]:
    """Return those of some flavor groups that rows of higher apps refer to."""
    if not names:
        return set()
    return {name for check in _group_reference_checks.values() for name in check(names)}


ResizeListener = Callable[[Collection[str], datetime], None]

_resize_listeners: dict[str, ResizeListener] = {}


def add_resize_listener(app_name: str, listener: ResizeListener) -> None:
    """Register what an app does when flavors of groups changed memory or vCPUs.

    The listener runs inside the transaction of the refresh, which holds rows of flavor groups.

    Args:
        app_name: The app; registering again replaces its listener.
        listener: Takes the names of the groups and the time.
    """
    _resize_listeners[app_name] = listener


def groups_resized(names: Collection[str], *, now: datetime) -> None:
    """Tell higher apps that flavors of groups changed size, came or went."""
    if names:
        for listener in _resize_listeners.values():
            listener(names, now)


_allocation_sources: dict[str, str] = {}
_claim_sources: dict[str, str] = {}


def add_allocation_source(name: str, query: str, *, claims: str) -> None:
    """Register where else than in the VM list it is written what VMs take on hosts.

    A host that the source does not know has to be answered from the VM list, and a VM that a
    reservation of the host still holds is left out: the reservation blocks its room.

    Args:
        name: As ``HEADROOM_ALLOCATION_SOURCE`` says it.
        query: SQL of ``host_id``, ``memory_bytes`` and ``vcpus``, a row for each host with VMs;
            its parameter ``host_ids`` is null for every host.
        claims: SQL of ``host_id`` and ``vm_uuid``, a row for each host on which one of ``vm_uuids``
            holds something, and one without a VM for each of ``host_ids`` that the source knows.
    """
    _allocation_sources[name] = query
    _claim_sources[name] = claims


def allocation_sources() -> Mapping[str, str]:
    """Return the sources that higher apps offer, by name."""
    return dict(_allocation_sources)


def claim_source(name: str) -> str:
    """Return the query of who holds something where; empty for a source without claims."""
    return _claim_sources.get(name, "")


UnitCheck = Callable[[str, Collection[str], int], int]

_unit_checks: dict[str, UnitCheck] = {}


def add_unit_check(app_name: str, check: UnitCheck) -> None:
    """Register how to find amounts that a declared RAM unit does not divide.

    Args:
        app_name: The app; registering again replaces its check.
        check: Takes the name of a flavor group or ``*``, groups that ``*`` does not speak for, and
            bytes of the unit; returns how many amounts are no whole number of units.
    """
    _unit_checks[app_name] = check


def amounts_broken_by_unit(group_name: str, excepted: Collection[str], unit_bytes: int) -> int:
    """Return how many stored amounts would be no whole number of units (spec liquid, 12.2)."""
    return sum(check(group_name, excepted, unit_bytes) for check in _unit_checks.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ZonePosition:
    """From which state of the database something about a zone was computed.

    Attributes:
        zone: Availability zone.
        snapshot: Text of the ``pg_snapshot``.
    """

    zone: str
    snapshot: str


class CommitmentFigures(Protocol):
    """What capacity has to know of commitments."""

    def committed_slots(self, zone: str, unit_bytes: Mapping[str, int]) -> Mapping[str, int]:
        """Return committed memory by flavor group, in units of its smallest flavor.

        Args:
            zone: Availability zone.
            unit_bytes: Flavor group to the memory of its smallest flavor; others are left out.
        """

    def zones_changed_since(self, positions: Sequence[ZonePosition]) -> set[str]:
        """Return the zones whose commitments changed since their position."""


_commitment_figures: dict[str, CommitmentFigures] = {}


def add_commitment_figures(app_name: str, figures: CommitmentFigures) -> None:
    """Register who knows commitments; registering again replaces it."""
    _commitment_figures[app_name] = figures


def committed_slots(zone: str, unit_bytes: Mapping[str, int]) -> dict[str, int]:
    """Return committed memory of a zone by flavor group, in units of the given bytes."""
    slots: dict[str, int] = {}
    for figures in _commitment_figures.values():
        for group, count in figures.committed_slots(zone, unit_bytes).items():
            slots[group] = slots.get(group, 0) + count
    return slots


def zones_with_changed_commitments(positions: Sequence[ZonePosition]) -> set[str]:
    """Return the zones whose commitments changed since their position."""
    if not positions:
        return set()
    return {
        zone
        for figures in _commitment_figures.values()
        for zone in figures.zones_changed_since(positions)
    }


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


ReleaseListener = Callable[[Sequence[ReleasedReservation], datetime], None]

_release_listeners: dict[str, ReleaseListener] = {}


def add_release_listener(app_name: str, listener: ReleaseListener) -> None:
    """Register what an app does when reservations lose their host.

    The listener runs inside the releasing transaction, which holds host rooms; it may lock rows
    of its own app, not reservations.

    Args:
        app_name: The app; registering again replaces its listener.
        listener: Takes the reservations and the time.
    """
    _release_listeners[app_name] = listener


def reservations_released(released: Sequence[ReleasedReservation], *, now: datetime) -> None:
    """Tell higher apps that reservations lose their host in this transaction."""
    if released:
        for listener in _release_listeners.values():
            listener(released, now)


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


_commitment_trackers: dict[str, CommitmentTracker] = {}


def add_commitment_tracker(app_name: str, tracker: CommitmentTracker) -> None:
    """Register who tracks placements; registering again replaces it."""
    _commitment_trackers[app_name] = tracker


def commitment_tracker() -> CommitmentTracker | None:
    """Return who tracks placements; None when no app does."""
    return next(iter(_commitment_trackers.values()), None)


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
        """
        ...


_evacuation_guides: dict[str, EvacuationGuide] = {}


def add_evacuation_guide(app_name: str, guide: EvacuationGuide) -> None:
    """Register who plans evacuations; registering again replaces it."""
    _evacuation_guides[app_name] = guide


def planned_evacuation_host(vm_uuid: str) -> str:
    """Return the host that is planned for a VM of a dead host; empty when there is none."""
    for guide in _evacuation_guides.values():
        planned = guide.planned_host(vm_uuid)
        if planned:
            return planned
    return ""


def failover_room_used(reservation_ids: Collection[int]) -> None:
    """Tell that evacuated VMs took the room that these reservations held for them."""
    for guide in _evacuation_guides.values():
        guide.arrived(reservation_ids)
