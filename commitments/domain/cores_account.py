"""Cores that commitments may promise, and what a plan takes of them (spec commitments, 8.5)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from commitments.domain.accounting import cores_decision
from commitments.domain.state import CommitmentState
from commitments.domain.statuses import Cause, ResourceType

if TYPE_CHECKING:
    from commitments.domain.admission import CommitmentTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class CoresLedger:
    """Cores of one flavor group in one zone.

    Attributes:
        total_vcpus: Cores of the empty datacenter; None when not probed yet.
        held_vcpus: Accepted by live cores commitments outside the plan.
        running_by_project: vCPUs of running VMs, by project; empty unless those that no commitment
            covers lessen the headroom.
        held_by_project: Share of ``held_vcpus`` of the projects that run VMs.
    """

    total_vcpus: int | None
    held_vcpus: int = 0
    running_by_project: Mapping[str, int] = field(default_factory=dict)
    held_by_project: Mapping[str, int] = field(default_factory=dict)

    def with_held(self, project_id: str, vcpus: int) -> CoresLedger:
        """Return the ledger after a project's commitments took vCPUs, or gave back (negative)."""
        held = dict(self.held_by_project)
        held[project_id] = max(held.get(project_id, 0) + vcpus, 0)
        return replace(self, held_vcpus=max(self.held_vcpus + vcpus, 0), held_by_project=held)

    def uncommitted_of_others(self, project_id: str) -> int:
        """Return the running vCPUs that commitments of their project do not cover.

        Those of the project itself are left out: a commitment covers its VMs first, so a project
        that commits to what it runs already needs no room besides.

        Source: spec liquid, 20 (21).
        """
        return sum(
            max(0, running - self.held_by_project.get(project, 0))
            for project, running in self.running_by_project.items()
            if project != project_id
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoresHolding:
    """What a commitment of cores holds by an earlier acceptance.

    Attributes:
        project_id: Project it is held for.
        vcpus: How many, positive.
    """

    project_id: str
    flavor_group_name: str
    zone: str
    vcpus: int

    def kept_as(self, desired: CommitmentState | None) -> int:
        """Return how many a commitment goes on holding when it becomes another one."""
        if (
            desired is None
            or desired.resource_type is not ResourceType.CORES
            or (desired.flavor_group_name, desired.zone) != (self.flavor_group_name, self.zone)
        ):
            return 0
        return min(self.vcpus, desired.requested_amount)


class CoresAccount:
    """Cores that are left, falling as commitments of the plan take them (commitments, 8.5).

    What commitments of the plan hold by an earlier acceptance, and go on holding, is taken before
    any of them is asked: a commitment that grows in vain keeps it. So is what those that end give
    up and others of their project, group and zone ask for: split, merge and renewal need no more
    than was held (spec liquid, 11.3; decisions). Promised commitments inherit before those that
    wait, both in the order of the plan.
    """

    def __init__(
        self, ledgers: Mapping[tuple[str, str], CoresLedger], targets: Sequence[CommitmentTarget]
    ) -> None:
        """Start with what is left and what the commitments of the plan hold already."""
        self._ledgers = dict(ledgers)
        self._inherited: dict[str, int] = {}
        estates = _given_up(targets)
        holders = [target for target in targets if _asks_for_cores(target)]
        for target in sorted(holders, key=_waits):
            desired = target.desired
            assert desired is not None  # noqa: S101 - who asks for cores has a desired state
            place = (desired.project_id, desired.flavor_group_name, desired.zone)
            lacking = desired.requested_amount - _kept_cores(target, desired)
            inherited = self._inherited[target.commitment_uuid] = min(lacking, estates[place])
            estates[place] -= inherited
            self._take(desired, _kept_cores(target, desired) + inherited)

    def ask(self, target: CommitmentTarget, desired: CommitmentState) -> tuple[str, Cause | None]:
        """Take the cores of a commitment, or return why not: a text and a cause.

        What was accepted before and did not grow is accepted again (decisions), and so is what
        takes over no more than others give up. A no gives back what would have been inherited.
        """
        inherited = self._inherited[target.commitment_uuid]
        kept = _kept_cores(target, desired) + inherited
        if desired.requested_amount > kept:
            ledger = self._ledgers[desired.flavor_group_name, desired.zone]
            taken = ledger.held_vcpus - kept + ledger.uncommitted_of_others(desired.project_id)
            answer = cores_decision(ledger.total_vcpus, taken, desired.requested_amount)
            if answer.cause is not None:
                self._take(desired, -inherited)
                return answer.message, answer.cause
        self._take(desired, desired.requested_amount - kept)
        return "", None

    def _take(self, desired: CommitmentState, vcpus: int) -> None:
        key = (desired.flavor_group_name, desired.zone)
        if key in self._ledgers:  # nobody has to count for what is kept as it was accepted
            self._ledgers[key] = self._ledgers[key].with_held(desired.project_id, vcpus)


def _asks_for_cores(target: CommitmentTarget) -> bool:
    return (
        target.is_holding
        and target.desired is not None
        and target.desired.resource_type is ResourceType.CORES
    )


def _waits(target: CommitmentTarget) -> bool:
    status = target.desired.status if target.desired is not None else None
    return status is None or not status.is_active


def _given_up(targets: Iterable[CommitmentTarget]) -> defaultdict[tuple[str, str, str], int]:
    """Return (project, group, zone) to the vCPUs that commitments of the plan hold no longer."""
    given_up: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for target in targets:
        held = target.held_cores
        if held is not None:
            kept = held.kept_as(target.desired) if target.is_holding else 0
            given_up[held.project_id, held.flavor_group_name, held.zone] += held.vcpus - kept
    return given_up


def _kept_cores(target: CommitmentTarget, desired: CommitmentState) -> int:
    return min(target.accepted_cores, desired.requested_amount)
