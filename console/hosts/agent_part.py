"""What the page of a host says of its agent (spec hosts, D.13)."""

from __future__ import annotations

from typing import Final

from console.base import PageData, badge, time_tag
from console.hosts.agents import (
    key_badge,
    liveness_badge,
    resources_text,
    signature_badge,
    work_badge,
)
from console.links import list_url, row_url
from core.text import NOTHING
from hosts.agents.models import HostAgent, KeyState
from hosts.agents.workload_models import Workload, WorkloadResult
from hosts.domain.workloads import WorkloadState

ROWS_SHOWN: Final = 20


def agent_part(host_name: str) -> PageData | None:
    """Return whether the agent is heard, its keys, and what it answered; None without one."""
    agent = (
        HostAgent.objects.filter(host_name=host_name)
        .select_related("lease")
        .defer("report")
        .first()
    )
    if agent is None:
        return None
    live = Workload.objects.filter(agent=agent).exclude(state=WorkloadState.DELETED.value)
    works = list(live.order_by("-seq")[:ROWS_SHOWN])
    answers: dict[int, WorkloadResult] = {
        one.workload_id: one
        for one in WorkloadResult.objects.filter(workload__in=works).order_by("pk")
    }
    ended = agent.decommissioned_at
    return PageData(
        url=row_url(agent),
        liveness=badge("idle", "decommissioned") if ended else liveness_badge(agent.lease),
        heard=time_tag(agent.lease.renewed_at),
        mode=agent.mode,
        health=agent.health_problem,
        others=resources_text(agent),
        keys=[
            PageData(url=row_url(key), kid=key.kid, state=key_badge(key))
            for key in agent.keys.exclude(state=KeyState.REVOKED)
        ],
        works=[
            PageData(
                url=row_url(work),
                gwid=work.gwid,
                kind=work.type,
                state=work_badge(work),
                answer=answers[work.pk].state if work.pk in answers else NOTHING,
                signature=signature_badge(answers[work.pk]) if work.pk in answers else NOTHING,
            )
            for work in works
        ],
        more=max(0, live.count() - len(works)),
        works_url=list_url("hosts.workload", q=host_name),
        results_url=list_url("hosts.workloadresult", q=host_name),
        keys_url=list_url("hosts.hostkey", q=host_name),
        events_url=list_url("journal.auditentry", q=host_name),
    )
