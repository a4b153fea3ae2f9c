"""Why a commitment is in its state, in plain sentences for operators.

Pure text from a row's columns; what each state does is spec liquid, 11.4 and spec commitments, 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from commitments.domain.durations import Term, parse_term
from commitments.domain.statuses import LIVE_STATUSES, CommitmentStatus, ResourceType
from commitments.models import Commitment, Condition
from core.text import NOTHING, count_text, memory_text, moment_text, time_text

TONE_OF_CONDITION = {
    Condition.ACCEPTED: "ok",
    Condition.PLANNED: "idle",
    Condition.RESERVING: "warn",
    Condition.REJECTED: "bad",
    Condition.SUPERSEDED: "idle",
    Condition.EXPIRED: "idle",
}
WORDS_OF_FIELD = {
    "amount": "amount",
    "availabilityZone": "zone",
    "flavorGroupName": "flavor group",
    "resourceType": "resource",
    "projectID": "project",
    "domainID": "domain",
    "startTime": "start",
    "endTime": "end",
    "allowRejection": "may be rejected",
    "commitmentUUID": "uuid",
    "schedulingDomain": "scheduling domain",
}


TERM_STARTS = (
    ("confirm_by", "from when it is wanted"),
    ("confirmed_at", "from its confirmation"),
    ("created_at", "from its creation"),
)
IDENTITY_WORDS = frozenset({"uuid", "scheduling domain", "project", "domain"})


def amount_text(resource_type: str, amount: int | None) -> str:
    """Write a committed amount with its unit.

    Args:
        resource_type: ``memory`` or ``cores``.
        amount: Bytes, or vCPUs.
    """
    if resource_type == ResourceType.MEMORY:
        return memory_text(amount)
    return count_text(amount, "vCPUs")


def term_text(record: Mapping[str, Any] | None, end_time: datetime | None) -> str:
    """Say what term Limes lists for a commitment, and from when it counts to its end.

    Limes keeps the end itself, so the term decides nothing here: one that is not understood is
    shown as it came.

    Args:
        record: The commitment as Limes listed it last; None if it never did.
        end_time: End of the commitment; None for none.

    Source: spec liquid, 15.2.
    """
    listed = (record or {}).get("duration")
    if not listed:
        return ""
    try:
        term = parse_term(str(listed))
    except ValueError:
        return f"{str(listed)[:80]!r}, which is no duration"
    for key, words in TERM_STARTS:
        if end_time is not None and _ends_then(term, (record or {}).get(key), end_time):
            return f"{term} {words}"
    return str(term)


def _ends_then(term: Term, start_seconds: object, end_time: datetime) -> bool:
    if not isinstance(start_seconds, int) or not start_seconds:
        return False
    try:
        return term.after(datetime.fromtimestamp(start_seconds, tz=UTC)) == end_time
    except (OverflowError, ValueError, OSError):  # not a time
        return False


def condition_tone(row: Commitment) -> str:
    """Return how a commitment's condition is to be shown: ``ok``, ``warn``, ``bad``, ``idle``."""
    return (
        TONE_OF_CONDITION.get(Condition(row.ready_reason), "idle") if row.ready_reason else "idle"
    )


def commitment_name(row: Commitment) -> str:
    """Return what people call a commitment, such as ``48 GiB of general_v1 in az-a``."""
    amount = amount_text(row.resource_type, row.requested_amount)
    return f"{amount} of {row.flavor_group_name} in {row.zone}"


def condition_title(row: Commitment) -> str:
    """Return the condition in one or two words."""
    return row.get_ready_reason_display().capitalize() if row.ready_reason else "Not decided yet"


def is_ended(row: Commitment, now: datetime) -> bool:
    """Return whether the term is over."""
    return row.end_time is not None and row.end_time <= now


