from __future__ import annotations

from typing import Any

import numpy as np

from capacity.models import SchedulingDecision
from capacity.nova import decisions
from capacity.nova.decisions import KeptDecision, KeptStep, record_decision
from scheduling.decision import Candidate
from scheduling.record import PackedMask
from scheduling.request import PlacementRequest
from scheduling.resources import GIB

HOSTS = ("h1", "h2", "h3", "h4", "h5")
VM = "00000000-0000-4000-8000-0000000000aa"


def mask(*hosts: str, of: tuple[str, ...] = HOSTS) -> PackedMask:
    return PackedMask.pack(np.array([name in hosts for name in of], dtype=np.bool_))


def candidate(name: str, start: float = 0.0, **contributions: float) -> Candidate:
    return Candidate(
        host_name=name,
        host_id=0,
        score=start + sum(contributions.values()),
        contributions=tuple(contributions.items()),
    )


def make_record(**fields: Any) -> KeptDecision:
    """Return a run over h1..h4 of five hosts: h1 fails its state, h2 its room, h3 beats h4."""
    request = PlacementRequest(
        request_key=fields.pop("vm_uuid", VM),
        memory_bytes=8 * GIB,
        vcpus=2,
        zone="az-a",
        project_id="project-1",
        flavor_name="medium",
        flavor_group="hana_1",
    )
    return KeptDecision(
        **{
            "request": request,
            "pipeline_name": "kvm",
            "pipeline_version": 3,
            "host_names": HOSTS,
            "candidates": mask("h1", "h2", "h3", "h4"),
            "steps": (
                KeptStep(step="filter_status", removed=mask("h1"), remaining=3),
                KeptStep(step="filter_quota", removed=None, remaining=3, note="no quota record"),
                KeptStep(step="filter_capacity", removed=mask("h2"), remaining=2),
            ),
            "top": (
                candidate("h3", 0.1, kvm_binpack=0.7, kvm_prefer_smaller_hosts=0.2),
                candidate("h4", kvm_binpack=0.5, kvm_prefer_smaller_hosts=-0.1),
            ),
            "hosts_out": 2,
            "target_host_name": "h3",
            "is_successful": True,
            "message": "Started with 4 host(s).",
            "outcome_class": "no_cr",
            "request_id": "req-1",
            "duration_microseconds": 420,
            **fields,
        }
    )


def make_decision(**fields: Any) -> SchedulingDecision:
    record_decision(make_record(**fields))
    return SchedulingDecision.objects.latest("id")


def store_decision(**fields: Any) -> SchedulingDecision:
    """Store a decision at once, also in a test that is one transaction."""
    decisions._write(make_record(**fields))
    return SchedulingDecision.objects.latest("id")
