"""What a write of the Placement API touches, read from the request alone (docs/gateway.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from placement.domain.querystring import canonical_uuid

READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: Words after which a path names what it is about.
_PROVIDERS: Final = "resource_providers"
_ALLOCATIONS: Final = "allocations"
_NAMES: Final = frozenset({"traits", "resource_classes"})

#: From this version on writing aggregates counts a generation.
_AGGREGATES_SINCE: Final = 19

Json = Any  # decoded JSON of a client


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """What may be another after a write.

    Attributes:
        providers: UUIDs of those of which anything may be another.
        generations: UUIDs of those of which the generation alone may be; a consumer may give up
            others.
        consumers: UUIDs.
        has_names: Whether traits or resource classes come or go.
    """

    providers: frozenset[str] = frozenset()
    generations: frozenset[str] = frozenset()
    consumers: frozenset[str] = frozenset()
    has_names: bool = False


def touched_by(path: str, body: bytes) -> Touched:
    """Return what a write touches; of a body that is no JSON what the path alone says.

    Args:
        path: Below the mount point, decoded; begins with a slash.
        body: As sent.
    """
    first, *rest = path.strip("/").split("/")
    content = _decoded(body)
    if first == _PROVIDERS:
        named = rest[:1] or [_text(content, "uuid")]
        parent = _text(content, "parent_provider_uuid") if len(rest) <= 1 else ""
        return Touched(providers=_uuids([*named, parent]))
    if first == _ALLOCATIONS and rest:
        return Touched(generations=_uuids(_named_providers(content)), consumers=_uuids(rest[:1]))
    if first == _ALLOCATIONS:
        return _of_consumers(content)
    if first == "reshaper":
        found = _of_consumers(_member(content, "allocations"))
        inventories = _uuids(_keys(_member(content, "inventories")))
        return Touched(providers=found.generations | inventories, consumers=found.consumers)
    return Touched(has_names=first in _NAMES)


def counts_generations(method: str, path: str, minor: int) -> bool:
    """Return whether generations tell of a write that it was done.

    Args:
        method: Of the request.
        path: As for :func:`touched_by`.
        minor: Version of the request.
    """
    first, *rest = path.strip("/").split("/")
    if first == _PROVIDERS:
        if not rest:
            return method == "POST"
        part = rest[1] if len(rest) > 1 else ""
        return part == "inventories" or (part == "aggregates" and minor >= _AGGREGATES_SINCE)
    return first in {_ALLOCATIONS, "reshaper"}


def _of_consumers(content: Json) -> Touched:
    consumers = content if isinstance(content, Mapping) else {}
    providers = [uuid for held in consumers.values() for uuid in _named_providers(held)]
    return Touched(generations=_uuids(providers), consumers=_uuids(consumers))


def _named_providers(content: Json) -> list[str]:
    """Return the providers of allocations in either form: a list until 1.11, then an object."""
    held = _member(content, "allocations")
    if isinstance(held, list):
        return [_text(_member(row, "resource_provider"), "uuid") for row in held]
    return _keys(held)


def _decoded(body: bytes) -> Json:
    try:
        return orjson.loads(body) if body else None
    except orjson.JSONDecodeError:
        return None


def _member(content: Json, name: str) -> Json:
    return content.get(name) if isinstance(content, Mapping) else None


def _text(content: Json, name: str) -> str:
    found = _member(content, name)
    return found if isinstance(found, str) else ""


def _keys(content: Json) -> list[str]:
    return list(content) if isinstance(content, Mapping) else []


def _uuids(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(uuid for text in texts if (uuid := canonical_uuid(text)) is not None)
