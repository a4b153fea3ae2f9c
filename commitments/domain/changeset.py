"""Change requests: contradictions, moves and net demand (spec liquid, 4.5, 11.3, 11.7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from commitments.domain.statuses import CommitmentStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentChange:
    """One commitment in a change request.

    Attributes:
        uuid: Commitment uuid; twice in one request only for a move or a conversion.
        old_status: Status before; None if the commitment appears here.
        new_status: Status after; None if the commitment disappears here.
        amount_units: Amount in declared units, not negative.
        expires_at: End of the commitment, timezone-aware; None only in tests and imports.
        confirm_by: Wanted or actual start, timezone-aware; None means at once.
        old_expires_at: Previous end, only set when the end is being changed.
    """

    uuid: str
    old_status: CommitmentStatus | None
    new_status: CommitmentStatus | None
    amount_units: int
    expires_at: datetime | None = None
    confirm_by: datetime | None = None
    old_expires_at: datetime | None = None

    @property
    def is_arrival(self) -> bool:
        """Whether the commitment appears in this project and resource."""
        return self.old_status is None

    @property
    def is_departure(self) -> bool:
        """Whether the commitment disappears from this project and resource."""
        return self.new_status is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChangeset:
    """The changes of one project and resource.

    The totals count all commitments of a status, also those that the request does not touch.

    Attributes:
        total_confirmed_before: Confirmed amount before, declared units.
        total_confirmed_after: Confirmed amount after, declared units.
        total_guaranteed_before: Guaranteed amount before, declared units.
        total_guaranteed_after: Guaranteed amount after, declared units.
        commitments: The changes in the order of the request.
    """

    total_confirmed_before: int = 0
    total_confirmed_after: int = 0
    total_guaranteed_before: int = 0
    total_guaranteed_after: int = 0
    commitments: tuple[CommitmentChange, ...] = ()

    @property
    def net_units(self) -> int:
        """Growth of what is promised, in declared units; negative if it shrinks."""
        after = self.total_confirmed_after + self.total_guaranteed_after
        return after - self.total_confirmed_before - self.total_guaranteed_before


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectChanges:
    """The changes of one project.

    Attributes:
        domain_id: Keystone domain of the project, empty if Limes sent no metadata.
        domain_name: Its name, empty likewise.
        by_resource: Mapping resource name -> changeset.
    """

    domain_id: str = ""
    domain_name: str = ""
    by_resource: Mapping[str, ResourceChangeset] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequest:
    """A request to change commitments in one zone, as a whole or not at all.

    Attributes:
        zone: Availability zone of everything in the request.
        info_version: Version of our ServiceInfo that Limes used.
        is_dry_run: Whether the request only asks.
        by_project: Mapping project id -> changes.
    """

    zone: str
    info_version: int = 0
    is_dry_run: bool = False
    by_project: Mapping[str, ProjectChanges] = field(default_factory=dict)

    @property
    def domain_names(self) -> Mapping[str, str]:
        """Names of the domains that the request tells, by id."""
        return {
            project.domain_id: project.domain_name
            for project in self.by_project.values()
            if project.domain_id and project.domain_name
        }

    def places(self) -> Iterator[tuple[str, str, tuple[ChangeEntry, ...]]]:
        """Yield project, resource and its changes in processing order: projects, then resources."""
        for project_id in sorted(self.by_project):
            project = self.by_project[project_id]
            for resource_name in sorted(project.by_resource):
                yield (
                    project_id,
                    resource_name,
                    tuple(
                        ChangeEntry(
                            project_id=project_id,
                            domain_id=project.domain_id,
                            resource_name=resource_name,
                            change=change,
                            index=index,
                        )
                        for index, change in enumerate(
                            project.by_resource[resource_name].commitments
                        )
                    ),
                )

    def entries(self) -> Iterator[ChangeEntry]:
        """Yield every change: projects sorted, resources sorted, then the order of the request."""
        for _, _, entries in self.places():
            yield from entries


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeEntry:
    """One change with the place where it stands in the request.

    Attributes:
        project_id: Project it stands under.
        domain_id: Domain of that project, empty if unknown.
        resource_name: Resource it stands under.
        change: The change.
        index: Its place in the list of that resource, from 0.
    """

    project_id: str
    domain_id: str
    resource_name: str
    change: CommitmentChange
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentMove:
    """A commitment that leaves one project or resource and arrives in another.

    Attributes:
        departure: The entry that takes it away (old status set, new status None).
        arrival: The entry that brings it (old status None, new status set).
    """

    departure: ChangeEntry
    arrival: ChangeEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedChanges:
    """A request without contradictions, with both halves of each move put together.

    Attributes:
        single: Changes that stand alone, in processing order.
        moves: Moves and conversions, in processing order of their arrival.
    """

    single: tuple[ChangeEntry, ...]
    moves: tuple[CommitmentMove, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Why the changes of a request contradict each other.

    Attributes:
        message: What is wrong, for a person.
        entry: The change that says it, the first of several.
        field: Which of its fields.
    """

    message: str
    entry: ChangeEntry
    field: str


