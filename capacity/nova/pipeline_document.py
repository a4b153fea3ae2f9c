"""Definitions of pipelines as documents: rows, YAML files and forms hold them (scheduling, 4).

A document is what JSON and YAML can say, with the field names of the specification; a parameter is
``{key: ..., stringValue: ...}`` with one of six value fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scheduling.pipelines import InvalidPipelineError, PipelineSpec, StepParam, StepSpec

MAX_NAME_LENGTH = 255
MAX_STEPS = 100
Document = dict[str, Any]  # Any: what JSON and YAML can say


def _text(content: object) -> str | None:
    return content if isinstance(content, str) else None


def _boolean(content: object) -> bool | None:
    return content if isinstance(content, bool) else None


def _integer(content: object) -> int | None:
    return content if isinstance(content, int) and not isinstance(content, bool) else None


def _number(content: object) -> float | None:
    if isinstance(content, bool) or not isinstance(content, int | float):
        return None
    try:
        number = float(content)
    except OverflowError:
        return None
    return number if abs(number) < float("inf") else None


def _texts(content: object) -> tuple[str, ...] | None:
    if isinstance(content, list) and all(isinstance(item, str) for item in content):
        return tuple(content)
    return None


def _numbers(content: object) -> Mapping[str, float] | None:
    if not isinstance(content, dict):
        return None
    numbers = {key: _number(item) for key, item in content.items() if isinstance(key, str)}
    if len(numbers) != len(content):
        return None
    known = {key: number for key, number in numbers.items() if number is not None}
    return known if len(known) == len(numbers) else None


_Reader = Callable[[object], object]
_PARAM_FIELDS: Mapping[str, tuple[str, _Reader, str]] = {
    "stringValue": ("string", _text, "a text"),
    "boolValue": ("boolean", _boolean, "true or false"),
    "intValue": ("integer", _integer, "a whole number"),
    "floatValue": ("number", _number, "a finite number"),
    "stringListValue": ("strings", _texts, "a list of texts"),
    "floatMapValue": ("number_map", _numbers, "a map of texts to finite numbers"),
}
_STEP_FIELDS = frozenset({"name", "params", "description"})
_WEIGHER_FIELDS = _STEP_FIELDS | {"multiplier"}
_ROLES: Mapping[str, frozenset[str]] = {
    "filters": _STEP_FIELDS,
    "weighers": _WEIGHER_FIELDS,
    "detectors": _STEP_FIELDS,
}
_TEXT_FIELDS = {"name": "", "scheduling_domain": "nova", "type": "filter-weigher"}
_FLAG_FIELDS = {"ignore_preselection": False, "create_history": True}
_FIELDS = frozenset({*_TEXT_FIELDS, *_FLAG_FIELDS, *_ROLES, "description"})


def spec_from_document(document: object, *, version: int = 0) -> PipelineSpec:
    """Return the definition that a document describes; whether it may be saved is another matter.

    Args:
        document: What a JSON or YAML parser returned.
        version: Version that the definition has.

    Raises:
        InvalidPipelineError: the document is not of this shape; the text joins all problems.
    """
    if not isinstance(document, dict):
        raise InvalidPipelineError("a pipeline must be an object with fields")
    problems = _unknown_fields(document, _FIELDS, "")
    texts = {name: _field_text(document, name, problems, default=text, is_short=True)
             for name, text in _TEXT_FIELDS.items()}  # fmt: skip
    description = _field_text(document, "description", problems)
    flags = {name: _field_flag(document, name, problems, default=flag)
             for name, flag in _FLAG_FIELDS.items()}  # fmt: skip
    steps = {role: _steps(document.get(role), role, problems) for role in _ROLES}
    if not texts["name"].strip() or texts["name"] != texts["name"].strip():
        problems.append("name: must not be empty, nor start or end with a blank")
    if problems:
        raise InvalidPipelineError("; ".join(problems))
    return PipelineSpec(
        name=texts["name"],
        scheduling_domain=texts["scheduling_domain"],
        type=texts["type"],
        description=description,
        ignore_preselection=flags["ignore_preselection"],
        create_history=flags["create_history"],
        filters=steps["filters"],
        weighers=steps["weighers"],
        detectors=steps["detectors"],
        version=version,
    )


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
    for name, (attribute, _, _) in _PARAM_FIELDS.items():
        content = getattr(param, attribute)
        if isinstance(content, tuple):
            content = list(content)
        elif isinstance(content, Mapping):
            content = dict(content)
        if content is not None:
            document[name] = content
    return document


def _steps(content: object, role: str, problems: list[str]) -> tuple[StepSpec, ...]:
    if content is None:
        return ()
    if not isinstance(content, list):
        problems.append(f"{role}: must be a list")
        return ()
    if len(content) > MAX_STEPS:
        problems.append(f"{role}: has {len(content)} steps, at most {MAX_STEPS} are allowed")
        return ()
    return tuple(
        _step(item, role, f"{role}[{place}]", problems) for place, item in enumerate(content)
    )


def _step(content: object, role: str, path: str, problems: list[str]) -> StepSpec:
    if not isinstance(content, dict):
        problems.append(f"{path}: must be an object with a name")
        return StepSpec(name="")
    problems += _unknown_fields(content, _ROLES[role], f"{path}.")
    name = _field_text(content, "name", problems, path=f"{path}.", is_short=True)
    if not name:
        problems.append(f"{path}.name: must not be empty")
    multiplier = _number(content.get("multiplier", 1.0))
    if multiplier is None:
        problems.append(f"{path}.multiplier: must be a finite number")
    params = content.get("params") or []
    if not isinstance(params, list):
        problems.append(f"{path}.params: must be a list")
        params = []
    return StepSpec(
        name=name,
        params=tuple(
            _param(item, f"{path}.params[{place}]", problems) for place, item in enumerate(params)
        ),
        description=_field_text(content, "description", problems, path=f"{path}."),
        multiplier=1.0 if multiplier is None else multiplier,
    )


def _param(content: object, path: str, problems: list[str]) -> StepParam:
    if not isinstance(content, dict):
        problems.append(f"{path}: must be an object with a key and a value")
        return StepParam(key="")
    problems += _unknown_fields(content, frozenset({"key", *_PARAM_FIELDS}), f"{path}.")
    key = _field_text(content, "key", problems, path=f"{path}.", is_short=True)
    if not key:
        problems.append(f"{path}.key: must not be empty")
    given: dict[str, Any] = {}  # Any: values of six types
    for name, (attribute, reader, wanted) in _PARAM_FIELDS.items():
        if content.get(name) is None:
            continue
        given[attribute] = reader(content[name])
        if given[attribute] is None:
            problems.append(f"{path}.{name}: must be {wanted}")
    return StepParam(key=key, **given)


def _unknown_fields(
    document: Mapping[object, object], known: frozenset[str], path: str
) -> list[str]:
    unknown = sorted(str(name) for name in document if name not in known)
    return [f"{path}{name}: unknown field" for name in unknown]


def _field_text(
    document: Mapping[Any, object],  # Any: YAML has keys of all kinds
    name: str,
    problems: list[str],
    *,
    path: str = "",
    default: str = "",
    is_short: bool = False,
) -> str:
    content = document.get(name)
    if content is None:
        return default
    if not isinstance(content, str):
        problems.append(f"{path}{name}: must be a text")
        return default
    if "\x00" in content or (is_short and len(content) > MAX_NAME_LENGTH):
        problems.append(f"{path}{name}: is too long or contains a character that cannot be stored")
        return default
    return content


def _field_flag(
    document: Mapping[Any, object],  # Any: YAML has keys of all kinds
    name: str,
    problems: list[str],
    *,
    default: bool,
) -> bool:
    content = document.get(name)
    if content is None:
        return default
    if not isinstance(content, bool):
        problems.append(f"{name}: must be true or false")
        return default
    return content
