"""Asking the scheduler for hosts of slots (spec commitments, 9.5; Appendix B 22)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from capacity.domain.flavor_groups import FlavorSpec
from scheduling.columns import BoolColumn, FloatColumn
from scheduling.decision import Decision
from scheduling.engine import (
    SLOT_PIPELINE,
    Batch,
    Pipeline,
    PipelineRunError,
)
from scheduling.evaluation import Evaluation
from scheduling.request import (
    Intent,
    PlacementRequest,
    hypervisor_type_from_extra_specs,
    traits_from_extra_specs,
)
from scheduling.resources import ZERO, ResourceVector
from scheduling.table import HostTable

MAX_CANDIDATES = 3
"""How many of the best hosts a decision tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainHint:
    """The domain of a project, as far as it is known.

    Attributes:
        name: Its name; None when there is none to tell.
        is_unresolved: Whether it has a domain whose name is not known: what keeps customers apart
            must not guess then.
    """

    name: str | None = None
    is_unresolved: bool = False


NO_DOMAIN = DomainHint()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAsk:
    """A slot that needs a host.

    Attributes:
        slot_id: Stored slot; None for a new one.
        slot_index: Its number in the commitment.
        slot_name: Its name, which breaks ties between hosts.
        flavor: Flavor it is placed as.
        slot: What it takes: a remainder slot asks for its own memory, not for its flavor's.
        zone: Availability zone.
        project_id: Project it is held for.
        ignore_hosts: Hosts that it shall not be on.
        domain: Domain of the project, for pipelines that keep customers apart.
        pipeline: Which pipeline judges; None is the one of slots.
        names_flavor: Whether the slot says what flavor it is placed as; without it nobody is asked
            (spec commitments, 9.2 step 3).
        only_hosts: Hosts that it may be on; None for every host.
    """

    slot_id: int | None
    slot_index: int
    slot_name: str
    flavor: FlavorSpec
    slot: ResourceVector
    zone: str
    project_id: str
    ignore_hosts: frozenset[str] = frozenset()
    domain: DomainHint = NO_DOMAIN
    pipeline: Pipeline | None = None
    names_flavor: bool = True
    only_hosts: frozenset[str] | None = None

    @property
    def is_askable(self) -> bool:
        """Whether a host can be asked for it at all."""
        return self.names_flavor and self.slot.memory_bytes > 0 and self.slot.vcpus > 0


class SlotPlacer:
    """Chooses hosts for slots one after the other, each seeing the blocks of those before.

    Slots next to each other that the same pipeline judges are placed as one batch.
    """

    def __init__(self, hosts: HostTable) -> None:
        """Start with the hosts as they are before the first slot."""
        self._hosts = hosts
        self._held: list[tuple[int, ResourceVector]] = []
        self._pipeline = SLOT_PIPELINE
        self._batch: Batch | None = None

    @property
    def count(self) -> int:
        """How many slots were placed so far."""
        return len(self._held)

    def rewind(self, count: int) -> tuple[tuple[int, ResourceVector], ...]:
        """Take back all slots but the first ones; return host key and size of what was undone."""
        undone = tuple(self._held[count:])
        if undone:
            del self._held[count:]
            self._batch = None
        return undone

    def repeat(self, undone: Sequence[tuple[int, ResourceVector]]) -> None:
        """Place slots again that ``rewind`` took back, where they were."""
        if undone:
            self._held.extend(undone)
            self._batch = None

    def place(self, ask: SlotAsk, *, only_row: int | None = None) -> Decision | None:
        """Choose a host for a slot.

        Args:
            ask: The slot.
            only_row: Row of the one host that it may be on; None leaves the choice.

        Returns:
            None for a slot without memory, vCPUs or the name of a flavor, which no host can be
            asked for.
        """
        if not ask.is_askable:
            return None
        decision = self._batch_for(ask).decide(
            _request(ask), max_candidates=MAX_CANDIDATES, only_row=only_row
        )
        if decision.host_id is not None:
            self._held.append((decision.host_id, ask.slot))
        return decision

    def look(self, ask: SlotAsk) -> Evaluation | None:
        """Return what a slot sees of every host now; None where a filter cannot judge."""
        try:
            return self._batch_for(ask).evaluation(_request(ask))
        except PipelineRunError:
            return None

    def _batch_for(self, ask: SlotAsk) -> Batch:
        pipeline = ask.pipeline or SLOT_PIPELINE
        if self._batch is None or pipeline.name != self._pipeline.name:
            taken: dict[int, ResourceVector] = {}
            for host_id, slot in self._held:
                taken[host_id] = taken.get(host_id, ZERO) + slot
            self._pipeline = pipeline
            self._batch = Batch(table_with_released(self._hosts, taken), pipeline)
        return self._batch


