"""Whether a project's quota allows a request (spec scheduling, 7.16)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduling.resources import GIB

ACTIVE_STATES = frozenset({"confirmed", "guaranteed"})
_MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentFact:
    """A commitment as the quota filter sees it, its accepted specification if it has one.

    Attributes:
        project_id: Project.
        resource_type: ``memory`` or ``cores``.
        state: State of the commitment.
        amount_bytes: Memory committed.
        used_bytes: Memory that the project's VMs use of it.
        is_current: Whether it has started and not ended.
    """

    project_id: str
    zone: str
    group: str
    resource_type: str = _MEMORY
    state: str = "confirmed"
    amount_bytes: int = 0
    used_bytes: int = 0
    is_current: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFacts:
    """What is known about a project's quota.

    Attributes:
        commitments: Any commitments; the filter takes those that match.
        quota: Resource name -> quota of the project in the zone (memory in GiB), None if there is
            no record. A resource without entry has no quota set.
        payg_usage: Resource name -> pay-as-you-go usage in the same units.
        lookup_error: Why the facts could not be read, empty if they could.
    """

    commitments: Sequence[CommitmentFact] = ()
    quota: Mapping[str, int] | None = None
    payg_usage: Mapping[str, int] = field(default_factory=dict)
    lookup_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaVerdict:
    """The answer of the quota filter.

    Attributes:
        decision: Label of the decision, ``reject`` or ``accept_...``.
        resource: ``ram``, ``cores`` or ``instances`` for a rejection, else empty.
    """

    decision: str
    resource: str = ""

    @property
    def is_rejected(self) -> bool:
        """Whether the request exceeds a quota."""
        return self.decision == "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaDemand:
    """What a request asks of a quota.

    Attributes:
        project_id: Project of the VM.
        memory_bytes: Memory of all instances.
        vcpus: vCPUs of all instances.
        instances: Instances, at least 1.
    """

    project_id: str
    zone: str
    group: str
    memory_bytes: int
    vcpus: int
    instances: int


def quota_verdict(demand: QuotaDemand, facts: QuotaFacts) -> QuotaVerdict:
    """Judge a demand by commitments first and quota second.

    Room of all matching commitments is pooled (product rule); if it holds the memory, cores and
    instances are not looked at. Memory is rounded up to GiB.

    Source: spec scheduling, 7.16 and 15.19.
    """
    if not (demand.project_id and demand.zone and demand.group):
        return QuotaVerdict(decision="accept_skipped_missing_data")
    memory_gib = _gib_up(demand.memory_bytes)
    matching = [fact for fact in facts.commitments if _matches(fact, demand)]
    headroom_gib = sum(
        max(0, _gib_up(fact.amount_bytes) - _gib_up(fact.used_bytes)) for fact in matching
    )
    if matching and headroom_gib >= memory_gib:
        return QuotaVerdict(decision="accept_cr")
    if facts.quota is None:
        return QuotaVerdict(decision="accept_no_quota")
    committed_gib = sum(_gib_up(fact.amount_bytes) for fact in matching)
    asked = (
        ("ram", memory_gib, committed_gib),
        ("cores", demand.vcpus, 0),
        ("instances", demand.instances, 0),
    )
    for resource, wanted, committed in asked:
        name = f"hw_version_{demand.group}_{resource}"
        if name not in facts.quota:
            continue
        if facts.quota[name] - committed - facts.payg_usage.get(name, 0) < wanted:
            return QuotaVerdict(decision="reject", resource=resource)
    return QuotaVerdict(decision="accept_payg")


def _matches(fact: CommitmentFact, demand: QuotaDemand) -> bool:
    return (
        fact.is_current
        and fact.resource_type == _MEMORY
        and fact.state in ACTIVE_STATES
        and (fact.project_id, fact.zone, fact.group)
        == (demand.project_id, demand.zone, demand.group)
    )


def _gib_up(memory_bytes: int) -> int:
    return -(-memory_bytes // GIB)
