"""How agents become known, and how operators let them (spec hosts, D.4)."""

from __future__ import annotations

import fnmatch
import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from headroom_host_agent.provision.signing.keys import SigningError, key_id, verify
from headroom_host_agent.provision.signing.v2 import enrolment_bytes

from hosts.agents.errors import AgentConflict, AgentForbidden, AgentRefused, AgentUnknown
from hosts.agents.keys import end_key
from hosts.agents.leases import forget_lease
from hosts.agents.models import (
    AgentMode,
    EnrolmentToken,
    HostAgent,
    HostKey,
    HostLease,
    KeyState,
)
from hosts.models import Host
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import InvalidInput
from journal.services import Change, record_changes

TOKEN_BYTES = 32
MOST_USES = 100_000
LONGEST = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """What an agent sends to become known.

    Attributes:
        proof: Signature by the key over the token's digest and the name.
    """

    token: str
    name: str
    public_key: bytes
    proof: bytes
    agent_version: str = ""


def create_token(
    *,
    name_glob: str,
    uses: int,
    lifetime: timedelta,
    actor: Actor,
    request_id: str,
    reason: str = "",
) -> str:
    """Return a new token, which is shown this once.

    Raises:
        InvalidInput: The pattern is empty, or uses or lifetime are out of bounds.
    """
    if not name_glob or len(name_glob) > 255 or not name_glob.isprintable():  # noqa: PLR2004
        raise InvalidInput("name must be a pattern of 1 to 255 characters", field="name")
    if not 1 <= uses <= MOST_USES:
        raise InvalidInput(f"uses must be from 1 to {MOST_USES}", field="uses")
    if not timedelta() < lifetime <= LONGEST:
        raise InvalidInput(f"the lifetime must be at most {LONGEST.days} days", field="ttl")
    token = secrets.token_urlsafe(TOKEN_BYTES)
    with transaction.atomic():
        row = EnrolmentToken.objects.create(
            token_sha256=digest_of(token),
            name_glob=name_glob,
            expires_at=database_now() + lifetime,
            uses_left=uses,
            created_by=actor.name,
        )
        change = Change(
            action="enrolment_token_created",
            object_type="enrolment_token",
            object_id=str(row.pk),
            after={"name_glob": name_glob, "uses": uses, "expires_at": str(row.expires_at)},
            reason=reason,
        )
        record_changes([change], actor=actor, request_id=request_id)
    return token


def revoke_token(*, pk: int, actor: Actor, request_id: str, reason: str = "") -> None:
    """Let nobody enrol with a token any more; agents that did stay."""
    with transaction.atomic():
        row = EnrolmentToken.objects.select_for_update().filter(pk=pk).first()
        if row is None or row.uses_left == 0:
            return
        before = {"uses_left": row.uses_left}
        row.uses_left = 0
        row.save(update_fields=["uses_left"])
        change = Change(
            action="enrolment_token_revoked",
            object_type="enrolment_token",
            object_id=str(pk),
            before=before,
            after={"uses_left": 0},
            reason=reason,
        )
        record_changes([change], actor=actor, request_id=request_id)


def revoke_key(*, pk: int, actor: Actor, request_id: str, reason: str = "") -> None:
    """Take nothing more that a key signs; its host may enrol anew then."""
    with transaction.atomic():
        row = (
            HostKey.objects.select_for_update(of=("self",))
            .select_related("agent")
            .filter(pk=pk)
            .exclude(state=KeyState.REVOKED)
            .first()
        )
        if row is not None:
            end_key(row, actor=actor, request_id=request_id, reason=reason)


