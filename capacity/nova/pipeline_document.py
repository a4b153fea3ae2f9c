"""Definitions of pipelines as documents: rows, YAML files and forms hold them (scheduling, 4).

A document is what JSON and YAML can say, with the field names of the specification; a parameter is
``{key: ..., stringValue: ...}`` with one of six value fields. A field that is null is as if it were
not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from scheduling.pipelines import InvalidPipelineError, PipelineSpec, StepParam, StepSpec

MAX_NAME_LENGTH = 255
MAX_STEPS = 100
Document = dict[str, Any]  # Any: what JSON and YAML can say
_ROLES = ("filters", "weighers", "detectors")
_PROBLEMS = {
    "extra_forbidden": "unknown field",
    "invalid_key": "unknown field",
    "list_type": "must be a list",
    "missing": "must not be empty",
    "too_long": "has {actual_length} steps, at most {max_length} are allowed",
}


def _wrong(problem: str) -> PydanticCustomError:
    return PydanticCustomError("wrong", "{problem}", {"problem": problem})


def _must_be(wanted: str) -> WrapValidator:
    """Say what a field must be, whatever is wrong in it."""

    def checked(content: object, handler: ValidatorFunctionWrapHandler) -> object:
        try:
            return handler(content)
        except ValidationError:
            raise _wrong(f"must be {wanted}") from None

    return WrapValidator(checked)


def _storable(text: str, most: float = float("inf")) -> str:
    if "\x00" in text or len(text) > most:
        raise _wrong("is too long or contains a character that cannot be stored")
    return text


def _short(text: str) -> str:
    return _storable(text, MAX_NAME_LENGTH)


def _given(name: str) -> str:
    if not name:
        raise _wrong(_PROBLEMS["missing"])
    return name


def _without_blanks(name: str) -> str:
    if not name or name != name.strip():
        raise _wrong("must not be empty, nor start or end with a blank")
    return name


_Flag = Annotated[bool, _must_be("true or false")]
_Number = Annotated[float, _must_be("a finite number")]
_Text = Annotated[str, _must_be("a text"), AfterValidator(_storable)]
_ShortText = Annotated[str, _must_be("a text"), AfterValidator(_short)]
_Name = Annotated[_ShortText, AfterValidator(_given)]


class _Fields(BaseModel, extra="forbid", strict=True, allow_inf_nan=False):
    """An object of a document; its fields are those of the definition that it becomes."""

    shape: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, content: object) -> object:
        if not isinstance(content, dict):
            raise _wrong(cls.shape)
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: item for key, item in content.items() if item is not None or key not in known}


class _Param(_Fields):
    shape = "must be an object with a key and a value"

    key: _Name
    string: Annotated[str, _must_be("a text")] | None = Field(None, alias="stringValue")
    boolean: _Flag | None = Field(None, alias="boolValue")
    integer: Annotated[int, _must_be("a whole number")] | None = Field(None, alias="intValue")
    number: _Number | None = Field(None, alias="floatValue")
    strings: Annotated[list[str], _must_be("a list of texts"), AfterValidator(tuple)] | None = (
        Field(None, alias="stringListValue")
    )
    number_map: Annotated[dict[str, float], _must_be("a map of texts to finite numbers")] | None = (
        Field(None, alias="floatMapValue")
    )


class _Step(_Fields):
    shape = "must be an object with a name"

    name: _Name
    params: list[_Param] = []
    description: _Text = ""

    def spec(self) -> StepSpec:
        """Return the step that this describes."""
        params = tuple(StepParam(**dict(param)) for param in self.params)
        return StepSpec(**{**dict(self), "params": params})


class _Weigher(_Step):
    multiplier: _Number = 1.0


class _Pipeline(_Fields):
    shape = "a pipeline must be an object with fields"

    name: Annotated[_ShortText, AfterValidator(_without_blanks)] = Field("", validate_default=True)
    scheduling_domain: _ShortText = "nova"
    type: _ShortText = "filter-weigher"
    description: _Text = ""
    ignore_preselection: _Flag = False
    create_history: _Flag = True
    filters: list[_Step] = Field([], max_length=MAX_STEPS)
    weighers: list[_Weigher] = Field([], max_length=MAX_STEPS)
    detectors: list[_Step] = Field([], max_length=MAX_STEPS)


def spec_from_document(document: object, *, version: int = 0) -> PipelineSpec:
    """Return the definition that a document describes; whether it may be saved is another matter.

    Args:
        document: What a JSON or YAML parser returned.
        version: Version that the definition has.

    Raises:
        InvalidPipelineError: the document is not of this shape; the text joins all problems.
    """
    try:
        read = _Pipeline.model_validate(document)
    except ValidationError as refused:
        raise InvalidPipelineError(_problems(refused)) from None
    steps = {role: tuple(step.spec() for step in getattr(read, role)) for role in _ROLES}
    return PipelineSpec(**{**dict(read), **steps}, version=version)


def _problems(refused: ValidationError) -> str:
    lines = []
    for error in refused.errors(include_url=False, include_input=False):
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
        path = "".join(parts).removeprefix(".")
        problem = _PROBLEMS.get(error["type"], error["msg"]).format(**error.get("ctx", {}))
        lines.append(f"{path}: {problem}" if path else problem)
    return "; ".join(lines)


def document_from_spec(spec: PipelineSpec) -> Document:
    """Return the document of a definition, in the order of the specification; no version."""
    return {
        "name": spec.name,
        "scheduling_domain": spec.scheduling_domain,
        "type": spec.type,
        "description": spec.description,
        "ignore_preselection": spec.ignore_preselection,
        "create_history": spec.create_history,
        "filters": [_step_document(step) for step in spec.filters],
        "weighers": [_step_document(step, is_weigher=True) for step in spec.weighers],
        "detectors": [_step_document(step) for step in spec.detectors],
    }


def document_changes(before: Document | None, after: Document) -> tuple[str, ...]:
    """Return what differs between two documents, one line for each field or step, for people.

    Args:
        before: The document as it was; None for a new pipeline.
        after: The document as it shall be.
    """
    old = before or {}
    lines: list[str] = []
    for name in after:
        if name in _ROLES:
            lines += _step_changes(name, old.get(name, []), after[name])
        elif old.get(name) != after[name] and (before is not None or after[name]):
            was = "" if before is None else f" (was {old.get(name)!r})"
            lines.append(f"{name}: {after[name]!r}{was}")
    return tuple(lines)


def _step_changes(
    role: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> list[str]:
    if list(before) == list(after):
        return []
    noun = role.removesuffix("s")
    old = {step["name"]: step for step in before}
    new = {step["name"]: step for step in after}
    lines = [f"{noun} {name} is removed" for name in old if name not in new]
    for place, (name, step) in enumerate(new.items(), start=1):
        if name not in old:
            lines.append(f"{noun} {name} is added at place {place}{_step_text(step)}")
        elif old[name] != step:
            lines.append(f"{noun} {name} changes:{_step_text(old[name])} ->{_step_text(step)}")
    kept_before = [name for name in old if name in new]
    kept_after = [name for name in new if name in old]
    if kept_before != kept_after:
        lines.append(f"{role} change places: {', '.join(new)}")
    if len(old) != len(before) or len(new) != len(after):
        lines.append(f"{role}: {len(before)} -> {len(after)} steps, some with the same name")
    return lines


def _step_text(step: Mapping[str, Any]) -> str:
    parts = [
        f"{param['key']}={content}"
        for param in step.get("params", [])
        for name, content in param.items()
        if name != "key"
    ]
    if "multiplier" in step:
        parts.append(f"multiplier={step['multiplier']}")
    return f" ({', '.join(parts)})" if parts else " (no parameters)"


def _step_document(step: StepSpec, *, is_weigher: bool = False) -> Document:
    document: Document = {"name": step.name}
    if step.params:
        document["params"] = [_param_document(param) for param in step.params]
    if is_weigher:
        document["multiplier"] = step.multiplier
    if step.description:
        document["description"] = step.description
    return document


def _param_document(param: StepParam) -> Document:
    document: Document = {"key": param.key}
    for attribute, field in _Param.model_fields.items():
        content = getattr(param, attribute)
        if isinstance(content, tuple):
            content = list(content)
        elif isinstance(content, Mapping):
            content = dict(content)
        if content is not None:
            document[field.alias or attribute] = content
    return document
