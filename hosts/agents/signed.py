"""Requests that an agent signed: who sent them, and that they come once (spec hosts, D.5)."""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
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
    "X-Host-Id": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "X-Host-Key": re.compile(r"[A-Za-z0-9_-]{16}"),
    "X-Host-Timestamp": re.compile(r"[0-9]{1,12}"),
    "X-Host-Nonce": re.compile(r"[0-9a-f]{32}"),
    "X-Host-Epoch": re.compile(r"[0-9]{1,18}"),
    "X-Host-Signature": re.compile(r"[A-Za-z0-9+/]{86}=="),
}
# Of models, in the order in which these declare them; whatever else is asked for is read then.
_KEY_FIELDS: Final = ("id", "agent_id", "kid", "public_key", "state", "token_id", "not_after")
_AGENT_FIELDS: Final = (
    "id", "uuid", "host_name", "agent_version", "abilities", "fence_epoch", "mode", "change_seq",
    "timeline", "decommissioned_at",
)  # fmt: skip
_KEY: Final = """
SELECT statement_timestamp(),
       key.id, key.agent_id, key.kid, key.public_key, key.state, key.token_id, key.not_after,
       agent.id, agent.uuid, agent.host_name, agent.agent_version, agent.abilities::json,
       agent.fence_epoch, agent.mode, agent.change_seq, agent.timeline, agent.decommissioned_at
  FROM hosts_hostkey AS key
  JOIN hosts_hostagent AS agent ON agent.id = key.agent_id
 WHERE key.kid = ANY (%(kids)s)
"""
# An agent's nonces are forgotten with its next request: as many stay as it sends in that time.
# Written in one order: who inserts what another inserts waits for it.
_SEE = """
WITH gone AS (
    DELETE FROM hosts_requestnonce WHERE id = ANY (ARRAY(
           SELECT id FROM hosts_requestnonce
            WHERE agent_id = ANY (%(agents)s::bigint[])
              AND seen_at < clock_timestamp() - make_interval(secs => %(seconds)s)
              FOR UPDATE SKIP LOCKED))
)
INSERT INTO hosts_requestnonce (agent_id, nonce, seen_at)
SELECT agent_id, nonce, clock_timestamp()
  FROM unnest(%(agents)s::bigint[], %(nonces)s::text[]) AS asked (agent_id, nonce)
 ORDER BY agent_id, nonce
ON CONFLICT (agent_id, nonce) DO NOTHING
RETURNING agent_id, nonce
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SentRequest:
    """A request as it came.

    Attributes:
        path: Decoded.
        query: Encoded.
        headers: By names in small letters.
        path_id: The host that the path names.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    path_id: uuid.UUID


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
        AgentRefused: As :func:`keys_of` tells it.
    """
    sent = SentRequest(
        method=str(request.method),
        path=request.path,
        query=request.META.get("QUERY_STRING", ""),
        headers=request.headers,
        body=body,
        path_id=path_id,
    )
    (found,) = keys_of([sent])
    if isinstance(found, AgentRefused):
        raise found
    return found


def keys_of(requests: Sequence[SentRequest]) -> list[HostKey | AgentRefused]:
    """Return of each request the key that signed it, with its agent; it is then seen.

    Two statements for all of them. Or why it is refused:

    * ``AgentRefused``: A header is missing or malformed; nothing is written, as with all others but
      the last three.
    * ``AgentUnknown``: The key is unknown, revoked or retired, the clock is off, the signature does
      not hold, or the request was seen already.
    * ``AgentForbidden``: The path names another host.
    * ``AgentGone``: The host was decommissioned.
    * ``AgentConflict``: The agent's epoch is over.
    """
    refused: dict[SentRequest, AgentRefused] = {}
    senders: dict[SentRequest, _Sender] = {}
    for request in requests:
        try:
            senders[request] = _sender(request.headers)
        except AgentRefused as error:
            refused[request] = error
    known = _known_keys({sender.kid for sender in senders.values()})
    signed: dict[SentRequest, HostKey] = {}
    for request, sender in senders.items():
        try:
            key, now = _taken_key(known, sender.kid, sender.host_id)
            _check_clock(sender, now)
            _check_signature(request, sender, key)
        except AgentRefused as error:
            refused[request] = error
        else:
            signed[request] = key
    unseen = _see((key.agent_id, senders[request].nonce) for request, key in signed.items())
    for request, key in signed.items():
        sender = senders[request]
        try:
            _check_seen(unseen, (key.agent_id, sender.nonce))
            if key.agent.uuid != request.path_id:
                raise AgentForbidden("the path names another host than the key")
            _check_life(key.agent, sender.epoch)
        except AgentRefused as error:
            refused[request] = error
    return [refused.get(request) or signed[request] for request in requests]


def key_again(kid: str, host_id: uuid.UUID, *, epoch: int) -> HostKey:
    """Return the key of a request that was verified some time ago, if it is still taken.

    Raises:
        AgentUnknown: The key was revoked or retired meanwhile.
        AgentGone: The host was decommissioned.
        AgentConflict: The agent's epoch is over.
    """
    key, _ = _taken_key(_known_keys({kid}), kid, host_id)
    _check_life(key.agent, epoch)
    return key


def _check_life(agent: HostAgent, epoch: int) -> None:
    if agent.decommissioned_at is not None:
        raise AgentGone("the host was decommissioned", end_of_stream=True)
    if agent.fence_epoch != epoch:
        raise stale_epoch(agent.fence_epoch, epoch)


_Known = Mapping[str, tuple[HostKey, datetime]]


def _known_keys(kids: Iterable[str]) -> _Known:
    """Return keys by their names, and the database's time; those that nobody knows are left out."""
    found = {}
    for now, *values in fetch_prepared(_KEY, {"kids": list(kids)}):
        cut = len(_KEY_FIELDS)
        key = HostKey.from_db(DEFAULT_DB_ALIAS, _KEY_FIELDS, values[:cut])
        key.agent = HostAgent.from_db(DEFAULT_DB_ALIAS, _AGENT_FIELDS, values[cut:])
        found[key.kid] = (key, now)
    return found


