"""Definitions of pipelines: checking and compiling them (spec scheduling, 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduling.evaluation import CompiledPipeline
from scheduling.filters.base import Filter
from scheduling.knowledge import NO_KNOWLEDGE, Knowledge
from scheduling.step_catalogue import (
    DETECTORS,
    FILTERS,
    WEIGHERS,
    ParamKind,
    ParamValue,
    StepFactory,
)
from scheduling.weighers.base import Weigher

TYPE_FILTER_WEIGHER = "filter-weigher"
TYPE_DETECTOR = "detector"
SCHEDULING_DOMAINS = ("nova", "cinder", "manila", "machines", "pods")

_VALUE_FIELDS: Mapping[str, ParamKind] = {
    "string": ParamKind.STRING,
    "boolean": ParamKind.BOOLEAN,
    "integer": ParamKind.INTEGER,
    "number": ParamKind.NUMBER,
    "strings": ParamKind.STRINGS,
    "number_map": ParamKind.NUMBER_MAP,
}


class InvalidPipelineError(ValueError):
    """A definition that cannot be run; the text joins everything that is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParam:
    """A parameter of a step: a key and exactly one value.

    Attributes:
        key: Name of the parameter.
        string: ``stringValue``.
        boolean: ``boolValue``.
        integer: ``intValue``.
        number: ``floatValue``.
        strings: ``stringListValue``.
        number_map: ``floatMapValue``.
    """

    key: str
    string: str | None = None
    boolean: bool | None = None
    integer: int | None = None
    number: float | None = None
    strings: tuple[str, ...] | None = None
    number_map: Mapping[str, float] | None = None

    def given(self) -> list[tuple[ParamKind, ParamValue]]:
        """Return the values that are set, with their kinds; one if the parameter is valid."""
        return [
            (kind, getattr(self, field_name))
            for field_name, kind in _VALUE_FIELDS.items()
            if getattr(self, field_name) is not None
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """A step of a definition.

    Attributes:
        name: Name of the step.
        params: Its parameters.
        description: For people.
        multiplier: Factor of a weigher's squashed activation; filters and detectors have none.
    """

    name: str
    params: tuple[StepParam, ...] = ()
    description: str = ""
    multiplier: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """A definition of a pipeline.

    Attributes:
        name: Unique name, by which requests ask for it.
        scheduling_domain: ``nova`` for hosts of VMs.
        type: ``filter-weigher`` or ``detector``.
        description: For people.
        ignore_preselection: Replace the caller's hosts by all candidates.
        create_history: False for legacy definitions whose decisions are not recorded.
        filters: Filters in order.
        weighers: Weighers in order.
        detectors: Detectors in order.
        version: Version of the definition.
    """

    name: str
    scheduling_domain: str = "nova"
    type: str = TYPE_FILTER_WEIGHER
    description: str = ""
    ignore_preselection: bool = False
    create_history: bool = True
    filters: tuple[StepSpec, ...] = ()
    weighers: tuple[StepSpec, ...] = ()
    detectors: tuple[StepSpec, ...] = ()
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Whether a definition may be saved.

    Attributes:
        warnings: What will be ignored.
        problems: Why it is rejected; empty if it is accepted.
    """

    warnings: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def is_accepted(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPipeline:
    """A definition made ready to run.

    Attributes:
        pipeline: The pipeline; None if it cannot be used.
        failed_filters: Filter -> why it could not be initialised.
        failed_weighers: Weigher -> why it could not be initialised; it is left out.
        unknown_steps: Steps that nobody knows; they are left out.
    """

    pipeline: CompiledPipeline | None
    failed_filters: Mapping[str, str]
    failed_weighers: Mapping[str, str]
    unknown_steps: tuple[str, ...]

    @property
    def conditions(self) -> Mapping[str, tuple[bool, str, str]]:
        """Return condition -> (status, reason, message).

        Source: spec scheduling, 4 "Loading".
        """
        failed = {**self.failed_filters, **self.failed_weighers}
        causes = "; ".join(f"{name}: {why}" for name, why in failed.items())
        message = f"{len(failed)} steps failed: {causes}" if failed else ""
        reason = "PipelineInitFailed" if self.failed_filters else "SomeStepsNotReady"
        is_ready = not self.failed_filters
        unknown = ", ".join(self.unknown_steps)
        return {
            "Ready": (
                is_ready,
                "PipelineReady" if is_ready else "PipelineInitFailed",
                "" if is_ready else message,
            ),
            "AllStepsReady": (not failed, reason if failed else "AllStepsReady", message),
            "AllStepsIndexed": (
                not unknown,
                "PipelineContainsUnknownSteps" if unknown else "AllStepsIndexed",
                f"unknown steps: {unknown}" if unknown else "",
            ),
        }


def check_pipeline(spec: PipelineSpec) -> Admission:
    """Judge a definition before it is saved.

    Unknown steps are warnings, so that a rollout of definitions and of code works in either order.

    Source: spec scheduling, 4 "Saving a definition".
    """
    warnings: list[str] = []
    problems: list[str] = []
    if spec.type not in {TYPE_FILTER_WEIGHER, TYPE_DETECTOR}:
        problems.append(f"unknown pipeline type: {spec.type}")
    if spec.scheduling_domain not in SCHEDULING_DOMAINS:
        problems.append(f"unknown scheduling domain: {spec.scheduling_domain}")
    if spec.type == TYPE_FILTER_WEIGHER and spec.detectors:
        problems.append("a filter-weigher pipeline has no detectors")
    if spec.type == TYPE_DETECTOR and (spec.filters or spec.weighers):
        problems.append("a detector pipeline has no filters or weighers")
    for role, steps, catalogue in _roles(spec):
        for step in steps:
            factory = catalogue.get(step.name)
            if factory is None:
                warnings.append(f"unknown {role} {step.name} will be ignored")
                continue
            problems += [
                f"{role} {step.name}: {problem}" for problem in param_problems(step, factory)
            ]
    return Admission(warnings=tuple(warnings), problems=tuple(problems))


def param_problems(step: StepSpec, factory: StepFactory) -> list[str]:
    """Return what is wrong with the parameters of a known step.

    The factory is tried too, as far as it does not need knowledge, so that bounds are checked.
    """
    problems: list[str] = []
    seen: set[str] = set()
    for param in step.params:
        if param.key in seen:
            problems.append(f"duplicate parameter {param.key}")
        seen.add(param.key)
        given = param.given()
        if len(given) != 1:
            problems.append(f"parameter {param.key} needs exactly one value, not {len(given)}")
        elif param.key not in factory.params:
            problems.append(f"unknown parameter {param.key}")
        elif not _is_of_kind(given[0][0], factory.params[param.key]):
            problems.append(
                f"parameter {param.key} must be {factory.params[param.key].value},"
                f" not {given[0][0].value}"
            )
    if problems:
        return problems
    try:
        factory.check(_arguments(step, factory))
    except ValueError as problem:
        problems.append(str(problem))
    return problems


def load_pipeline(spec: PipelineSpec, knowledge: Knowledge = NO_KNOWLEDGE) -> LoadedPipeline:
    """Make a definition ready to run, as far as its steps can be initialised.

    A filter that fails takes the whole pipeline with it, a weigher is left out.

    Source: spec scheduling, 4 "Loading".
    """
    unknown: list[str] = []
    failed: dict[str, dict[str, str]] = {"filter": {}, "weigher": {}, "detector": {}}
    built: dict[str, list[object]] = {"filter": [], "weigher": [], "detector": []}
    for role, steps, catalogue in _roles(spec):
        for step in steps:
            factory = catalogue.get(step.name)
            if factory is None:
                unknown.append(step.name)
                continue
            problems = param_problems(step, factory)
            try:
                if not problems:
                    built[role].append(_built(step, factory, knowledge))
            except ValueError as problem:
                problems = [str(problem)]
            if problems:
                failed[role][step.name] = "; ".join(problems)
    pipeline = None
    if not failed["filter"]:
        pipeline = CompiledPipeline(
            name=spec.name,
            filters=tuple(step for step in built["filter"] if isinstance(step, Filter)),
            weighers=tuple(step for step in built["weigher"] if isinstance(step, Weigher)),
            ignore_preselection=spec.ignore_preselection,
            version=spec.version,
        )
    return LoadedPipeline(
        pipeline=pipeline,
        failed_filters=failed["filter"],
        failed_weighers={**failed["weigher"], **failed["detector"]},
        unknown_steps=tuple(unknown),
    )


def needs_knowledge(spec: PipelineSpec) -> bool:
    """Return whether a step of a definition is left out without knowledge."""
    return any(
        step.name in catalogue and catalogue[step.name].needs_knowledge
        for _, steps, catalogue in _roles(spec)
        for step in steps
    )


def compile_pipeline(spec: PipelineSpec, knowledge: Knowledge = NO_KNOWLEDGE) -> CompiledPipeline:
    """Return a pipeline ready to run, without unknown steps and weighers that lack knowledge.

    Raises:
        InvalidPipelineError: If the definition would be rejected.
    """
    loaded = load_pipeline(spec, knowledge)
    problems = list(check_pipeline(spec).problems)
    problems += [f"{name}: {why}" for name, why in loaded.failed_filters.items() if not problems]
    if problems or loaded.pipeline is None:
        raise InvalidPipelineError("; ".join(problems))
    return loaded.pipeline


def _roles(
    spec: PipelineSpec,
) -> Iterable[tuple[str, Sequence[StepSpec], Mapping[str, StepFactory]]]:
    yield "filter", spec.filters, FILTERS
    yield "weigher", spec.weighers, WEIGHERS
    yield "detector", spec.detectors, DETECTORS


def _is_of_kind(given: ParamKind, wanted: ParamKind) -> bool:
    return given is wanted or (given is ParamKind.INTEGER and wanted is ParamKind.NUMBER)


def _arguments(step: StepSpec, factory: StepFactory) -> dict[str, ParamValue]:
    return {param.key: param.given()[0][1] for param in step.params if param.key in factory.params}


def _built(step: StepSpec, factory: StepFactory, knowledge: Knowledge) -> object:
    made = factory.build(_arguments(step, factory), knowledge)
    return replace(made, multiplier=step.multiplier) if isinstance(made, Weigher) else made
