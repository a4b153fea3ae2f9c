"""Whether two Placements hold the same, generations included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

from placement.domain.transfer import ConsumerRecord, Contents, ProviderRecord

Record = TypeVar("Record", ProviderRecord, ConsumerRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that the two sides do not agree on.

    Attributes:
        kind: ``provider``, ``consumer``, ``trait`` or ``class``.
        subject: UUID or name.
        detail: What differs: a field, or the side that has it alone.
    """

    kind: str
    subject: str
    detail: str


def differences(upstream: Contents, local: Contents) -> list[Difference]:
    """Return everything that differs, providers first; standard names may differ.

    Args:
        upstream: What the other Placement holds.
        local: What we hold.
    """
    return [
        *_of_records("provider", upstream.providers, local.providers, _plain),
        *_of_records("consumer", upstream.consumers, local.consumers, _plain),
        *_of_names("trait", upstream.traits, local.traits),
        *_of_names("class", upstream.classes, local.classes),
    ]


def _of_records(
    kind: str,
    upstream: Mapping[str, Record],
    local: Mapping[str, Record],
    plain: Callable[[object], object],
) -> Iterator[Difference]:
    for uuid in sorted(upstream.keys() | local.keys()):
        there, here = upstream.get(uuid), local.get(uuid)
        if there is None or here is None:
            yield Difference(
                kind=kind, subject=uuid, detail="only here" if there is None else "only there"
            )
            continue
        for field in fields(there):
            one, other = plain(getattr(there, field.name)), plain(getattr(here, field.name))
            if one != other:
                detail = f"{field.name}: {_shown(one)} there, {_shown(other)} here"
                yield Difference(kind=kind, subject=uuid, detail=detail)


def _of_names(kind: str, upstream: frozenset[str], local: frozenset[str]) -> Iterator[Difference]:
    for name in sorted(upstream ^ local):
        if name.startswith("CUSTOM_"):
            side = "there" if name in upstream else "here"
            yield Difference(kind=kind, subject=name, detail=f"only {side}")


def _plain(part: object) -> object:
    """Return a part as values that compare by content."""
    if isinstance(part, Mapping):
        return {name: _plain(inner) for name, inner in part.items()}
    return part


def _shown(part: object) -> str:
    text = ", ".join(sorted(map(str, part))) if isinstance(part, frozenset) else str(part)
    return text if len(text) <= 200 else f"{text[:200]}..."  # noqa: PLR2004 - a line
