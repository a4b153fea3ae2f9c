"""Taking in commitments as Limes lists them (spec commitments, 16.3-16.5; spec liquid, 15.4)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog
from django.db import connection, models
from django.db.models.fields import NOT_PROVIDED

from capacity.groups.group_settings import GroupSettings, settings_for_group
from capacity.groups.reading import load_group_definitions, load_group_settings
from capacity.groups.units import UnitError
from capacity.locks import zone_lock
from capacity.models import FlavorGroup
from commitments.domain.limes_intake import (
    SKIP_REASON_UNKNOWN_FLAVOR_GROUP,
    Converted,
    is_terminal,
    same_second,
)
from commitments.domain.service_info import resource_flags
from commitments.domain.statuses import CommitmentStatus
from commitments.models import Commitment, CommitmentEvent, Condition
from commitments.services.commitment_rows import (
    SPEC_FIELDS,
    TOPIC,
    next_generation,
    spec_record,
    summary_of,
)
from core.chunks import in_chunks
from hosts.region.staging import as_json, copy_rows
from journal.actors import Actor
from journal.models import Outbox

log = structlog.get_logger(__name__)

ORIGIN = "limes"
BATCH_ROWS = 1000
READ_UUIDS = 5000
REASON_TERMINAL = "terminal"
REASON_ZONE_MISMATCH = "zone_mismatch"
REASON_CHANGED_SINCE = "changed_since_fetch"
UPDATED_FIELDS = (
    *(name for name in SPEC_FIELDS if name != "allow_rejection"),
    "generation",
    "limes_id",
    "limes_record",
    "confirmed_at",
    "next_reconcile_at",
)
TIMES = ("start_time", "end_time", "confirm_by", "confirmed_at")
COMPARED_FIELDS = (
    "commitment_uuid",
    *(name for name in SPEC_FIELDS if name != "allow_rejection"),
    "limes_id",
    "limes_record",
    "confirmed_at",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRows:
    """Stored commitments at a moment.

    Generations tell what others changed exactly, without a clock; ``updated_at`` moves with every
    count of usage.

    Attributes:
        generations: Mapping uuid -> generation.
        last_event_id: Number of the newest event.
    """

    generations: Mapping[str, int]
    last_event_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Commitments to take in, and how.

    Attributes:
        with_ended: Keep ended commitments without a row as history; they hold nothing.
        seen: Rows as they were when reading from Limes began: those that others changed, made or
            removed since are left alone. None takes everything in.
    """

    actor: Actor
    request_id: str
    now: datetime
    with_ended: bool = False
    seen: SeenRows | None = None