def why_text(row: Commitment, now: datetime) -> str:
    """Say what a commitment's state means and what would have to change.

    Args:
        now: Time of the page.

    Returns:
        One to three sentences.
    """
    if row.state not in LIVE_STATUSES or is_ended(row, now):
        return _inactive_text(row, now)
    amount = amount_text(row.resource_type, row.requested_amount)
    place = f"{row.flavor_group_name} in {row.zone}"
    if row.ready_reason == Condition.ACCEPTED:
        return f"{amount} of {place} is promised and held." + _end_text(row, now)
    if row.ready_reason == Condition.REJECTED:
        held = "nothing is held for it"
        if row.accepted_amount:
            kept = amount_text(row.resource_type, row.accepted_amount)
            held = f"it goes on holding the {kept} that were accepted before"
        return (
            f"{amount} of {place} was refused and {held}. It is not tried again "
            "by itself: it takes free room there and a new request from Limes, or a smaller amount."
        )
    if row.ready_reason == Condition.RESERVING:
        return f"Not all of {amount} of {place} could be held yet." + _retry_text(row, now)
    return f"{amount} of {place} waits for its first decision." + _retry_text(row, now)


def _inactive_text(row: Commitment, now: datetime) -> str:
    if row.state == CommitmentStatus.PLANNED and not is_ended(row, now):
        starts = row.confirm_by or row.start_time
        when = f" It is to start at {time_text(starts, now)}." if starts else ""
        return "Limes has this commitment planned: nothing is held until Limes moves it on." + when
    if row.state == CommitmentStatus.SUPERSEDED:
        return "Another commitment took its place. Whatever it held has been released."
    ended = f" at {time_text(row.end_time, now)}" if row.end_time else ""
    return f"Its term ended{ended}. Whatever it held has been released."


def _end_text(row: Commitment, now: datetime) -> str:
    if row.end_time is None:
        return " It has no end."
    return f" It ends at {time_text(row.end_time, now)}."


def _retry_text(row: Commitment, now: datetime) -> str:
    if row.next_reconcile_at is None:
        return " No retry is scheduled."
    if row.next_reconcile_at <= now:
        return " The next try is due now: a worker takes it within seconds."
    return (
        f" The next try is at {time_text(row.next_reconcile_at, now)}; it succeeds when enough "
        "hosts of the zone have room for the missing slots."
    )


def differences(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[tuple[str, str, str], ...]:
    """Return what an event changed: words of the field, text before, text after.

    Amounts carry their unit. A new object shows its fields with nothing before, a deleted one with
    nothing after.
    """
    old, new = before or {}, after or {}
    changed = []
    for name in (*new, *(name for name in old if name not in new)):
        if old.get(name) == new.get(name):
            continue
        words = WORDS_OF_FIELD.get(name, name.replace("_", " "))
        changed.append((words, _field_text(name, old), _field_text(name, new)))
    return tuple(changed)


def change_lines(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[str, ...]:
    """Return an event's changes as lines; a new or deleted object takes a single one."""
    changed = differences(before, after)
    if before and after:
        return tuple(f"{words}: {old} → {new}" for words, old, new in changed)
    shown = [
        (words, new if after else old) for words, old, new in changed if words not in IDENTITY_WORDS
    ]
    line = ", ".join(f"{words} {text}" for words, text in shown if text != NOTHING)
    return (line,) if line else ()


def _field_text(name: str, fields: Mapping[str, Any]) -> str:
    content = fields.get(name)
    if content in (None, ""):
        return NOTHING
    if name in {"amount", "requested_amount"} and isinstance(content, int):
        kind = fields.get("resourceType") or fields.get("resource_type") or ResourceType.MEMORY
        return amount_text(str(kind), content)
    if name.endswith("_bytes") and isinstance(content, int):
        return memory_text(content)
    if name in {"startTime", "endTime"}:
        return moment_text(datetime.fromisoformat(str(content)))
    if isinstance(content, bool):
        return "yes" if content else "no"
    return str(content)