def _taken_key(known: _Known, kid: str, host_id: uuid.UUID) -> tuple[HostKey, datetime]:
    """Return a key that is taken, and the database's time.

    Raises:
        AgentUnknown: It is unknown, revoked or retired.
    """
    if kid not in known or known[kid][0].agent.uuid != host_id:
        raise AgentUnknown("nobody knows this key of this host")
    key, now = known[kid]
    if key.state == KeyState.REVOKED:
        raise AgentUnknown("the key was revoked", code="key_revoked")
    if key.not_after is not None and key.not_after <= now:
        raise AgentUnknown("the host has another key since", code="key_revoked")
    return key, now


def _sender(headers: Mapping[str, str]) -> _Sender:
    values = {}
    for name, form in _FORMS.items():
        value = headers.get(name.lower(), "")
        if form.fullmatch(value) is None:
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


def _check_signature(request: SentRequest, sender: _Sender, key: HostKey) -> None:
    try:
        pairs = parse_qsl(request.query, keep_blank_values=True, max_num_fields=50)
        signed = request_bytes(
            SignedRequest(
                method=request.method,
                path=request.path,
                query=tuple(pairs),
                body=request.body,
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


def _see(nonces: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    """Keep nonces of agents; return those that were not seen before."""
    pairs = list(nonces)
    if not pairs:
        return set()
    facts = {
        "agents": [agent for agent, _ in pairs],
        "nonces": [nonce for _, nonce in pairs],
        "seconds": NONCE_SECONDS,
    }
    return {(agent, nonce) for agent, nonce in fetch_prepared(_SEE, facts)}


def _check_seen(unseen: set[tuple[int, str]], nonce: tuple[int, str]) -> None:
    """Take a nonce once."""
    if nonce not in unseen:
        raise AgentUnknown("the request was seen already", code="replayed")
    unseen.remove(nonce)
