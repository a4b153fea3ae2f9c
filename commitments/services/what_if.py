"""What if: loading the region, editing it in memory, planning; nothing is written or locked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from commitments.domain.admission import CommitmentTarget
from commitments.domain.changeset import ChangeRequest, find_contradictions
from commitments.domain.timeline import HostChange, HostEdit
from commitments.domain.what_if import RegionEdit, WhatIfAnswer, what_if
from commitments.models import Commitment
from commitments.selectors.timeline import added_hosts, displaced_by, known_timeline
from commitments.services.admission import StoredSlots, read_slots
from commitments.services.advice import advice_snapshot, unit_amounts
from commitments.services.commitment_rows import WantedCommitment, make_target
from commitments.services.resolve import (
    StructuralProblem,
    check_retired_groups,
    field_of,
    resolve_changes,
)
from hosts.models import Host
from journal.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedHosts:
    """New hosts like an existing one."""

    like: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfQuestion:
    """What an operator asks.

    Attributes:
        batch: The change request in question.
        at: When it is asked for; None is now.
        hosts_added: New hosts.
        hosts_drained: Names of hosts that are emptied.
        hosts_failed: Names of hosts that die.
        added: What others commit to before.
        expired: Uuids of commitments that are over.
    """

    batch: ChangeRequest
    at: datetime | None = None
    hosts_added: tuple[AddedHosts, ...] = ()
    hosts_drained: tuple[str, ...] = ()
    hosts_failed: tuple[str, ...] = ()
    added: ChangeRequest | None = None
    expired: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    rows: Mapping[str, Commitment] = field(default_factory=dict)
    slots: StoredSlots


def prepare_what_if(question: WhatIfQuestion, *, now: datetime) -> Callable[[], WhatIfAnswer]:
    """Load what a question is about; return what answers it from memory alone.

    It is the planner that decides change requests.

    Raises:
        InvalidInput: a host or commitment is unknown, the time has passed, or the batch is wrong.
        NotReady: flavor groups were not extracted yet.
    """
    at = question.at or now
    if at < now:
        raise InvalidInput("at: must not be in the past", field="at")
    wanted = _resolved(question.batch, "batch", at)
    others = _resolved(question.added, "edit.commitments_added", at) if question.added else ()
    asked = [item.commitment_uuid for item in (*wanted, *others)]
    _check_distinct(question, asked)
    stored = _read([*asked, *question.expired])
    unknown = sorted(set(question.expired) - set(stored.rows))
    if unknown:
        field = f"edit.commitments_expired[{question.expired.index(unknown[0])}]"
        raise InvalidInput(f"{field}: no commitment {unknown[0]}", field=field)
    _check_retired((*wanted, *others), stored)
    targets = _targets(wanted, stored, at)
    other_targets = _targets(others, stored, at)
    outside = [*asked, *question.expired]
    return partial(
        what_if,
        advice_snapshot(
            (*targets, *other_targets), rooms=stored.slots.rooms, outside=outside, now=now
        ),
        targets,
        edit=RegionEdit(
            expired=_expired(question.expired, stored),
            hosts=_host_changes(question),
            added=other_targets,
        ),
        timeline=known_timeline(question.batch.zone, outside=outside, now=now),
        unit_amounts=unit_amounts(targets),
        at=at,
    )


def _resolved(request: ChangeRequest, path: str, at: datetime) -> tuple[WantedCommitment, ...]:
    contradictions = find_contradictions(request)
    if contradictions:
        field = f"{path}.{field_of(contradictions[0].entry, contradictions[0].field)}"
        raise InvalidInput(f"{field}: {contradictions[0].message}", field=field)
    try:
        return resolve_changes(request, now=at, request_id="")
    except StructuralProblem as problem:
        field = f"{path}.{problem.facts['field']}"
        raise InvalidInput(
            f"{field}: {problem.message}", code="structural_problem", field=field
        ) from None


def _check_retired(wanted: Sequence[WantedCommitment], stored: _Stored) -> None:
    try:
        check_retired_groups(wanted, stored.rows)
    except StructuralProblem as problem:
        raise InvalidInput(problem.message, code="structural_problem") from None


def _check_distinct(question: WhatIfQuestion, asked: Sequence[str]) -> None:
    """Check that no commitment is in two parts of a question; ``asked`` is the batch first."""
    in_batch = {entry.change.uuid for entry in question.batch.entries()}
    places = {uuid: f"edit.commitments_expired[{n}]" for n, uuid in enumerate(question.expired)}
    if question.added is not None:
        for entry in question.added.entries():
            if entry.change.uuid in in_batch:
                places[entry.change.uuid] = f"edit.commitments_added.{field_of(entry, 'uuid')}"
    for uuid in asked:
        if uuid in places:
            field = places[uuid]
            raise InvalidInput(
                f"{field}: commitment {uuid} occurs in another part of the question", field=field
            )


def _read(uuids: Collection[str]) -> _Stored:
    rows = {
        row.commitment_uuid: row
        for row in Commitment.objects.filter(commitment_uuid__in=uuids).order_by("pk")
    }
    return _Stored(rows=rows, slots=read_slots(list(rows.values())))


def _targets(
    wanted: Sequence[WantedCommitment], stored: _Stored, at: datetime
) -> tuple[CommitmentTarget, ...]:
    return tuple(
        make_target(item, stored.rows.get(item.commitment_uuid), stored.slots.by_commitment, at)
        for item in wanted
    )


def _expired(uuids: Sequence[str], stored: _Stored) -> tuple[CommitmentTarget, ...]:
    return tuple(
        CommitmentTarget(
            commitment_uuid=uuid,
            desired=None,
            is_holding=False,
            slots=stored.slots.by_commitment.get(stored.rows[uuid].pk, ()),
        )
        for uuid in dict.fromkeys(uuids)
    )


def _host_changes(question: WhatIfQuestion) -> tuple[HostChange, ...]:
    parts = {
        "edit.hosts_added": [item.like for item in question.hosts_added],
        "edit.hosts_drained": list(question.hosts_drained),
        "edit.hosts_failed": list(question.hosts_failed),
    }
    named = {name for names in parts.values() for name in names}
    known = dict(Host.objects.filter(name__in=named).values_list("name", "pk"))
    for path, names in parts.items():
        for name in names:
            if name not in known:
                field = f"{path}[{names.index(name)}]"
                field += ".like" if path == "edit.hosts_added" else ""
                raise InvalidInput(f"{field}: no host {name}", field=field)
    changes = [
        change
        for number, item in enumerate(question.hosts_added)
        for change in added_hosts(known[item.like], item.count, prefix=f"new {number}")
    ]
    going = {
        **dict.fromkeys(question.hosts_failed, HostEdit.FAILED),
        **dict.fromkeys(question.hosts_drained, HostEdit.DRAINED),
    }
    displaced = displaced_by(
        [known[name] for name in going],
        failed=[known[name] for name, edit in going.items() if edit is HostEdit.FAILED],
    )
    for number, name in enumerate(sorted(going)):
        change = HostChange(edit=going[name], host_id=known[name])
        changes.append(change if number else replace(change, displaced=displaced))
    return tuple(changes)
