"""Asking the scheduler for hosts of slots (spec commitments, 9.5; Appendix B 22)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from capacity.ledger.slot_request import SlotAsk, slot_request
from scheduling.columns import BoolColumn, FloatColumn, Int64Column
from scheduling.decision import Decision
from scheduling.engine import SLOT_PIPELINE, Batch
from scheduling.evaluation import CompiledPipeline, Evaluation, PipelineRunError
from scheduling.filters.needs import filter_has_other_resources
from scheduling.needs import NO_NEEDS, Needs
from scheduling.request import PlacementRequest
from scheduling.resources import ZERO, ResourceVector
from scheduling.table import HostTable

MAX_CANDIDATES = 3
"""How many of the best hosts a decision tells."""
NOTHING_ELSE: Final[Mapping[int, Needs]] = MappingProxyType({})


class Held(NamedTuple):
    """What was placed: the row of its host, and what it asked for."""

    row: int
    request: PlacementRequest


class SlotPlacer:
    """Chooses hosts for slots one after the other, each seeing the blocks of those before.

    Slots may be judged by several pipelines; what one has placed is in the way of the others.
    """

    def __init__(self, hosts: HostTable) -> None:
        """Start with the hosts as they are before the first slot."""
        self._hosts = hosts
        self._held: list[Held] = []
        self._batches: dict[str, Batch] = {}

    @property
    def count(self) -> int:
        """How many slots were placed so far."""
        return len(self._held)

    def rewind(self, count: int) -> tuple[Held, ...]:
        """Take back all slots but the first ones; return what was undone."""
        undone = tuple(self._held[count:])
        if undone:
            del self._held[count:]
            self._batches.clear()
        return undone

    def repeat(self, undone: Sequence[Held]) -> None:
        """Place slots again that ``rewind`` took back, where they were."""
        for held in undone:
            self._hold(held)

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
        request = slot_request(ask)
        batch = self._batch_for(judged_by(ask.pipeline or SLOT_PIPELINE, request))
        decision = batch.decide(request, max_candidates=MAX_CANDIDATES, only_row=only_row)
        if decision.host_name is not None:
            self._hold(Held(self._hosts.row_of[decision.host_name], decision.request), but=batch)
        return decision

    def look(self, ask: SlotAsk) -> Evaluation | None:
        """Return what a slot sees of every host now; None where a filter cannot judge."""
        try:
            request = slot_request(ask)
            pipeline = judged_by(ask.pipeline or SLOT_PIPELINE, request)
            return self._batch_for(pipeline).evaluation(request)
        except PipelineRunError:
            return None

    def passing(self, asks: Iterable[SlotAsk]) -> frozenset[str]:
        """Return the hosts that all asks may go to, whatever room there is; none is taken."""
        everywhere = np.ones(len(self._hosts), dtype=np.bool_)
        for ask in asks:
            request = replace(slot_request(ask), needs=NO_NEEDS)
            try:
                pipeline = without_room(ask.pipeline or SLOT_PIPELINE)
                found = self._batch_for(pipeline).evaluation(request)
            except PipelineRunError:
                return frozenset()
            everywhere &= found.survivors()
        return frozenset(self._hosts.names[row] for row in np.flatnonzero(everywhere).tolist())

    def note(self, ask: SlotAsk, host_name: str) -> None:
        """Count a VM as being on a host from now on, for its server group; it takes no room."""
        request = replace(slot_request(ask), memory_bytes=0, vcpus=0, needs=NO_NEEDS)
        self._hold(Held(self._hosts.row_of[host_name], request))

    def _hold(self, held: Held, *, but: Batch | None = None) -> None:
        self._held.append(held)
        for batch in self._batches.values():
            if batch is not but:
                batch.place(held.row, held.request)

    def _batch_for(self, pipeline: CompiledPipeline) -> Batch:
        batch = self._batches.get(pipeline.name)
        if batch is None:
            batch = self._batches[pipeline.name] = Batch(self._hosts, pipeline)
            for held in self._held:
                batch.place(held.row, held.request)
        return batch


def judged_by(pipeline: CompiledPipeline, request: PlacementRequest) -> CompiledPipeline:
    """Return the pipeline that judges a slot: its own, and what it needs besides if it needs it."""
    if not any(request.needs):
        return pipeline
    name, filters = f"{pipeline.name} with needs", (*pipeline.filters, filter_has_other_resources)
    return replace(pipeline, name=name, filters=filters)


def without_room(pipeline: CompiledPipeline) -> CompiledPipeline:
    """Return the filters of a pipeline that do not ask for room, and no weighers."""
    kept = tuple(step for step in pipeline.filters if not step.measures_room)
    return replace(pipeline, name=f"{pipeline.name} without room", filters=kept, weighers=())


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
    request = slot_request(ask)
    batch = Batch(hosts, judged_by(ask.pipeline or SLOT_PIPELINE, request))
    try:
        evaluation = batch.evaluation(request)
    except PipelineRunError:
        return np.zeros(len(hosts), dtype=np.bool_), np.full(len(hosts), -np.inf)
    return evaluation.survivors(), evaluation.scores


def table_with_released(
    hosts: HostTable,
    deltas: Mapping[int, ResourceVector],
    needs: Mapping[int, Needs] = NOTHING_ELSE,
) -> HostTable:
    """Return the host table after committed blocks changed.

    Args:
        hosts: Table before.
        deltas: Host key to change in bytes and vCPUs, negative for released room. Hosts that are
            not in the table are ignored.
        needs: Likewise to change of network, disk I/O and GPUs.
    """
    changed = sorted(
        {host_id for host_id, delta in deltas.items() if delta != ZERO}
        | {host_id for host_id, held in needs.items() if any(held)}
    )
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
    blocks = [deltas.get(host_id, ZERO) for host_id in known_ids]
    columns: dict[str, Int64Column] = {
        "committed_memory_bytes": hosts.committed_memory_bytes[rows]
        + np.array([block.memory_bytes for block in blocks], dtype=np.int64),
        "committed_vcpus": hosts.committed_vcpus[rows]
        + np.array([block.vcpus for block in blocks], dtype=np.int64),
    }
    if needs:
        held = [needs.get(host_id, NO_NEEDS) for host_id in known_ids]
        columns["others_left"] = hosts.others_left[rows] - np.array(held, dtype=np.int64).reshape(
            -1, len(NO_NEEDS)
        )
    return hosts.replace_columns(rows, columns)
