"""What a group's page says of when its room is used up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from capacity.figures.runway import HORIZON, LEAST_DAYS, Change, NotKnown, Runway, runway
from capacity.models import CapacityHistory, GroupCapacity
from core.text import memory_short, plural

USED = ("covered", "payg", "reserved_unused")


def runway_sentences(
    row: GroupCapacity,
    rows: Sequence[CapacityHistory],
    *,
    changes: Sequence[Change] | None,
    now: datetime,
) -> tuple[str, ...]:
    """Return when what the group has for itself is used up, and what that is made of.

    Args:
        row: What is left now.
        rows: History of the group in the zone, in the order of time.
        changes: What comes back or is taken at a known time, in bytes; None where the reader may
            not see commitments.
    """
    used = [(one.at, sum(getattr(one, f"{name}_memory_bytes") for name in USED)) for one in rows]
    left = row.exclusively_free_memory_bytes
    found = runway(used, left=left, changes=changes or (), now=now)
    known = _known(changes, now)
    if left <= 0:
        return ("Nothing is free for this group now.", *known)
    if isinstance(found, NotKnown):
        days = plural(found.days_known, "day")
        return (
            f"When it is used up is not known: {days} of history, {LEAST_DAYS} are needed.",
            *known,
        )
    return (_sentence(found), _pace(found), *known)


def _sentence(found: Runway) -> str:
    if found.earliest is None:
        return "What is free for this group lasts longer than a year."
    until = f"{found.latest:%Y-%m-%d}" if found.latest else "more than a year from now"
    if found.likely is None:
        return (
            "What is free for this group likely lasts longer than a year; on the fastest days' "
            f"growth until {found.earliest:%Y-%m-%d}."
        )
    return (
        f"What is free for this group is likely used up on {found.likely:%Y-%m-%d} "
        f"(between {found.earliest:%Y-%m-%d} and {until})."
    )


def _pace(found: Runway) -> str:
    words = "grows" if found.growth_per_day >= 0 else "falls"
    amount = memory_short(abs(found.growth_per_day))
    return f"Use {words} by {amount} a day, the median of {plural(found.days_known, 'day')}."


def _known(changes: Sequence[Change] | None, now: datetime) -> tuple[str, ...]:
    if changes is None:
        return ("Ends and starts of commitments are left out, which you may not see.",)
    counted = [amount for at, amount in changes if at <= now + HORIZON]
    back = sum(amount for amount in counted if amount > 0)
    taken = -sum(amount for amount in counted if amount < 0)
    parts = [
        f"{memory_short(back)} come back when commitments end" if back else "",
        f"{memory_short(taken)} are taken by planned commitments" if taken else "",
    ]
    said = " and ".join(part for part in parts if part)
    return (f"Counted, within a year: {said}.",) if said else ()
