"""What freeing hosts of a zone would do, and whether its facts are believed (commitments, 25)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings

from commitments.domain.compaction import HostRelease, plan_compaction
from commitments.models import SlotCheck, SyncOutcome
from commitments.selectors.compaction import HostUse, ZoneToCompact, zone_to_compact
from commitments.services.import_runs import last_import
from journal.clock import is_ahead
from scheduling.resources import ResourceVector

LOOKS_MISSED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMove:
    """One slot that changes its host.

    Attributes:
        slot_id: The slot.
        slot_index: Its number in its commitment.
        commitment_uuid: Its commitment.
        size: What it takes.
        host_id: Where it goes.
        host_name: Likewise.
    """

    slot_id: int
    slot_index: int
    commitment_uuid: str
    size: ResourceVector
    host_id: int
    host_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A host that becomes free.

    Attributes:
        host_name: Likewise.
        size: What it has.
        moves: Where its slots go.
    """

    host_id: int
    host_name: str
    size: ResourceVector
    moves: tuple[SlotMove, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCompaction:
    """What a run in a zone would do.

    Attributes:
        refusal: Why nothing may move now; empty when it may.
        releases: Hosts that would become free, in order.
        uses: Hosts of the zone by what they hold now.
        no_room: Hosts with empty slots alone that do not all fit elsewhere.
        not_tried: Such hosts for which the limit has no moves left.
    """

    zone: str
    refusal: str = ""
    releases: tuple[Release, ...] = ()
    uses: Mapping[HostUse, int] = field(default_factory=dict)
    no_room: int = 0
    not_tried: int = 0

    @property
    def moves(self) -> int:
        """How many slots would move."""
        return sum(len(release.moves) for release in self.releases)


def plan_zone(zone: str, *, now: datetime, most_moves: int | None = None) -> PlannedCompaction:
    """Return what a run would do; nothing is locked or written.

    Args:
        most_moves: Most slots to move; the setting's when left out.

    Raises:
        NotReady: flavor groups are not known yet.
    """
    limit = settings.HEADROOM.slots.compaction_most_moves if most_moves is None else most_moves
    known = zone_to_compact(zone, now=now)
    found = plan_compaction(known.state, most_moves=limit)
    return PlannedCompaction(
        zone=zone,
        refusal=refusal_of_facts(zone, now),
        releases=tuple(_named(known, release) for release in found.releases),
        uses=known.uses,
        no_room=found.no_room,
        not_tried=found.not_tried,
    )


def refusal_of_facts(zone: str, now: datetime) -> str:
    """Return why no slot of a zone may move to free hosts; empty when it may.

    That a slot is empty is known from looks at VMs: when these stopped, or their lists are not
    believed, nothing moves. Moving can always wait.
    """
    check = SlotCheck.objects.filter(zone=zone).first()
    if check is None or check.fully_checked_at is None or is_ahead(check.fully_checked_at, now):
        return "nobody has looked at every slot of the zone yet"
    age = now - check.fully_checked_at
    if age > timedelta(seconds=LOOKS_MISSED * settings.HEADROOM.slots.full_check_seconds):
        minutes = int(age.total_seconds() // 60)
        return f"the last look at every slot is {minutes} minutes old"
    if check.is_refused:
        return f"the VM list is not believed: {check.message}"
    if check.host_refusal:
        return f"the host list is not believed: {check.host_refusal}"
    imported = last_import()
    if imported is not None and imported.outcome == SyncOutcome.GUARDED:
        return f"the last region import was not believed: {imported.message}"
    return ""


def _named(known: ZoneToCompact, release: HostRelease) -> Release:
    """Return a release in terms of rows."""
    table, state = known.table, known.state
    moves = []
    for number, host in release.moves:
        slot, row = known.slots[number], int(known.rows[host])
        moves.append(
            SlotMove(
                slot_id=slot.slot_id,
                slot_index=slot.slot_index,
                commitment_uuid=slot.commitment_uuid,
                size=ResourceVector(memory_bytes=slot.memory_bytes, vcpus=slot.vcpus),
                host_id=int(table.host_ids[row]),
                host_name=table.names[row],
            )
        )
    row = int(known.rows[release.host])
    return Release(
        host_id=int(table.host_ids[row]),
        host_name=table.names[row],
        size=ResourceVector(
            memory_bytes=int(state.total_memory_bytes[release.host]),
            vcpus=int(state.total_vcpus[release.host]),
        ),
        moves=tuple(moves),
    )
