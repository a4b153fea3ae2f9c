"""Requests that an agent signed: who sent them, and that they come once (spec hosts, D.5)."""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import parse_qsl

from django.db import DEFAULT_DB_ALIAS
from django.http import HttpRequest
from headroom_host_agent.provision.signing.keys import SigningError, verify
from headroom_host_agent.provision.signing.v2 import SignedRequest, request_bytes

from core.prepared import fetch_prepared
from hosts.agents.errors import AgentForbidden, AgentGone, AgentRefused, AgentUnknown
from hosts.agents.leases import stale_epoch
from hosts.agents.models import HostAgent, HostKey, KeyState

SKEW_SECONDS = 300
NONCE_SECONDS = 600
_FORMS = {
    "X-Host-Id": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "X-Host-Key": r"[A-Za-z0-9_-]{16}",
    "X-Host-Timestamp": r"[0-9]{1,12}",
    "X-Host-Nonce": r"[0-9a-f]{32}",
    "X-Host-Epoch": r"[0-9]{1,18}",
    "X-Host-Signature": r"[A-Za-z0-9+/]{86}==",
}
# Of models, in the order in which these declare them; whatever else is asked for is read then.
_KEY_FIELDS: Final = ("id", "agent_id", "kid", "public_key", "state", "token_id", "not_after")
_AGENT_FIELDS: Final = (
    "id", "uuid", "host_name", "fence_epoch", "mode", "change_seq", "timeline",
    "decommissioned_at",
)  # fmt: skip
_KEY: Final = """
SELECT statement_timestamp(),
       key.id, key.agent_id, key.kid, key.public_key, key.state, key.token_id, key.not_after,
       agent.id, agent.uuid, agent.host_name, agent.fence_epoch, agent.mode, agent.change_seq,
       agent.timeline, agent.decommissioned_at
  FROM hosts_hostkey AS key
  JOIN hosts_hostagent AS agent ON agent.id = key.agent_id
 WHERE key.kid = %(kid)s
"""
# An agent's nonces are forgotten with its next request: as many stay as it sends in that time.
_SEE = """
WITH gone AS (
    DELETE FROM hosts_requestnonce
     WHERE agent_id = %(agent)s
       AND seen_at < clock_timestamp() - make_interval(secs => %(seconds)s)
)
INSERT INTO hosts_requestnonce (agent_id, nonce, seen_at)
VALUES (%(agent)s, %(nonce)s, clock_timestamp())
ON CONFLICT (agent_id, nonce) DO NOTHING
RETURNING 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sender:
    """What the headers say."""

    host_id: uuid.UUID
    kid: str
    timestamp: int
    nonce: str
    epoch: int
    signature: bytes


def agent_of(request: HttpRequest, body: bytes, *, path_id: uuid.UUID) -> HostAgent:
    """Return the agent that signed a request, which is then seen; raises as ``key_of``."""
    return key_of(request, body, path_id=path_id).agent


def key_of(request: HttpRequest, body: bytes, *, path_id: uuid.UUID) -> HostKey:
    """Return the key that signed a request, with its agent; the request is then seen.

    Raises:
        AgentRefused: A header is missing or malformed; nothing is written, as with all others but
            the last three.
        AgentUnknown: The key is unknown, revoked or retired, the clock is off, the signature does
            not hold, or the request was seen already.
        AgentForbidden: The path names another host.
        AgentGone: The host was decommissioned.
        AgentConflict: The agent's epoch is over.
    """
    sender = _sender(request)
    key, now = _known_key(sender.kid, sender.host_id)
    _check_clock(sender, now)
    _check_signature(request, body, sender, key)
    _see(key.agent, sender)
    if key.agent.uuid != path_id:
        raise AgentForbidden("the path names another host than the key")
    _check_life(key.agent, sender.epoch)
    return key


def key_again(kid: str, host_id: uuid.UUID, *, epoch: int) -> HostKey:
    """Return the key of a request that was verified some time ago, if it is still taken.

    Raises:
        AgentUnknown: The key was revoked or retired meanwhile.
        AgentGone: The host was decommissioned.
        AgentConflict: The agent's epoch is over.
    """
    key, _ = _known_key(kid, host_id)
    _check_life(key.agent, epoch)
    return key


def _check_life(agent: HostAgent, epoch: int) -> None:
    if agent.decommissioned_at is not None:
        raise AgentGone("the host was decommissioned", end_of_stream=True)
    if agent.fence_epoch != epoch:
        raise stale_epoch(agent.fence_epoch, epoch)


def _known_key(kid: str, host_id: uuid.UUID) -> tuple[HostKey, datetime]:
    """Return a key that is taken, and the database's time.

    Raises:
        AgentUnknown: It is unknown, revoked or retired.
    """
    rows = fetch_prepared(_KEY, {"kid": kid})
    if not rows:
        raise AgentUnknown("nobody knows this key of this host")
    now, *values = rows[0]
    cut = len(_KEY_FIELDS)
    key = HostKey.from_db(DEFAULT_DB_ALIAS, _KEY_FIELDS, values[:cut])
    key.agent = HostAgent.from_db(DEFAULT_DB_ALIAS, _AGENT_FIELDS, values[cut:])
    if key.agent.uuid != host_id:
        raise AgentUnknown("nobody knows this key of this host")
    if key.state == KeyState.REVOKED:
        raise AgentUnknown("the key was revoked", code="key_revoked")
    if key.not_after is not None and key.not_after <= now:
        raise AgentUnknown("the host has another key since", code="key_revoked")
    return key, now


def _sender(request: HttpRequest) -> _Sender:
    values = {}
    for name, form in _FORMS.items():
        value = request.headers.get(name, "")
        if re.fullmatch(form, value) is None:
            raise AgentRefused(
                f"{name} is missing or malformed", code="bad_auth_header", field=name
            )
        values[name] = value
    try:
        signature = base64.b64decode(values["X-Host-Signature"], validate=True)
    except binascii.Error:
        raise AgentRefused(
            "X-Host-Signature is malformed", code="bad_auth_header", field="X-Host-Signature"
        ) from None
    return _Sender(
        host_id=uuid.UUID(values["X-Host-Id"]),
        kid=values["X-Host-Key"],
        timestamp=int(values["X-Host-Timestamp"]),
        nonce=values["X-Host-Nonce"],
        epoch=int(values["X-Host-Epoch"]),
        signature=signature,
    )


def _check_clock(sender: _Sender, now: datetime) -> None:
    deviation = sender.timestamp - now.timestamp()
    if abs(deviation) > SKEW_SECONDS:
        raise AgentUnknown(
            f"the request is stamped {deviation:+.0f} s from our time, {SKEW_SECONDS} are allowed",
            code="clock_skew",
            server_time=now.isoformat(),
        )


def _check_signature(request: HttpRequest, body: bytes, sender: _Sender, key: HostKey) -> None:
    try:
        pairs = parse_qsl(
            request.META.get("QUERY_STRING", ""), keep_blank_values=True, max_num_fields=50
        )
        signed = request_bytes(
            SignedRequest(
                method=str(request.method),
                path=request.path,
                query=tuple(pairs),
                body=body,
                timestamp=sender.timestamp,
                nonce=sender.nonce,
                host_id=str(sender.host_id),
                kid=sender.kid,
                fence_epoch=sender.epoch,
            )
        )
        holds = verify(bytes(key.public_key), sender.signature, signed)
    except (SigningError, ValueError):
        holds = False
    if not holds:
        raise AgentUnknown("the signature does not hold", code="bad_signature")


def _see(agent: HostAgent, sender: _Sender) -> None:
    facts = {"agent": agent.pk, "nonce": sender.nonce, "seconds": NONCE_SECONDS}
    if not fetch_prepared(_SEE, facts):
        raise AgentUnknown("the request was seen already", code="replayed")