def place_slots(hosts: HostTable, asks: Sequence[SlotAsk]) -> tuple[Decision | None, ...]:
    """Choose hosts for slots as they are, in their order.

    Returns:
        One decision per ask, in order; None for a slot without memory, vCPUs or the name of a
        flavor, which no host can be asked for.
    """
    placer = SlotPlacer(hosts)
    return tuple(placer.place(ask) for ask in asks)


def weigh_hosts(hosts: HostTable, ask: SlotAsk) -> tuple[BoolColumn, FloatColumn]:
    """Return which hosts could take a slot now, and what the weighers say of each.

    Returns:
        bool[N], hosts that pass every filter, none where a filter cannot judge; float64[N], their
        scores, minus infinity for the others.
    """
    if not ask.is_askable:
        return np.zeros(len(hosts), dtype=np.bool_), np.full(len(hosts), -np.inf)
    batch = Batch(hosts, ask.pipeline or SLOT_PIPELINE)
    try:
        evaluation = batch.evaluation(_request(ask))
    except PipelineRunError:
        return np.zeros(len(hosts), dtype=np.bool_), np.full(len(hosts), -np.inf)
    return evaluation.survivors(), evaluation.scores


def table_with_released(hosts: HostTable, deltas: Mapping[int, ResourceVector]) -> HostTable:
    """Return the host table after committed blocks changed.

    Args:
        hosts: Table before.
        deltas: Host key to change in bytes and vCPUs, negative for released room. Hosts that are
            not in the table are ignored.
    """
    changed = sorted(host_id for host_id, delta in deltas.items() if delta != ZERO)
    if not changed:
        return hosts
    wanted = np.array(changed, dtype=np.int64)
    order = np.argsort(hosts.host_ids, kind="stable")
    ordered_ids = hosts.host_ids[order]
    positions = np.searchsorted(ordered_ids, wanted)
    known = positions < len(ordered_ids)
    known[known] = ordered_ids[positions[known]] == wanted[known]
    rows = order[positions[known]]
    known_ids = wanted[known].tolist()
    return hosts.replace_columns(
        rows,
        {
            "committed_memory_bytes": hosts.committed_memory_bytes[rows]
            + np.array([deltas[host_id].memory_bytes for host_id in known_ids], dtype=np.int64),
            "committed_vcpus": hosts.committed_vcpus[rows]
            + np.array([deltas[host_id].vcpus for host_id in known_ids], dtype=np.int64),
        },
    )


def _request(ask: SlotAsk) -> PlacementRequest:
    required, forbidden = traits_from_extra_specs(ask.flavor.extra_specs)
    return PlacementRequest(
        request_key=ask.slot_name,
        memory_bytes=ask.slot.memory_bytes,
        vcpus=ask.slot.vcpus,
        zone=ask.zone,
        project_id=ask.project_id,
        hypervisor_type=hypervisor_type_from_extra_specs(ask.flavor.extra_specs),
        required_traits=required,
        forbidden_traits=forbidden,
        flavor_name=ask.flavor.name,
        intent=Intent.RESERVE_FOR_COMMITTED_RESOURCE,
        ignore_hosts=ask.ignore_hosts or None,
        restrict_to_hosts=ask.only_hosts,
        extra_specs=ask.flavor.extra_specs,
        domain_name=ask.domain.name,
        domain_is_unresolved=ask.domain.is_unresolved,
        lock_reservations=True,
    )
