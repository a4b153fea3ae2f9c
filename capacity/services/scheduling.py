"""One scheduling run from request to answer: the entry of the endpoint and all callers."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from journal.actors import Actor
from journal.errors import HeadroomError
from scheduling.decision import Decision
from scheduling.request import CallOptions, PlacementRequest


class UnknownPipeline(HeadroomError):  # noqa: N818 - names the caller's mistake
    """No usable pipeline has the name that a request gives."""

    code = "unknown_pipeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingResult:
    """What a run decided and what came of it.

    Attributes:
        decision: The engine's decision.
        host_names: Hosts of the answer, best first: those held, when the run holds any.
        outcome_class: Class of commitment tracking (spec scheduling, 12), empty when none applies.
        flavor_group: Flavor group of the VM, empty when its flavor is in none.
        placement_id: Shared by the in-flight reservations of the run; None without any.
    """

    decision: Decision
    host_names: tuple[str, ...]
    outcome_class: str = ""
    flavor_group: str = ""
    placement_id: UUID | None = None


def run_scheduling(
    request: PlacementRequest,
    *,
    pipeline_name: str,
    options: CallOptions,
    actor: Actor,
    request_id: str,
) -> SchedulingResult:
    """Choose hosts for a request, hold them, track the slot, record the decision, count it.

    Args:
        request: What is asked.
        pipeline_name: Which pipeline runs.
        options: Call-time options.
        actor: Who asks.
        request_id: Correlation id.

    Raises:
        InvalidInput: the options contradict each other, or the request asks for nothing.
        UnknownPipeline: no usable pipeline has this name.

    Source: spec scheduling, 5, 12.
    """
    raise NotImplementedError
