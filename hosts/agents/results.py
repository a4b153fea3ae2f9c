"""What became of workloads, as their agents sign it (spec hosts, D.5, D.8).

Locks: the agent, so that no epoch ends meanwhile, then the workload. Results are only added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db import transaction
from headroom_host_agent.provision.signing.keys import SigningError, verify
from headroom_host_agent.provision.signing.v2 import (
    RESULT_FIELDS,
    Sealed,
    canonical_json,
    result_bytes,
    unseal,
)
from headroom_host_agent.provision.wire import parse_time

from hosts.agents.errors import AgentConflict, AgentRefused, AgentUnknown
from hosts.agents.hooks import tell_workloads_changed
from hosts.agents.keys import actor_of
from hosts.agents.models import HostAgent, HostKey, KeyState
from hosts.agents.polls import workload_of
from hosts.agents.workload_models import Workload, WorkloadResult
from hosts.agents.workloads import lock_agent
from hosts.domain.workloads import Known, Refusal, ResultKind, Told, Verdict, WorkloadState, judge
from journal.clock import database_now
from journal.services import Change, record_changes

STATES: Final = frozenset({"ok", "error"})
DELETED: Final = "deleted"
_ANSWERED: Final = ("state", "state_since", "error", "is_made", "to_delete", "delete_reason")
_TEXTS: Final = ("reservation_id", "host_id", "type", "state", "error", "finished_at")
LONGEST_ERROR: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What became of a result: the workload's state, and whether it was not stored before."""

    state: WorkloadState
    is_new: bool


def take_result(
    agent: HostAgent, gwid: str, sent: object, *, is_deletion: bool, request_id: str
) -> Taken:
    """Take a signed result; the same again changes nothing.

    Args:
        agent: Who sent it.
        gwid: The workload that the path names.
        sent: The document with ``kid`` and ``signature``.
        is_deletion: Whether its state must be ``deleted``.

    Raises:
        AgentRefused: A field is missing or wrong.
        AgentUnknown: No key of the agent signed it.
        UnknownToAgent: The agent was never asked for the workload.
        AgentConflict: It is of another attempt or epoch, or contradicts what is stored.
    """
    sealed = _checked(agent, gwid, sent, is_deletion=is_deletion)
    with transaction.atomic():
        epoch = lock_agent(agent.pk).fence_epoch
        row = workload_of(agent, gwid, Workload.objects.select_for_update(no_key=True))
        if sealed.document["type"] != row.type:
            raise _wrong("type", f"the reservation's is {row.type}")
        told = _told(sealed.document)
        verdict = judge(_known(row, told, epoch), told)
        changes = _applied(row, sealed, told, verdict)
        record_changes(changes, actor=actor_of(agent), request_id=request_id)
    if verdict.refusal is not None:
        raise _refused(verdict.refusal, row, epoch)
    return Taken(state=verdict.state, is_new=verdict.kind is not None)


def is_signed(row: WorkloadResult) -> bool:
    """Return whether the signature that is kept holds for what is kept, by the key it names."""
    key = HostKey.objects.filter(kid=row.kid, agent__workloads=row.workload_id).first()
    try:
        signed = result_bytes(row.document)
        return key is not None and verify(bytes(key.public_key), bytes(row.signature), signed)
    except SigningError:
        return False


def _applied(row: Workload, sealed: Sealed, told: Told, verdict: Verdict) -> list[Change]:
    before = {"state": row.state, "attempt": row.attempt}
    text = str(sealed.document["error"])
    if verdict.refusal == Refusal.CONFLICT:
        after = {"state": told.state, "error": text[:LONGEST_ERROR]}
        return [_change("host_result_conflict", row, before, after)]
    if verdict.kind is None or verdict.refusal is not None:
        return []
    WorkloadResult.objects.create(
        workload=row,
        attempt=told.attempt,
        kind=verdict.kind.value,
        state=told.state,
        digest=told.digest,
        document=dict(sealed.document),
        kid=sealed.kid,
        signature=sealed.signature,
    )
    old_state = WorkloadState(row.state)
    row.error = text[:LONGEST_ERROR] if told.state == "error" else ""
    if told.state == "ok" or verdict.kind is not ResultKind.RESULT:
        row.is_made = told.state == "ok"
    if verdict.state == old_state:
        row.save(update_fields=["error", "is_made"])
        return []
    row.state, row.state_since = verdict.state.value, database_now()
    if verdict.state == WorkloadState.DELETED and not row.to_delete:
        row.to_delete, row.delete_reason = True, "the agent says that it is gone"
    row.save(update_fields=[*_ANSWERED])
    tell_workloads_changed([row])
    after = {"state": row.state, "error": row.error}
    return [_change(f"host_workload_{row.state}", row, before, after)]