def enrol(asked: Enrolment, *, request_id: str) -> tuple[HostKey, bool]:
    """Return the key of an agent that is known now, and whether it was not before.

    The same token with the same key again is a lost answer: nothing is used up.

    Raises:
        AgentRefused: The key is none, or the proof does not hold.
        AgentUnknown: The token is unknown, over or used up; it is not said which.
        AgentForbidden: The token is not for this name, or no host has it.
        AgentConflict: The host has another active key, or the key another host.
    """
    _check_proof(asked)
    kid = key_id(asked.public_key)
    with transaction.atomic():
        token = (
            EnrolmentToken.objects.select_for_update()
            .filter(token_sha256=digest_of(asked.token))
            .first()
        )
        if token is None:
            raise _bad_token()
        known = HostKey.objects.select_related("agent").filter(kid=kid).first()
        if known is not None and _is_repeated(known, token, asked):
            return known, False
        _check_token(token, database_now(), asked.name)
        if known is not None:
            raise AgentConflict("the key belongs to a host already", code="key_in_use")
        actor = Actor(name=f"host:{asked.name}")
        key = _add_key(asked, kid, token, request_id)
        # Who enrols begins anew: what an older key of the host still could ends.
        for old in key.agent.keys.select_for_update().filter(state=KeyState.RETIRING):
            end_key(old, actor=actor, request_id=request_id)
        token.uses_left -= 1
        token.save(update_fields=["uses_left"])
        change = Change(
            action="host_agent_enrolled",
            object_type="host_key",
            object_id=kid,
            after={"host": asked.name, "token": token.pk, "agent_version": asked.agent_version},
        )
        record_changes([change], actor=actor, request_id=request_id)
    return key, True


def digest_of(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _add_key(asked: Enrolment, kid: str, token: EnrolmentToken, request_id: str) -> HostKey:
    # The host's row is locked: two agents of one host enrol one after the other.
    host = Host.objects.select_for_update(no_key=True).filter(name=asked.name).first()
    if host is None:
        raise AgentForbidden(f"no host has the name {asked.name!r}", code="no_such_host")
    agent, _ = HostAgent.objects.get_or_create(host_name=asked.name)
    if agent.decommissioned_at is not None:
        _begin_anew(agent, request_id)
    if agent.keys.filter(state=KeyState.ACTIVE).exists():
        raise AgentConflict(
            "the host has another active key; an operator has to revoke it", code="host_exists"
        )
    HostLease.objects.get_or_create(agent=agent)
    agent.agent_version = asked.agent_version
    agent.save(update_fields=["agent_version"])
    key, is_new = HostKey.objects.get_or_create(
        kid=kid, defaults={"agent": agent, "public_key": asked.public_key, "token": token}
    )
    if not is_new:
        raise AgentConflict("the key belongs to a host already", code="key_in_use")
    return key


def _begin_anew(agent: HostAgent, request_id: str) -> None:
    """Let an agent that was decommissioned be another one: what the old one has counts no more."""
    forget_lease(agent.pk)
    for old in agent.keys.select_for_update().exclude(state=KeyState.REVOKED):
        end_key(old, actor=Actor(name=f"host:{agent.host_name}"), request_id=request_id)
    agent.fence_epoch += 1
    agent.mode, agent.decommissioned_at = AgentMode.OBSERVE, None
    agent.save(update_fields=["fence_epoch", "mode", "decommissioned_at"])


def _check_proof(asked: Enrolment) -> None:
    signed = enrolment_bytes(digest_of(asked.token), asked.name)
    try:
        holds = verify(asked.public_key, asked.proof, signed)
    except SigningError as error:
        raise AgentRefused(str(error), code="bad_key", field="public_key") from None
    if not holds:
        raise AgentRefused("the proof does not hold", code="bad_proof", field="proof")


def _is_repeated(known: HostKey, token: EnrolmentToken, asked: Enrolment) -> bool:
    return (
        known.token_id == token.pk
        and known.agent.host_name == asked.name
        and known.state == KeyState.ACTIVE
    )


def _check_token(token: EnrolmentToken, now: datetime, name: str) -> None:
    if token.uses_left < 1 or token.expires_at <= now:
        raise _bad_token()
    if not fnmatch.fnmatchcase(name, token.name_glob):
        raise AgentForbidden("the token is not for this name", code="name_not_allowed")


def _bad_token() -> AgentUnknown:
    return AgentUnknown("the token is unknown, over or used up", code="bad_token")
