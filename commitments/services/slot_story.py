"""Telling the stories of commitments and the world what became of their slots (commitments, 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from capacity.models import Reservation
from commitments.models import Commitment, CommitmentEvent
from journal.actors import Actor
from journal.services import Change, record_changes

TOPIC = "reservations"
REVOKED = "slots_revoked"
LINES_TOLD = 20


@dataclass(slots=True, kw_only=True)
class SlotNews:
    """What happened to one slot, in the order in which it happened."""

    slot: Reservation
    lines: list[str] = field(default_factory=list)


def record_slot_news(
    news: Sequence[SlotNews],
    *,
    actor: Actor,
    request_id: str,
    action: str = "slot_vms_changed",
) -> None:
    """Write one event per commitment, and one audit entry and outbox row per slot.

    Args:
        news: What happened, one entry per slot.
        actor: Who found it.
        action: What kind of thing happened.
    """
    if not news:
        return
    ids = {one.slot.commitment_id for one in news}
    uuids = dict(Commitment.objects.filter(pk__in=ids).values_list("pk", "commitment_uuid"))
    told: dict[str, list[str]] = {}
    for one in sorted(news, key=_by_commitment_and_index):
        lines = told.setdefault(uuids[one.slot.commitment_id or 0], [])
        lines.extend(f"slot {one.slot.slot_index}: {line}" for line in one.lines)
    CommitmentEvent.objects.bulk_create(
        CommitmentEvent(
            commitment_uuid=uuid,
            actor=actor.name,
            request_id=request_id,
            action=action,
            reason=_reason(lines),
        )
        for uuid, lines in told.items()
    )
    record_changes(
        (
            Change(
                action=action,
                object_type="Reservation",
                object_id=str(one.slot.uuid),
                after={"commitment": uuids[one.slot.commitment_id or 0]},
                reason=_reason(one.lines),
                topic=TOPIC,
            )
            for one in news
        ),
        actor=actor,
        request_id=request_id,
    )


def _by_commitment_and_index(news: SlotNews) -> tuple[int, int]:
    return news.slot.commitment_id or 0, news.slot.slot_index or 0


def _reason(lines: Sequence[str]) -> str:
    told = "; ".join(lines[:LINES_TOLD])
    more = len(lines) - LINES_TOLD
    return f"{told}; and {more} more" if more > 0 else told