def _known(row: Workload, told: Told, epoch: int) -> Known:
    stored = {
        ResultKind(kind): (state, digest)
        for kind, state, digest in row.results.filter(attempt=told.attempt).values_list(
            "kind", "state", "digest"
        )
    }
    return Known(
        state=WorkloadState(row.state),
        attempt=row.attempt,
        fence_epoch=epoch,
        results={kind: digest for kind, (_, digest) in stored.items()},
        first_state=stored.get(ResultKind.RESULT, ("", ""))[0],
    )


def _told(document: Mapping[str, Any]) -> Told:
    """Return a result's sense: when it was said and in which epoch changes none of it.

    Of a deletion not even the words count: what is gone is gone.
    """
    is_deletion = document["state"] == DELETED
    said = [document["type"], document["state"]]
    said += [] if is_deletion else [document["error"], document["data"]]
    return Told(
        attempt=document["attempt"],
        fence_epoch=document["fence_epoch"],
        state=document["state"],
        digest=hashlib.sha256(canonical_json(said)).hexdigest(),
    )


def _checked(agent: HostAgent, gwid: str, sent: object, *, is_deletion: bool) -> Sealed:
    """Return a result that a key of the agent signed.

    Raises:
        AgentRefused: A field is missing or wrong.
        AgentUnknown: The signature does not hold.
    """
    try:
        sealed = unseal(sent)
        signed = result_bytes(sealed.document)
    except SigningError as error:
        raise AgentRefused(f"the result: {error}", code="invalid_result") from None
    _check_fields(sealed.document)
    document = sealed.document
    key = agent.keys.filter(kid=sealed.kid).exclude(state=KeyState.REVOKED).first()
    try:
        holds = key is not None and verify(bytes(key.public_key), sealed.signature, signed)
    except SigningError:
        holds = False
    if not holds:
        raise AgentUnknown(
            "no key of the host signed the result", code="bad_signature", field="signature"
        )
    if document["reservation_id"] != gwid:
        raise _wrong("reservation_id", "the path names another one")
    if document["host_id"] != str(agent.uuid):
        raise _wrong("host_id", "it is another host's")
    if (document["state"] == DELETED) != is_deletion:
        raise _wrong("state", f"{DELETED} has a path of its own")
    return sealed


def _check_fields(document: Mapping[str, Any]) -> None:
    if set(document) != RESULT_FIELDS:
        raise _wrong("", "fields are missing or too many")
    for name in _TEXTS:
        if not isinstance(document[name], str):
            raise _wrong(name, "it must be a text")
    for name in ("attempt", "fence_epoch"):
        if type(document[name]) is not int or not 1 <= document[name] < 2**63:
            raise _wrong(name, "it must be a number from 1")
    if document["attempt"] >= 2**31:
        raise _wrong("attempt", "it is too large")
    if document["state"] not in STATES | {DELETED}:
        raise _wrong("state", "it must be ok, error or deleted")
    try:
        parse_time(document["finished_at"])
    except ValueError:
        raise _wrong("finished_at", "it is no time") from None


def _refused(refusal: Refusal, row: Workload, epoch: int) -> AgentConflict:
    match refusal:
        case Refusal.STALE:
            return AgentConflict(
                f"the epoch of the host is {epoch}, the result has another",
                code="stale_epoch",
                fence_epoch=epoch,
            )
        case Refusal.SUPERSEDED:
            return AgentConflict(
                f"the last attempt is {row.attempt}, the result is of another",
                code="attempt_superseded",
                attempt=row.attempt,
            )
    return AgentConflict(
        "something else was told of this attempt before", code="result_conflict", state=row.state
    )


def _wrong(field: str, reason: str) -> AgentRefused:
    return AgentRefused(f"{field or 'the result'}: {reason}", code="invalid_result", field=field)


def _change(
    action: str, row: Workload, before: Mapping[str, object], after: Mapping[str, object]
) -> Change:
    return Change(
        action=action,
        object_type="host_workload",
        object_id=row.gwid,
        before=before,
        after=after,
    )