@dataclass(slots=True, kw_only=True)
class IntakeResult:
    """What became of them.

    Attributes:
        created: New rows.
        updated: Rows that differed in what is asked for: changes of which we had not heard.
        described: Rows that were right, of which only Limes' description is new.
        unchanged: Rows that were right already.
        skipped: Triples of uuid, reason and detail of commitments left alone.
    """

    created: int = 0
    updated: int = 0
    described: int = 0
    unchanged: int = 0
    skipped: list[tuple[str, str, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Writes:
    created: list[Commitment] = field(default_factory=list)
    updated: list[Commitment] = field(default_factory=list)
    described: list[Commitment] = field(default_factory=list)
    before: dict[str, dict[str, Any] | None] = field(default_factory=dict)


def ram_units_of_known_groups() -> dict[str, int]:
    """Return the declared RAM unit in MiB of every known flavor group whose unit is valid.

    Raises:
        NotReady: flavor groups have not been extracted yet.
    """
    configured = load_group_settings()
    known: dict[str, int] = {}
    for name in load_group_definitions():
        try:
            known[name] = settings_for_group(configured, name).ram_unit_mib
        except UnitError:
            log.error("ram_unit_out_of_range", group=name)  # noqa: TRY400 - the group is the fact
    return known


def resources_decided_by_limes(groups: Collection[str]) -> frozenset[str]:
    """Return the resources of some groups whose commitments Limes decides without asking us.

    Source: spec liquid, 4.1 (``handlesCommitments``), 12.1.
    """
    configured = load_group_settings()
    return frozenset(
        name
        for group in groups
        for name, flags in resource_flags(group, settings_for_group(configured, group)).items()
        if not flags.handles_commitments
    )


def resources_of_retired_groups() -> frozenset[str]:
    """Return the resources of groups that are gone, whose commitments live on unchanged.

    Raises:
        NotReady: flavor groups have not been extracted yet.
    """
    known = load_group_definitions()
    retired = load_group_definitions(include_retired=True).keys() - known.keys()
    return frozenset(name for group in retired for name in resource_flags(group, GroupSettings()))


def take_in_commitments(
    commitments: Sequence[tuple[Converted, Mapping[str, Any]]], intake: Intake
) -> IntakeResult:
    """Upsert commitments that Limes listed. Runs in the caller's transaction.

    Takes the zone locks, then the rows in order of primary key. A row that does not differ is not
    written; one of which Limes only says more is written without an event. Ended commitments
    update their row and never make one, unless asked to. The zone of a row never changes.
    ``allow_rejection`` is kept. Capacity is held later, by the repair that ``next_reconcile_at``
    calls for.

    Args:
        commitments: Converted commitments, each with the record that Limes returned.
        intake: Who, when, and how.

    Source: spec commitments, 16.4, 16.5.
    """
    zone_lock({converted.state.zone for converted, _ in commitments})
    rows = _lock_rows([converted.state.commitment_uuid for converted, _ in commitments])
    result, writes = IntakeResult(), _Writes()
    touched = _touched_since(commitments, rows, intake.seen)
    gone = _groups_gone([one for one, _ in commitments if one.state.commitment_uuid not in rows])
    for converted, record in commitments:
        row = rows.get(converted.state.commitment_uuid)
        refusal = _refusal(converted, row, intake, touched)
        if refusal is None and row is None and converted.state.flavor_group_name in gone:
            refusal = SKIP_REASON_UNKNOWN_FLAVOR_GROUP, "its flavor group went meanwhile"
        if refusal is not None:
            result.skipped.append((converted.state.commitment_uuid, *refusal))
        elif row is None:
            writes.created.append(_new_row(converted, record, intake))
        elif not _change_row(row, converted, record, intake, writes):
            result.unchanged += 1
    copy_new(writes.created)
    _update([*writes.updated, *writes.described])
    _record(writes, intake)
    result.created, result.updated = len(writes.created), len(writes.updated)
    result.described = len(writes.described)
    return result


def _groups_gone(new: Sequence[Converted]) -> set[str]:
    """Return the groups of new commitments that went after their commitments were read.

    None goes while the lock of a zone is held.
    """
    names = {one.state.flavor_group_name for one in new}
    if not names:
        return names
    stored = FlavorGroup.objects.filter(name__in=names, is_retired=False)
    return names - set(stored.values_list("name", flat=True))


def _lock_rows(uuids: Sequence[str]) -> dict[str, Commitment]:
    rows: dict[str, Commitment] = {}
    pks: list[int] = []
    for some in in_chunks(uuids, READ_UUIDS):
        chosen = Commitment.objects.filter(commitment_uuid__in=some)
        pks += chosen.values_list("pk", flat=True)
    pks.sort()
    for part in in_chunks(pks, READ_UUIDS):
        locked = (
            Commitment.objects.filter(pk__in=part)
            .order_by("pk")
            .select_for_update(of=("self",), no_key=True)
        )
        rows |= {row.commitment_uuid: row for row in locked}
    return rows


def _touched_since(
    commitments: Sequence[tuple[Converted, Mapping[str, Any]]],
    rows: Mapping[str, Commitment],
    seen: SeenRows | None,
) -> frozenset[str]:
    """Return which of the commitments others made, changed or removed since they were seen."""
    if seen is None:
        return frozenset()
    uuids = [converted.state.commitment_uuid for converted, _ in commitments]
    touched = {
        uuid
        for uuid in uuids
        if seen.generations.get(uuid, 0) != (rows[uuid].generation if uuid in rows else 0)
    }
    unheard = [uuid for uuid in uuids if uuid not in rows and uuid not in touched]
    if unheard:  # made and removed again in between
        touched |= set(
            CommitmentEvent.objects.filter(
                commitment_uuid__in=unheard, pk__gt=seen.last_event_id
            ).values_list("commitment_uuid", flat=True)
        )
    return frozenset(touched)


def _refusal(
    converted: Converted, row: Commitment | None, intake: Intake, touched: frozenset[str]
) -> tuple[str, str] | None:
    state = converted.state
    if state.commitment_uuid in touched:
        return REASON_CHANGED_SINCE, "its row changed after the fetch began"
    if row is None:
        if is_terminal(state, intake.now) and not intake.with_ended:
            status = state.status.value if state.status else ""
            ended = f", ended {state.end_time:%Y-%m-%d}" if state.end_time else ""
            return REASON_TERMINAL, f"{status}{ended}; ended commitments make no row"
        return None
    if row.zone != state.zone:
        log.error(
            "availability_zone_mismatch",
            commitment=row.commitment_uuid,
            stored=row.zone,
            limes=state.zone,
        )
        return REASON_ZONE_MISMATCH, f"stored in {row.zone}, Limes says {state.zone}"
    return None


def _desired(converted: Converted) -> dict[str, Any]:
    state = converted.state
    return {
        "flavor_group_name": state.flavor_group_name,
        "resource_type": state.resource_type.value,
        "requested_amount": state.requested_amount,
        "zone": state.zone,
        "project_id": state.project_id,
        "domain_id": state.domain_id,
        "start_time": state.start_time,
        "end_time": state.end_time,
        "confirm_by": _moment(converted.confirm_by),
        "state": (state.status or CommitmentStatus.EXPIRED).value,
    }


def _new_row(converted: Converted, record: Mapping[str, Any], intake: Intake) -> Commitment:
    row = Commitment(
        commitment_uuid=converted.state.commitment_uuid,
        origin=ORIGIN,
        limes_id=converted.limes_id,
        limes_record=record,
        first_listed_at=intake.now,
        confirmed_at=_moment(converted.confirmed_at),
        creator_request_id=intake.request_id,
        **_desired(converted),
    )
    if is_terminal(converted.state, intake.now):
        is_superseded = row.state == CommitmentStatus.SUPERSEDED
        reason = Condition.SUPERSEDED if is_superseded else Condition.EXPIRED
        _set_condition(row, reason, "commitment is no longer active", intake.now)
    elif row.state == CommitmentStatus.PLANNED:
        _set_condition(row, Condition.PLANNED, "commitment is not yet active", intake.now)
        row.next_reconcile_at = row.end_time
    else:
        row.next_reconcile_at = intake.now
    return row


def _set_condition(row: Commitment, reason: Condition, message: str, now: datetime) -> None:
    row.ready_status, row.ready_reason, row.ready_message = False, reason.value, message
    row.ready_observed_generation, row.ready_changed_at = row.generation, now
    row.status_summary = summary_of(row, now)


def _change_row(
    row: Commitment,
    converted: Converted,
    record: Mapping[str, Any],
    intake: Intake,
    writes: _Writes,
) -> bool:
    desired, observed = _wanted(row, converted, record)
    if not _differs(row, desired, observed):
        return False
    generation = next_generation(row, desired)
    if generation == row.generation:
        writes.described.append(row)
    else:
        writes.before[row.commitment_uuid] = spec_record(row)
        writes.updated.append(row)
        row.generation, row.next_reconcile_at = generation, intake.now
    for name, entry in (*desired.items(), *observed.items()):
        setattr(row, name, entry)
    return True


def _wanted(
    row: Any,  # Any: a commitment, or its compared columns
    converted: Converted,
    record: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the desired and the observed columns of a row that exists.

    A time that Limes lists as the same second stays as precise as it is known. A known start stays,
    and what is not live needs none: Limes lists no start, only times that one can be taken from.

    Source: spec liquid, 15.2 (times in whole seconds), 15.3.
    """
    desired, observed = _desired(converted), _observed(converted, record)
    for columns in (desired, observed):
        for name in TIMES:
            if name in columns and same_second(getattr(row, name), columns[name]):
                columns[name] = getattr(row, name)
    status = converted.state.status
    if row.start_time is not None or status is None or not status.is_live:
        desired["start_time"] = row.start_time
    return desired, observed


def _observed(converted: Converted, record: Mapping[str, Any]) -> dict[str, Any]:
    observed: dict[str, Any] = {"limes_record": dict(record)}
    if converted.limes_id is not None:
        observed["limes_id"] = converted.limes_id
    if converted.confirmed_at is not None:
        observed["confirmed_at"] = _moment(converted.confirmed_at)
    return observed


def _differs(row: object, desired: Mapping[str, Any], observed: Mapping[str, Any]) -> bool:
    return any(getattr(row, name) != entry for name, entry in desired.items()) or any(
        getattr(row, name) != entry for name, entry in observed.items()
    )


def changed_commitments(
    commitments: Sequence[tuple[Converted, Mapping[str, Any]]],
) -> list[tuple[Converted, Mapping[str, Any]]]:
    """Return those commitments that :func:`take_in_commitments` would not find as they are.

    Reads without locks, so that an unchanged set costs one scan and disturbs nobody. Rows are
    compared as they come, so that memory holds one copy of the set.

    Args:
        commitments: Converted commitments, each with the record that Limes returned.
    """
    left = {converted.state.commitment_uuid: (converted, raw) for converted, raw in commitments}
    rows = Commitment.objects.order_by().values_list(*COMPARED_FIELDS, named=True)
    for row in rows.iterator(chunk_size=READ_UUIDS):
        listed = left.get(row.commitment_uuid)
        if listed is not None and not _differs(row, *_wanted(row, *listed)):
            del left[row.commitment_uuid]
    return list(left.values())


def _update(rows: Sequence[Commitment]) -> None:
    Commitment.objects.bulk_update(rows, UPDATED_FIELDS, batch_size=BATCH_ROWS)


def _record(writes: _Writes, intake: Intake) -> None:
    """Write one event and one outbox row for each commitment that changed."""
    changed = [
        *(("commitment_synced_new", row) for row in writes.created),
        *(("commitment_synced", row) for row in writes.updated),
    ]
    records = {row.commitment_uuid: spec_record(row) for _, row in changed}
    events = [
        CommitmentEvent(
            commitment_uuid=row.commitment_uuid,
            actor=intake.actor.name,
            request_id=intake.request_id,
            action=action,
            before=writes.before.get(row.commitment_uuid),
            after=records[row.commitment_uuid],
            reason="as listed by Limes",
        )
        for action, row in changed
    ]
    tell(events)


def tell(events: Sequence[CommitmentEvent]) -> None:
    """Write events, and for each what the outside hears of it. Runs in the caller's transaction."""
    copy_new(events)
    copy_new(
        [
            Outbox(
                topic=TOPIC,
                object_type="Commitment",
                object_id=event.commitment_uuid,
                payload=event.after or {},
            )
            for event in events
        ]
    )


def copy_new(rows: Sequence[models.Model]) -> None:
    """Insert rows of one model with COPY; their keys stay unknown.

    Columns whose default is the database's are left to it.

    Raises:
        DatabaseError: as an insert would.
    """
    if not rows:
        return
    fields = [
        one
        for one in rows[0]._meta.concrete_fields  # noqa: SLF001 - the documented way to fields
        if not one.primary_key and (one.db_default is NOT_PROVIDED or one.has_default())
    ]
    with connection.wrap_database_errors:
        copy_rows(
            rows[0]._meta.db_table,  # noqa: SLF001 - the documented way to a table's name
            [one.column for one in fields],
            (tuple(_copied(one, row) for one in fields) for row in rows),
        )


def _copied(column: models.Field[Any, Any], row: models.Model) -> object:
    """Return a new row's value of a column, as COPY takes it."""
    found = column.pre_save(row, add=True)
    is_json = isinstance(column, models.JSONField) and found is not None
    return as_json(found) if is_json else found


def _moment(unix_seconds: int | None) -> datetime | None:
    return None if unix_seconds is None else datetime.fromtimestamp(unix_seconds, tz=UTC)


def referenced_groups(names: Iterable[str]) -> set[str]:
    """Return those of some flavor groups that commitments without an end state refer to."""
    ended = (CommitmentStatus.SUPERSEDED.value, CommitmentStatus.EXPIRED.value)
    return set(
        Commitment.objects.filter(flavor_group_name__in=list(names))
        .exclude(state__in=ended)
        .order_by()
        .values_list("flavor_group_name", flat=True)
        .distinct()
    )
