"""What ends by itself: workloads past their end, tombstones and seen requests (spec D.13).

Locks: one agent a transaction, then its workloads.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from hosts.agents.models import RequestNonce
from hosts.agents.signed import NONCE_SECONDS
from hosts.agents.workload_models import Workload
from hosts.agents.workloads import delete_workloads
from hosts.domain.workloads import WorkloadState
from journal.actors import Actor
from journal.clock import database_now

TOMBSTONE: Final = timedelta(days=30)
BATCH: Final = 5000


def expire_workloads(*, actor: Actor, request_id: str) -> int:
    """Ask agents to remove what is past its end; return how many."""
    ended = Workload.objects.filter(to_delete=False, expires_at__lt=database_now())
    by_agent: dict[int, list[int]] = {}
    for agent_pk, pk in ended.order_by("agent_id", "pk").values_list("agent_id", "pk")[:BATCH]:
        by_agent.setdefault(agent_pk, []).append(pk)
    return sum(
        delete_workloads(
            agent_pk, pks, reason="it is past its end", actor=actor, request_id=request_id
        )
        for agent_pk, pks in by_agent.items()
    )


def prune_agents() -> dict[str, int]:
    """Forget tombstones after 30 days, and requests that could not be sent again; return how many.

    Results go with their tombstones; the audit has what they said.
    """
    now = database_now()
    old = Workload.objects.filter(
        state=WorkloadState.DELETED.value, state_since__lt=now - TOMBSTONE
    ).order_by("pk")
    keys = list(old.values_list("pk", flat=True)[:BATCH])
    Workload.objects.filter(pk__in=keys).delete()
    seen = RequestNonce.objects.filter(seen_at__lt=now - timedelta(seconds=NONCE_SECONDS))
    nonces = list(seen.order_by("pk").values_list("pk", flat=True)[: 20 * BATCH])
    RequestNonce.objects.filter(pk__in=nonces).delete()
    return {"tombstones": len(keys), "nonces": len(nonces)}
