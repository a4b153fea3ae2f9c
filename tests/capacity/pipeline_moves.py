"""Random writes to pipelines and the facts behind them, on any connection, and what comes of them.

What a process keeps is compared by what the engine makes of it: definitions that look alike but
rank hosts differently are a difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from django.utils import timezone

from capacity.host_table import current_host_table, table_differences
from capacity.models import Pipeline, PipelineKind, SchedulingKnowledge
from capacity.nova.pipelines import (
    active_pipelines,
    load_row,
    remove_pipeline,
    save_pipeline,
)
from journal.actors import Actor
from scheduling import knowledge as names
from scheduling.evaluation import CompiledPipeline
from scheduling.intents import CallOptions
from scheduling.pipelines import PipelineSpec, StepParam, StepSpec
from scheduling.record import record_run
from scheduling.request import HYPERVISOR_TYPE_KEY, PlacementRequest
from scheduling.resources import GIB
from scheduling.table import HostTable
from tests.capacity.host_table_moves import MOVES, NAMES, PROJECTS, Move, one_of
from tests.process_tables import load_host_table

OPERATOR = Actor(name="operator")
PIPELINES = tuple(f"pipeline-{number}" for number in range(3))
REQUESTS = tuple(
    PlacementRequest(
        request_key=f"vm-{number}",
        memory_bytes=GIB,
        vcpus=1,
        project_id=project,
        flavor_group="g1",
        extra_specs={HYPERVISOR_TYPE_KEY: "qemu"},
        hosts=NAMES[::2],
        weights={name: float(index) for index, name in enumerate(NAMES[::2])},
    )
    for number, project in enumerate(PROJECTS)
)

Answers = Mapping[str, tuple[object, ...]]


_WEIGHTS = StepParam(key="resourceWeights", number_map={"memory": 1.0, "cpu": 0.5})


def _spec(number: int) -> PipelineSpec:
    excluded = StepParam(key="excludedHosts", strings=(one_of(NAMES, number // 3),))
    filters = (
        StepSpec(name="filter_exclude_hosts", params=(excluded,)),
        StepSpec(name="filter_has_enough_capacity"),
        StepSpec(name="filter_allowed_projects"),
        StepSpec(name="filter_aggregate_metadata"),
    )
    weighers = (
        StepSpec(name="kvm_binpack", params=(_WEIGHTS,), multiplier=1.0 - number % 3),
        StepSpec(name="vmware_avoid_long_term_contended_hosts"),
    )
    return PipelineSpec(
        name=one_of(PIPELINES, number),
        ignore_preselection=number % 2 == 0,
        create_history=number % 5 != 0,
        filters=filters[number // 7 % 4 :],
        weighers=weighers[number // 11 % 3 :],
    )


def save(number: int) -> None:
    """Save a definition as an operator does, by the service."""
    save_pipeline(_spec(number), actor=OPERATOR, request_id="move")


def remove(number: int) -> None:
    """Remove a pipeline as an operator does, by the service."""
    remove_pipeline(name=one_of(PIPELINES, number), actor=OPERATOR, request_id="move")


def overwrite(number: int) -> None:
    """Write several definitions at once, past the service and its locks."""
    spec = _spec(number)
    Pipeline.objects.filter(name__in=PIPELINES).update(
        ignore_preselection=spec.ignore_preselection, weighers=[], version=1 + number % 90
    )


def rename(number: int) -> None:
    """Give a pipeline the name of another one, or of none."""
    names_of = (*PIPELINES, "pipeline-other")
    Pipeline.objects.filter(name=one_of(names_of, number)).update(
        name=one_of(names_of, number // 8)
    )


def learn(number: int) -> None:
    """Replace facts that a weigher needs; some have expired already."""
    figures = {"avg_cpu_contention": number % 100, "max_cpu_contention": 100}
    expires_at = timezone.now() - timedelta(hours=1) if number % 7 == 0 else None
    SchedulingKnowledge.objects.update_or_create(
        name=names.LONG_TERM_CONTENTION,
        defaults={"facts": {one_of(NAMES, number): figures}, "expires_at": expires_at},
    )


def forget(_: int) -> None:
    """Remove the facts."""
    SchedulingKnowledge.objects.all().delete()


PIPELINE_MOVES: tuple[Move, ...] = (save, save, save, remove, overwrite, rename, learn, forget)
ALL_MOVES: tuple[Move, ...] = (*MOVES, *PIPELINE_MOVES)


def answers(table: HostTable, pipelines: Mapping[str, CompiledPipeline]) -> Answers:
    """Return what the engine answers by each pipeline: ranking and scores, or its failure."""
    found: dict[str, tuple[object, ...]] = {}
    for name in sorted(pipelines):
        runs = [record_run(table, request, pipelines[name], CallOptions()) for request in REQUESTS]
        found[name] = tuple(
            (
                run.pipeline_version,
                run.failure,
                tuple(zip(run.ordered_hosts, run.scores.tolist(), strict=True)),
            )
            for run in runs
        )
    return found


def assert_pipelines_as_if_loaded_anew(table: HostTable, rebuilt: HostTable) -> None:
    """Check that the pipelines of this process say what the rows say, by what the engine answers.

    Args:
        table: Host table that the process uses.
        rebuilt: One built anew at the same moment.
    """
    active = active_pipelines()
    rows = list(Pipeline.objects.filter(kind=PipelineKind.FILTER_WEIGHER))
    assert {
        name: (one.version, one.ignore_preselection, one.create_history)
        for name, one in active.items()
    } == {row.name: (row.version, row.ignore_preselection, row.create_history) for row in rows}
    loaded = {row.name: (load_row(row).pipeline, row.version) for row in rows}
    assert answers(table, {name: one.pipeline for name, one in active.items()}) == answers(
        rebuilt,
        {
            name: replace(pipeline, version=version)
            for name, (pipeline, version) in loaded.items()
            if pipeline is not None
        },
    )


def assert_as_if_loaded_anew() -> None:
    """Check that host table and pipelines of this process say what the rows say."""
    table, rebuilt = current_host_table(), load_host_table()
    assert table_differences(table, rebuilt) == {}
    assert_pipelines_as_if_loaded_anew(table, rebuilt)