def find_contradictions(request: ChangeRequest) -> tuple[Contradiction, ...]:
    """Return what makes the changes of a request contradict each other, in processing order.

    Source: spec liquid, 11.3.
    """
    problems = []
    for entry in request.entries():
        change = entry.change
        wrong = ""
        if change.is_arrival and change.is_departure:
            wrong = "old and new status are both null"
        elif change.is_arrival and change.new_status is not None and change.new_status.is_final:
            wrong = f"appears with final status {change.new_status.value}"
        if wrong:
            message = f"commitment {change.uuid}: {wrong}"
            problems.append(Contradiction(message=message, entry=entry, field="newStatus"))
    for uuid, entries in _entries_by_uuid(request).items():
        if len(entries) > 1 and _as_move(entries) is None:
            message = f"commitment {uuid}: occurs {len(entries)} times and is not one move"
            problems.append(Contradiction(message=message, entry=entries[0], field="uuid"))
    return tuple(problems)


def detect_moves(request: ChangeRequest) -> ResolvedChanges:
    """Put the two halves of every move together and leave the other changes as they are.

    The result depends on what the entries say, never on which project sorts first.

    Args:
        request: A request without contradictions (``find_contradictions`` returns nothing).

    Raises:
        ValueError: A uuid is repeated in a way that is not a move.

    Source: spec liquid, 11.3.
    """
    single = []
    moves = []
    by_uuid = _entries_by_uuid(request)
    for entry in request.entries():
        entries = by_uuid[entry.change.uuid]
        if len(entries) == 1:
            single.append(entry)
            continue
        move = _as_move(entries)
        if move is None:
            raise ValueError(f"commitment {entry.change.uuid} is repeated and is not one move")
        if entry == move.arrival:
            moves.append(move)
    return ResolvedChanges(single=tuple(single), moves=tuple(moves))


def net_demand(request: ChangeRequest) -> tuple[tuple[str, int], ...]:
    """Return how much each resource grows over all projects, for dry runs.

    Amounts of single commitments play no role, only the totals do.

    Returns:
        Pairs of resource name and declared units, all positive, sorted by name.

    Source: spec liquid, 11.7.
    """
    net: defaultdict[str, int] = defaultdict(int)
    for project in request.by_project.values():
        for resource_name, changeset in project.by_resource.items():
            net[resource_name] += changeset.net_units
    return tuple((name, net[name]) for name in sorted(net) if net[name] > 0)


def _entries_by_uuid(request: ChangeRequest) -> dict[str, list[ChangeEntry]]:
    by_uuid: defaultdict[str, list[ChangeEntry]] = defaultdict(list)
    for entry in request.entries():
        by_uuid[entry.change.uuid].append(entry)
    return by_uuid


def _as_move(entries: list[ChangeEntry]) -> CommitmentMove | None:
    departures = [e for e in entries if e.change.is_departure and not e.change.is_arrival]
    arrivals = [e for e in entries if e.change.is_arrival and not e.change.is_departure]
    if len(entries) != 2 or len(departures) != 1 or len(arrivals) != 1:  # noqa: PLR2004
        return None
    departure, arrival = departures[0], arrivals[0]
    same_project = departure.project_id == arrival.project_id
    if same_project and departure.resource_name == arrival.resource_name:
        return None
    return CommitmentMove(departure=departure, arrival=arrival)
