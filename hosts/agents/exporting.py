"""Results of an agent for somebody who verifies them without us (spec hosts, D.15)."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from headroom_host_agent.provision.proofs import FORMAT
from headroom_host_agent.provision.signing.v2 import seal

from core.changes import one_snapshot
from hosts.agents.errors import NoAgent
from hosts.agents.models import HostAgent
from hosts.agents.workload_models import Workload, WorkloadResult
from journal.clock import database_now


def results_export(host_name: str) -> dict[str, Any]:
    """Return what is known of an agent's reservations, with all that it signed of them.

    Of an agent that was decommissioned as well. All is of one moment.

    Raises:
        NoAgent: None of the host ever enrolled.
    """
    with one_snapshot():
        agent = HostAgent.objects.filter(host_name=host_name).first()
        if agent is None:
            raise NoAgent(host_name)
        return {
            "format": FORMAT,
            "host": host_name,
            "host_id": str(agent.uuid),
            "exported_at": database_now().isoformat(),
            "keys": list(_keys(agent)),
            "reservations": list(_reservations(agent)),
            "results": list(_results(agent)),
        }


def _keys(agent: HostAgent) -> Iterator[dict[str, object]]:
    for key in agent.keys.order_by("pk"):
        yield {
            "kid": key.kid,
            "public_key": base64.b64encode(bytes(key.public_key)).decode(),
            "state": key.state,
            "created_at": key.created_at.isoformat(),
            "revoked_at": key.revoked_at and key.revoked_at.isoformat(),
        }


def _reservations(agent: HostAgent) -> Iterator[dict[str, object]]:
    for row in Workload.objects.filter(agent=agent).order_by("pk").iterator():
        yield {
            "id": row.gwid,
            "type": row.type,
            "attempt": row.attempt,
            "state": row.state,
            "made_for": {"kind": row.owner_kind, "id": row.owner_id, "project": row.user_id},
        }


def _results(agent: HostAgent) -> Iterator[dict[str, object]]:
    for row in WorkloadResult.objects.filter(workload__agent=agent).order_by("pk").iterator():
        yield {
            "received_at": row.received_at.isoformat(),
            "result": seal(row.document, kid=row.kid, signature=bytes(row.signature)),
        }
