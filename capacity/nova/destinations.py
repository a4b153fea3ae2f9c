"""Where a VM could be moved now, and which hosts refuse it, each by the first filter that does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from capacity.host_table import current_host_table
from capacity.ledger.slot_request import slot_request
from capacity.nova.nova_call import kvm_pipeline
from capacity.nova.pipelines import usable_pipeline
from capacity.nova.vm_requests import VMBook
from hosts.models import Instance
from journal.errors import InvalidInput
from journal.heavy import Computing, computed_here
from scheduling.evaluation import CompiledPipeline
from scheduling.explain import explain_host
from scheduling.intents import Intent
from scheduling.record import DecisionRecord, record_run
from scheduling.request import PlacementRequest
from scheduling.table import HostTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Hosts that one filter removes.

    Attributes:
        step: Name of the filter, the first in declared order that removes each.
        hosts: Their names, sorted.
        remedy: What would have to change at the first of them, for people.
    """

    step: str
    hosts: tuple[str, ...]
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Destinations:
    """What the scheduler would answer for a VM that leaves its host.

    Attributes:
        intent: Live migration; evacuation from a host that is lost.
        pipeline: Name of the pipeline that judged.
        hosts: Where it may go, best first.
        refusals: Who refuses it, in the order of the filters.
        failure: Why the run came to no result; empty if it did.
    """

    intent: Intent
    pipeline: str
    hosts: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    failure: str


def vm_destinations(vm: Instance, *, computed: Computing = computed_here) -> Destinations:
    """Return where a VM may go from its host; writes nothing.

    Args:
        vm: With its host.
        computed: Where the run is made.

    Raises:
        InvalidInput: the VM takes no memory or no vCPUs, so every host would do.
        PipelineRunError: a step fails for a host that is explained.
    """
    if not (vm.memory_bytes and vm.vcpus):
        raise InvalidInput("the VM takes no memory or no vCPUs: nothing can be asked for it")
    is_lost = vm.host is not None and vm.host.is_lost
    intent = Intent.EVACUATE if is_lost else Intent.LIVE_MIGRATION
    ask = VMBook([vm]).ask_for(vm, intent)
    here = frozenset() if vm.host is None else frozenset({vm.host.name})
    request = slot_request(replace(ask, ignore_hosts=here))
    pipeline = ask.pipeline or usable_pipeline(kvm_pipeline(ask.flavor.extra_specs))
    table = current_host_table()
    return computed(lambda: _judged(table, request, pipeline, intent, here))


def _judged(
    table: HostTable,
    request: PlacementRequest,
    pipeline: CompiledPipeline,
    intent: Intent,
    here: frozenset[str],
) -> Destinations:
    record = record_run(table, request, pipeline)
    refusals = []
    for trace in () if record.failure else record.filters:
        hosts = tuple(sorted(set(_names(record, trace.removed.rows().tolist())) - here))
        if hosts:
            example = explain_host(table, record.request, pipeline, hosts[0])
            remedies = (one.remedy for one in example.objections if one.step == trace.step)
            refusals.append(Refusal(step=trace.step, hosts=hosts, remedy=next(remedies, "")))
    return Destinations(
        intent=intent,
        pipeline=record.pipeline,
        hosts=record.ordered_hosts,
        refusals=tuple(refusals),
        failure=record.failure,
    )


def _names(record: DecisionRecord, rows: Sequence[int]) -> list[str]:
    return [record.names[row] for row in rows]
