"""Keys of agents after the first: rotation, and the end of old ones (spec hosts, D.4, D.6)."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from headroom_host_agent.provision.signing.keys import SigningError, key_id, verify
from headroom_host_agent.provision.signing.v2 import rotation_bytes

from hosts.agents.errors import (
    AgentConflict,
    AgentForbidden,
    AgentRefused,
    AgentUnknown,
    UnknownToAgent,
)
from hosts.agents.models import HostAgent, HostKey, KeyState
from journal.actors import Actor
from journal.clock import database_now
from journal.services import Change, record_changes

MOST_KEYS = 3


def rotate_key(
    signed_with: HostKey, *, public_key: bytes, proof: bytes, request_id: str
) -> tuple[HostKey, bool]:
    """Make a key the active one of its host; return it, and whether it was not before.

    The one before is taken for ``key_retire_hours`` more.

    Args:
        signed_with: The key that signed the request.
        proof: Signature by the new key over the host's id and its own.

    Raises:
        AgentRefused: The key is none, or the proof does not hold.
        AgentUnknown: The signing key was revoked meanwhile.
        AgentForbidden: The signing key is retiring itself.
        AgentConflict: The key is known already, or the host has too many.
    """
    kid = _proven(signed_with.agent, public_key, proof)
    with transaction.atomic():
        agent = HostAgent.objects.select_for_update(no_key=True).get(pk=signed_with.agent_id)
        known = HostKey.objects.filter(kid=kid).first()
        if known is not None:
            if known.agent_id == agent.pk and known.state == KeyState.ACTIVE:
                return known, False
            raise AgentConflict("the key is known already", code="key_in_use")
        now = database_now()
        _check_signer(HostKey.objects.select_for_update().get(pk=signed_with.pk))
        if live_keys(agent, now).count() >= MOST_KEYS:
            raise AgentConflict(f"the host has {MOST_KEYS} keys already", code="too_many_keys")
        until = now + timedelta(hours=settings.HEADROOM.agents.key_retire_hours)
        agent.keys.filter(state=KeyState.ACTIVE).update(state=KeyState.RETIRING, not_after=until)
        made = HostKey.objects.create(
            agent=agent, kid=kid, public_key=public_key, token_id=signed_with.token_id
        )
        change = Change(
            action="host_key_rotated",
            object_type="host_key",
            object_id=kid,
            before={"kid": signed_with.kid},
            after={"host": agent.host_name, "kid": kid, "old_until": until.isoformat()},
        )
        record_changes([change], actor=actor_of(agent), request_id=request_id)
    return made, True


def drop_key(agent: HostAgent, kid: str, *, request_id: str) -> None:
    """Take nothing more of a retiring key of a host; one that is revoked already is dropped.

    Raises:
        UnknownToAgent: The host has no such key.
        AgentConflict: It is the active key.
    """
    with transaction.atomic():
        HostAgent.objects.select_for_update(no_key=True).get(pk=agent.pk)
        row = agent.keys.select_for_update().filter(kid=kid).first() if kid.isprintable() else None
        if row is None:
            raise UnknownToAgent("the host has no such key", code="no_such_key")
        if row.state == KeyState.ACTIVE:
            raise AgentConflict("the active key is the last one that counts", code="last_key")
        if row.state == KeyState.RETIRING:
            end_key(row, actor=actor_of(agent), request_id=request_id)


def end_key(row: HostKey, *, actor: Actor, request_id: str, reason: str = "") -> None:
    """Take nothing more that a key signs, from now on."""
    before = row.state
    row.state, row.revoked_at = KeyState.REVOKED, database_now()
    row.save(update_fields=["state", "revoked_at"])
    change = Change(
        action="host_key_revoked",
        object_type="host_key",
        object_id=row.kid,
        before={"state": str(before)},
        after={"state": KeyState.REVOKED.value, "host": row.agent.host_name},
        reason=reason,
    )
    record_changes([change], actor=actor, request_id=request_id)


def live_keys(agent: HostAgent, now: datetime) -> QuerySet[HostKey]:
    """Return the keys whose signatures are taken."""
    is_retiring = Q(state=KeyState.RETIRING, not_after__gt=now)
    return agent.keys.filter(Q(state=KeyState.ACTIVE) | is_retiring)


def actor_of(agent: HostAgent) -> Actor:
    """Return who did what an agent did."""
    return Actor(name=f"host:{agent.host_name}")


def _proven(agent: HostAgent, public_key: bytes, proof: bytes) -> str:
    """Return the name of a key whose private part the host has.

    Raises:
        AgentRefused: It is none, or the host has not.
    """
    kid = key_id(public_key)
    try:
        holds = verify(public_key, proof, rotation_bytes(str(agent.uuid), kid))
    except SigningError as error:
        raise AgentRefused(str(error), code="bad_key", field="public_key") from None
    if not holds:
        raise AgentRefused("the proof does not hold", code="bad_proof", field="proof")
    return kid


def _check_signer(row: HostKey) -> None:
    if row.state == KeyState.REVOKED:
        raise AgentUnknown("the key was revoked", code="key_revoked")
    if row.state != KeyState.ACTIVE:
        raise AgentForbidden("a retiring key makes no other the active one", code="key_retiring")
