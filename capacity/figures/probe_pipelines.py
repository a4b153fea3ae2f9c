"""The pipelines that capacity is probed with, as chosen in the settings (spec liquid, 13.2)."""

from __future__ import annotations

from django.conf import settings

from capacity.figures.zone_capacity import Probes
from capacity.groups.reading import load_group_definitions
from capacity.models import Pipeline, PipelineKind
from capacity.nova.pipelines import active_pipelines, load_row
from capacity.nova.slot_requests import slot_pipelines
from core.changes import ROWS_MARK
from journal.statements import fetch_value
from scheduling.pipelines import InvalidPipelineError

ROWS = f"SELECT {ROWS_MARK} FROM capacity_pipeline"  # noqa: S608 - constants only


def current_probes() -> Probes:
    """Return the pipelines of the probes, or why they cannot be run.

    A pipeline is a row that somebody may rename or break while the settings keep its name. Then
    nothing is counted by other rules instead: the run fails and says which name is at fault.

    Source: spec liquid, 13.2, 13.5.
    """
    chosen = settings.HEADROOM.capacity
    names = (chosen.total_pipeline, chosen.placeable_pipeline)
    of_groups = settings.HEADROOM.slots.group_pipelines
    slots = slot_pipelines(load_group_definitions(include_retired=True)) if of_groups else {}
    if not any(names):
        return Probes(slots=slots)
    usable = active_pipelines()
    problems = [_problem(name) for name in sorted({*names} - {"", *usable})]
    if problems:
        return Probes(problem="; ".join(problems))
    total, placeable = (usable[name].pipeline if name else None for name in names)
    return Probes(total=total, placeable=placeable, slots=slots)


def probes_fingerprint() -> str:
    """Return a text that changes whenever the choice, or any pipeline, changes.

    Source: spec liquid, 13.2 ("any pipeline change").
    """
    chosen = settings.HEADROOM.capacity
    rows = fetch_value(ROWS)
    of_groups = sorted(settings.HEADROOM.slots.group_pipelines.items())
    return f"{chosen.total_pipeline}|{chosen.placeable_pipeline}|{of_groups}|{rows}"


def _problem(name: str) -> str:
    row = Pipeline.objects.filter(name=name).first()
    if row is None:
        return f"there is no pipeline {name}"
    if row.kind != PipelineKind.FILTER_WEIGHER:
        return f"pipeline {name} has detectors, no filters"
    try:
        failed = load_row(row).failed_filters
    except InvalidPipelineError as error:
        return f"pipeline {name}: {error}"
    return f"pipeline {name}: " + "; ".join(f"{step}: {why}" for step, why in failed.items())
