"""Admission of commitments: who holds capacity, on which hosts, or why not (spec liquid, 11.3-11.7).

One plan serves the API (all or nothing), the dry run (a plan that is not applied) and the background
repair (each commitment for itself). Releases come first, then hand-over of freed slots, then new
slots are placed in the order of the targets, each placement seeing those before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

import numpy as np

from capacity.domain.blocking import blocked_resources
from capacity.domain.flavor_groups import FlavorGroupDef, FlavorSpec
from commitments.domain.handover import HandoverDemand, HandoverSlot, plan_handover
from commitments.domain.planner import (
    PlannedSlot,
    PlannerSettings,
    SlotLimitExceeded,
    SlotPlan,
    SlotView,
    plan_slots,
)
from commitments.domain.state import CommitmentState
from commitments.domain.statuses import ResourceType
from scheduling.engine import Decision, explain_removals, schedule_many
from scheduling.request import (
    PlacementRequest,
    hypervisor_type_from_extra_specs,
    traits_from_extra_specs,
)
from scheduling.resources import ZERO, ResourceVector
from scheduling.table import HostTable


class Outcome(StrEnum):
    """What was decided about one commitment."""

    ACCEPTED = "accepted"
    PLANNED = "planned"
    RELEASED = "released"
    DELETED = "deleted"
    RESERVING = "reserving"
    REJECTED = "rejected"


class Cause(StrEnum):
    """Why a commitment was not accepted; decides when to try again (spec liquid, 11.5)."""

    CAPACITY = "capacity"
    TRANSIENT = "transient"
    STRUCTURAL = "structural"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRoom:
    """What a stored slot takes now.

    Attributes:
        host_ids: Hosts it blocks: target and, in migration, the one it sits on.
        blocked: What it blocks on each of them.
        confirmed: Sum over VMs seen in it.
        expected: Sum over VMs placed in it, not yet seen and held by no in-flight row.
    """

    host_ids: tuple[int, ...] = ()
    blocked: ResourceVector = ZERO
    confirmed: ResourceVector = ZERO
    expected: ResourceVector = ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentTarget:
    """One commitment with what it should become and what it holds.

    Attributes:
        commitment_uuid: Whose target this is.
        desired: The state to reach; None deletes the commitment.
        is_holding: Whether the state wants capacity now (pending, guaranteed or confirmed, with a
            positive amount and an end ahead).
        is_planned: Whether nothing is promised yet.
        slots: Its stored slots.
        accepted_cores: vCPUs it holds by an earlier acceptance; 0 when none.
        previous_project_id: Project it belonged to before; empty when it is new.
    """

    commitment_uuid: str
    desired: CommitmentState | None
    is_holding: bool
    is_planned: bool = False
    slots: tuple[SlotView, ...] = ()
    accepted_cores: int = 0
    previous_project_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoresLedger:
    """Cores of one flavor group in one zone.

    Attributes:
        total_vcpus: Cores of the empty datacenter; None when not probed yet.
        held_vcpus: Accepted by live cores commitments outside the plan.
    """

    total_vcpus: int | None
    held_vcpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSnapshot:
    """Everything an admission is decided on.

    Attributes:
        hosts: Host table with the blocks of all stored slots.
        groups: Flavor group definitions by name.
        rooms: Stored slot id to what it takes.
        cores: (group, zone) to cores ledger.
        max_slots: Most new slots of one commitment; 0 is no limit.
    """

    hosts: HostTable
    groups: Mapping[str, FlavorGroupDef]
    rooms: Mapping[int, SlotRoom] = field(default_factory=dict)
    cores: Mapping[tuple[str, str], CoresLedger] = field(default_factory=dict)
    max_slots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHandover:
    """A stored slot that changes its commitment.

    Attributes:
        slot_id: Database key of the slot.
        commitment_uuid: New owner.
        slot_index: Its index there.
    """

    slot_id: int
    commitment_uuid: str
    slot_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlacement:
    """Where one slot shall be held.

    Attributes:
        slot_id: Stored slot that had no host; None for a new slot.
        slot: The slot as planned: index, flavor and what it takes.
        decision: Host chosen, or none, with the reasons.
    """

    slot_id: int | None
    slot: PlannedSlot
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentDecision:
    """What was decided about one commitment, and the slot changes that follow.

    Attributes:
        target: What was asked.
        outcome: The answer.
        message: Why, for a person; texts of spec liquid 11.5 where it is a no.
        cause: Why not, as a code; None for a yes.
        slot_plan: Planned slot changes; None when it holds no slots.
        placements: Hosts of new and unplaced slots.
    """

    target: CommitmentTarget
    outcome: Outcome
    message: str = ""
    cause: Cause | None = None
    slot_plan: SlotPlan | None = None
    placements: tuple[SlotPlacement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPlan:
    """An immutable proposal; applying it is a separate act.

    Attributes:
        decisions: One per target, in the order of the targets.
        released_slot_ids: Stored slots to delete, sorted.
        handovers: Stored slots that change their commitment.
        block_deltas: Host key to the net change of what committed slots block there.
    """

    decisions: tuple[CommitmentDecision, ...]
    released_slot_ids: tuple[int, ...] = ()
    handovers: tuple[SlotHandover, ...] = ()
    block_deltas: Mapping[int, ResourceVector] = field(default_factory=dict)

    @property
    def rejections(self) -> tuple[CommitmentDecision, ...]:
        """Return the decisions that are a no, in order."""
        return tuple(d for d in self.decisions if d.outcome is Outcome.REJECTED)
