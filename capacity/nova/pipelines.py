"""Pipelines as rows: saving, versions, and the ready ones of this process (spec scheduling, 4).

Saving joins the caller's transaction, because the admin's form view opens one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from django.conf import settings
from django.db import transaction
from django.db.models import F

from capacity.locks import LockSpace, take_lock
from capacity.models import Pipeline, PipelineKind, PipelineVersion
from capacity.nova.knowledge import current_knowledge
from capacity.nova.pipeline_document import (
    Document,
    document_changes,
    document_from_spec,
    spec_from_document,
)
from capacity.nova.pipeline_safety import pipeline_warnings
from core.process_cache import Fingerprint, ProcessCache
from journal.actors import Actor
from journal.errors import HeadroomError, InvalidInput
from journal.models import AuditEntry
from journal.services import Change, record_changes
from scheduling import evaluation
from scheduling.knowledge import NO_KNOWLEDGE, Knowledge
from scheduling.pipelines import (
    InvalidPipelineError,
    LoadedPipeline,
    PipelineSpec,
    check_pipeline,
    compile_pipeline,
    load_pipeline,
    needs_knowledge,
)
from scheduling.shipped_pipelines import SHIPPED

TOPIC = "pipeline"
OBJECT_TYPE = "pipeline"
SHIPPED_ACTOR = Actor(name="system:shipped-pipelines")

PIPELINES_FINGERPRINT = "SELECT * FROM capacity_pipeline_mark()"


class StalePipeline(HeadroomError):  # noqa: N818 - a state of the caller, not a defect
    """A definition was changed by another since the caller read it."""

    code = "stale_pipeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivePipeline:
    """A pipeline that may be run.

    Attributes:
        version: Version of the definition it was made from.
        ignore_preselection: Whether the caller's hosts are replaced by all candidates.
        create_history: Whether decisions made with it are recorded.
        pipeline: What the engine runs.
    """

    name: str
    version: int
    ignore_preselection: bool
    create_history: bool = True
    pipeline: evaluation.CompiledPipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """What saving a definition would do.

    Attributes:
        spec: The definition.
        verb: ``create``, ``change`` or ``keep``.
        version: Version that the row has afterwards.
        changes: What differs, one line each.
        warnings: What will be ignored.
        problems: Why it is refused; empty when it may be saved.
    """

    spec: PipelineSpec
    verb: str
    version: int
    changes: tuple[str, ...]
    warnings: tuple[str, ...]
    problems: tuple[str, ...]


def active_pipelines(asked: Fingerprint | None = None) -> Mapping[str, ActivePipeline]:
    """Return the pipelines that may be run, by name; kept while rows and knowledge stay the same.

    Detectors, and pipelines with a filter that cannot be initialised, are not among them.

    Args:
        asked: What the rows of :data:`PIPELINES` were just said to be.

    Source: spec scheduling, 4 "Loading".
    """
    return PIPELINES.current(asked) or {}


def usable_pipeline(name: str) -> evaluation.CompiledPipeline:
    """Return a pipeline as its row defines it, as it was shipped if there is no usable row."""
    active = active_pipelines().get(name)
    return compile_pipeline(SHIPPED[name]) if active is None else active.pipeline


def spec_of(row: Pipeline) -> PipelineSpec:
    """Return the definition that a row holds.

    Raises:
        InvalidPipelineError: the row was written by something else than this module.
    """
    return spec_from_document(
        {
            "name": row.name,
            "scheduling_domain": row.scheduling_domain,
            "type": row.kind,
            "description": row.description,
            "ignore_preselection": row.ignore_preselection,
            "create_history": row.create_history,
            "filters": row.filters,
            "weighers": row.weighers,
            "detectors": row.detectors,
        },
        version=row.version,
    )


def load_row(
    row: Pipeline, *, knowledge: Callable[[], Knowledge] = current_knowledge
) -> LoadedPipeline:
    """Return what a row's definition becomes in this process, with its conditions.

    Args:
        row: The pipeline.
        knowledge: Returns the facts; called only if a step needs them.

    Raises:
        InvalidPipelineError: the row was written by something else than this module.
    """
    spec = spec_of(row)
    return load_pipeline(spec, knowledge() if needs_knowledge(spec) else NO_KNOWLEDGE)


def plan_pipeline(spec: PipelineSpec) -> PipelinePlan:
    """Return what saving a definition would do; nothing is written."""
    return _plan(spec, Pipeline.objects.filter(name=spec.name).first())


def save_pipeline(
    spec: PipelineSpec,
    *,
    actor: Actor,
    request_id: str,
    reason: str = "",
    expected_version: int | None = None,
) -> PipelinePlan:
    """Create or change a pipeline as a new version; nothing is written when nothing differs.

    Args:
        spec: The definition; its version is not looked at.
        reason: Why, for the audit trail.
        expected_version: Version the caller has read; None overwrites whatever there is.

    Returns:
        What was done.

    Raises:
        InvalidInput: the definition is refused; the message joins all problems.
        StalePipeline: the row has another version than expected.

    Source: spec scheduling, 4 "Saving a definition".
    """
    with transaction.atomic():
        take_lock(LockSpace.PIPELINE, [spec.name])  # two writers may both find no row to lock
        row = Pipeline.objects.select_for_update(no_key=True).filter(name=spec.name).first()
        plan = _plan(spec, row)
        if plan.problems:
            raise InvalidInput("; ".join(plan.problems), code="invalid_pipeline")
        stored_version = row.version if row is not None else 0
        if expected_version is not None and expected_version != stored_version:
            raise StalePipeline(
                f"pipeline {spec.name} is at version {stored_version}, not {expected_version}:"
                " look at it again",
                version=stored_version,
            )
        if plan.verb != "keep":
            _write(plan, row, actor=actor, request_id=request_id, reason=reason)
    return plan


def remove_pipeline(*, name: str, actor: Actor, request_id: str, reason: str = "") -> bool:
    """Remove a pipeline and its versions; returns whether there was one.

    A shipped one stays away: :func:`ensure_shipped_pipelines` does not bring back what somebody
    removed.
    """
    with transaction.atomic():
        take_lock(LockSpace.PIPELINE, [name])
        row = Pipeline.objects.select_for_update().filter(name=name).first()
        if row is None:
            return False
        before = document_from_spec(spec_of(row))
        row.delete()
        _record("removed", name, before, None, actor=actor, request_id=request_id, reason=reason)
    return True


def ensure_shipped_pipelines(*, request_id: str) -> tuple[str, ...]:
    """Create the pipelines of the product that are missing and were never removed.

    What nobody edited follows the product as a new version; what somebody did stays as it is, see
    :func:`stored_pipeline_warnings`.

    Returns:
        Names of those created or changed.

    Source: spec scheduling, 9.
    """
    known = set(Pipeline.objects.values_list("name", flat=True))
    followed = [
        spec.name
        for spec in (SHIPPED[name] for name in sorted(known & _unedited()))
        if _follow(spec, request_id=request_id)
    ]
    missing = [spec for name, spec in SHIPPED.items() if name not in known]
    if not missing:
        return tuple(followed)
    removed = set(
        AuditEntry.objects.filter(
            object_type=OBJECT_TYPE,
            action=f"{OBJECT_TYPE}_removed",
            object_id__in=[spec.name for spec in missing],
        ).values_list("object_id", flat=True)
    )
    wanted = [spec for spec in missing if spec.name not in removed]
    for spec in wanted:
        save_pipeline(spec, actor=SHIPPED_ACTOR, request_id=request_id, reason="shipped")
    return (*followed, *(spec.name for spec in wanted))


def _unedited() -> set[str]:
    """Return the shipped pipelines of which the product wrote the version in force."""
    written = PipelineVersion.objects.filter(
        pipeline__name__in=list(SHIPPED), version=F("pipeline__version"), actor=SHIPPED_ACTOR.name
    )
    return set(written.values_list("pipeline__name", flat=True))


def _follow(spec: PipelineSpec, *, request_id: str) -> bool:
    """Bring an unedited pipeline to its shipped definition; False where it has it already."""
    plan = plan_pipeline(spec)
    if plan.verb == "keep":
        return False
    try:
        save_pipeline(
            spec,
            actor=SHIPPED_ACTOR,
            request_id=request_id,
            reason="shipped",
            expected_version=plan.version - 1,
        )
    except StalePipeline:
        return False  # somebody edited it just now
    return True


def stored_pipeline_warnings() -> Mapping[str, tuple[str, ...]]:
    """Return what stored pipelines lack that slots and VMs need to be safe, by name."""
    chosen = settings.HEADROOM.slots.group_pipelines
    rows = Pipeline.objects.filter(kind=PipelineKind.FILTER_WEIGHER).order_by("name")
    specs = []
    for row in rows:
        try:
            specs.append(spec_of(row))
        except InvalidPipelineError:
            continue  # not among the usable ones either
    return pipeline_warnings(specs, set(chosen.values()), judges_all="*" in chosen)


def _plan(spec: PipelineSpec, row: Pipeline | None) -> PipelinePlan:
    admission = check_pipeline(spec)
    before = document_from_spec(spec_of(row)) if row is not None else None
    after = document_from_spec(spec)
    version = row.version if row is not None else 0
    verb = "create" if before is None else "keep" if before == after else "change"
    return PipelinePlan(
        spec=spec,
        verb=verb,
        version=version if verb == "keep" else version + 1,
        changes=document_changes(before, after) if verb != "keep" else (),
        warnings=admission.warnings,
        problems=admission.problems,
    )


def _write(
    plan: PipelinePlan, row: Pipeline | None, *, actor: Actor, request_id: str, reason: str
) -> None:
    spec = plan.spec
    before = document_from_spec(spec_of(row)) if row is not None else None
    document = document_from_spec(spec)
    row = row or Pipeline(name=spec.name)
    row.scheduling_domain = spec.scheduling_domain
    row.kind = PipelineKind(spec.type)
    row.description = spec.description
    row.ignore_preselection = spec.ignore_preselection
    row.create_history = spec.create_history
    row.filters = document["filters"]
    row.weighers = document["weighers"]
    row.detectors = document["detectors"]
    row.version = plan.version
    row.save()
    PipelineVersion.objects.create(
        pipeline=row, version=plan.version, definition=document, actor=actor.name
    )
    verb = "created" if before is None else "changed"
    _record(verb, spec.name, before, document, actor=actor, request_id=request_id, reason=reason)


def _record(
    verb: str,
    name: str,
    before: Document | None,
    after: Document | None,
    *,
    actor: Actor,
    request_id: str,
    reason: str,
) -> None:
    change = Change(
        action=f"{OBJECT_TYPE}_{verb}",
        object_type=OBJECT_TYPE,
        object_id=name,
        before=before,
        after=after,
        reason=reason,
        topic=TOPIC,
    )
    record_changes([change], actor=actor, request_id=request_id)


def _load_active() -> Mapping[str, ActivePipeline]:
    active: dict[str, ActivePipeline] = {}
    knowledge = cache(current_knowledge)
    rows = Pipeline.objects.filter(kind=PipelineKind.FILTER_WEIGHER).order_by("name")
    for row in rows:
        try:
            loaded = load_row(row, knowledge=knowledge)
        except InvalidPipelineError:
            continue
        if loaded.pipeline is not None:
            active[row.name] = ActivePipeline(
                name=row.name,
                version=row.version,
                ignore_preselection=row.ignore_preselection,
                create_history=row.create_history,
                pipeline=replace(loaded.pipeline, version=row.version),
            )
    return MappingProxyType(active)


PIPELINES = ProcessCache(PIPELINES_FINGERPRINT, _load_active, reader="pipelines")
