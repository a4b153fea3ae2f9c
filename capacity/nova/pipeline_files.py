"""Pipelines as YAML files: all or nothing, and safe to repeat (spec scheduling, 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import yaml
from django.db import transaction

from capacity.models import Pipeline
from capacity.nova.pipeline_document import document_from_spec, spec_from_document
from capacity.nova.pipelines import (
    PipelinePlan,
    plan_pipeline,
    remove_pipeline,
    save_pipeline,
    spec_of,
)
from journal.actors import Actor
from journal.errors import InvalidInput
from scheduling.pipelines import InvalidPipelineError, PipelineSpec

ROOT_FIELD = "pipelines"
MAX_FILE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineImport:
    """What an import did, or would do.

    Attributes:
        plans: One for each pipeline of the files, in order of name.
        removed: Names of pipelines that are in no file, when pruning was asked for.
    """

    plans: tuple[PipelinePlan, ...]
    removed: tuple[str, ...] = ()


def pipelines_as_yaml(names: Iterable[str] | None = None) -> str:
    """Return stored pipelines as a YAML file.

    Args:
        names: Which; all when left out.

    Raises:
        InvalidInput: there is no pipeline with one of the names.
    """
    wanted = None if names is None else sorted(set(names))
    rows = Pipeline.objects.order_by("name")
    if wanted is not None:
        rows = rows.filter(name__in=wanted)
    documents = [document_from_spec(spec_of(row)) for row in rows]
    missing = sorted(set(wanted or ()) - {document["name"] for document in documents})
    if missing:
        raise InvalidInput(f"no pipeline is named {', '.join(missing)}")
    text = yaml.safe_dump({ROOT_FIELD: documents}, sort_keys=False, allow_unicode=True, width=100)
    return str(text)


def parse_pipelines(text: str, *, file_name: str) -> tuple[PipelineSpec, ...]:
    """Return the definitions of a YAML file.

    Args:
        text: Content of the file: ``pipelines: [...]``.
        file_name: For messages.

    Raises:
        InvalidInput: the file is not such YAML; the message joins what is wrong in all pipelines.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_FILE_BYTES:
        raise InvalidInput(f"{file_name}: is larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidInput(f"{file_name}: is not valid YAML: {reason}") from None
    listed = content.get(ROOT_FIELD) if isinstance(content, dict) else None
    if not isinstance(listed, list) or set(content) != {ROOT_FIELD}:
        raise InvalidInput(f"{file_name}: must have one field, {ROOT_FIELD}, that is a list")
    specs: list[PipelineSpec] = []
    problems: list[str] = []
    for place, document in enumerate(listed):
        try:
            specs.append(spec_from_document(document))
        except InvalidPipelineError as error:
            problems.append(f"{file_name}: {ROOT_FIELD}[{place}]: {error}")
    if problems:
        raise InvalidInput("; ".join(problems))
    return tuple(specs)


def import_pipelines(
    specs: Sequence[PipelineSpec],
    *,
    actor: Actor,
    request_id: str,
    is_pruning: bool = False,
    is_dry_run: bool = False,
) -> PipelineImport:
    """Save all definitions, or none.

    Args:
        specs: Definitions, no name twice.
        is_pruning: Remove pipelines that are not among them.
        is_dry_run: Report what would be done, do nothing.

    Raises:
        InvalidInput: a name occurs twice, or a definition is refused; the message joins all.
    """
    ordered = sorted(specs, key=lambda spec: spec.name)
    twice = sorted({a.name for a, b in pairwise(ordered) if a.name == b.name})
    problems = [f"{name}: is defined twice" for name in twice]
    with transaction.atomic(durable=True):
        plans = tuple(plan_pipeline(spec) for spec in ordered)
        problems += [f"{plan.spec.name}: {text}" for plan in plans for text in plan.problems]
        if problems:
            raise InvalidInput("; ".join(problems))
        removed = _others(ordered) if is_pruning else ()
        if not is_dry_run:
            for spec in ordered:
                save_pipeline(spec, actor=actor, request_id=request_id, reason="imported")
            for name in removed:
                remove_pipeline(name=name, actor=actor, request_id=request_id, reason="imported")
    return PipelineImport(plans=plans, removed=removed)


def _others(specs: Sequence[PipelineSpec]) -> tuple[str, ...]:
    kept = [spec.name for spec in specs]
    rows = Pipeline.objects.exclude(name__in=kept).order_by("name")
    return tuple(rows.values_list("name", flat=True))
