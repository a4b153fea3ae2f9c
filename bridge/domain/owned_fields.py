"""Fields of Hypervisor objects that the platform owns, and what they should say (spec hosts, C.5).

A field is compared as what it means, not as it is spelt, and is sent only where it differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from hosts.domain.overcommit import OvercommitRule, overcommit_of

Json = Any  # members of objects keep the API's own shapes


class Field(StrEnum):
    """A field of ours, by its word in ``HEADROOM_HYPERVISORS__WRITE_BACK``."""

    OVERCOMMIT = "overcommit"
    GROUPS = "groups"
    EFFECTIVE_CAPACITY = "effective_capacity"
    ALLOCATION = "allocation"
    CELLS = "cells"

    @property
    def is_status(self) -> bool:
        """Whether it stands in the status."""
        return self in {Field.EFFECTIVE_CAPACITY, Field.ALLOCATION, Field.CELLS}

    @property
    def is_of_others(self) -> bool:
        """Whether it is a list of which others write parts: it is written of one version."""
        return self in {Field.GROUPS, Field.CELLS}

    @property
    def key(self) -> str:
        """Its key in the specification or the status."""
        return "effectiveCapacity" if self is Field.EFFECTIVE_CAPACITY else self.value

    @property
    def manager(self) -> str:
        """Field manager that owns it."""
        return f"headroom-{self.value.replace('_', '-')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """vCPUs and bytes of memory."""

    vcpus: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """Traits and aggregates that clients of Placement want a host to have; None: never asked.

    Attributes:
        aggregates: UUID -> name, which may be empty.
    """

    traits: frozenset[str] | None = None
    aggregates: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What an object says in these fields now.

    Attributes:
        version: ``metadata.resourceVersion``.
        traits: Of its status.
        overcommit: None stands for a ratio that is no number.
        promised: What it has times overcommit, rounded down; None without capacity.
        effective: None where it is not said.
        allocation: Likewise.
        groups: As they are.
        cells: NUMA cells as they are; what cannot be understood counts as none.
        promised_cells: The same with what each may promise, rounded down; equal where it is said.
        cell_allocations: What is allocated of each; None where it is not said.
    """

    uid: str
    version: str
    traits: frozenset[str]
    overcommit: Mapping[str, Decimal | None]
    promised: Amounts | None
    effective: Amounts | None
    allocation: Amounts | None
    groups: Sequence[Json]
    cells: Sequence[Json] = ()
    promised_cells: Sequence[Json] = ()
    cell_allocations: Sequence[Amounts | None] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A field that does not say what it should.

    Attributes:
        wanted: What it should be.
        foreign: Keys in it that nobody of ours wrote, to be removed.
    """

    field: Field
    wanted: Json
    foreign: tuple[str, ...] = ()


def overcommit_patch(stated: Stated, rules: Sequence[OvercommitRule]) -> Patch | None:
    """Return what ``spec.overcommit`` should be; None when it is."""
    wanted = overcommit_of(stated.traits, rules)
    if stated.overcommit == wanted:
        return None
    foreign = tuple(sorted(stated.overcommit.keys() - wanted.keys()))
    return Patch(
        field=Field.OVERCOMMIT,
        wanted={name: float(ratio) for name, ratio in wanted.items()},
        foreign=foreign,
    )


def amounts_patch(field: Field, stated: Amounts | None, wanted: Amounts | None) -> Patch | None:
    """Return what a field of amounts should be; None when it is, or nobody knows."""
    if wanted is None or stated == wanted:
        return None
    return Patch(field=field, wanted=_written(wanted))


def _written(amounts: Amounts) -> dict[str, str]:
    return {"cpu": str(amounts.vcpus), "memory": str(amounts.memory_bytes)}


def cells_patch(stated: Stated, taken: Mapping[int, Amounts]) -> Patch | None:
    """Return what ``status.cells`` should be; None when it is.

    Args:
        taken: Number of a cell -> what is allocated of it; that of other cells stays as it is.

    Source: spec hosts, C.2.
    """
    wanted = []
    for cell, said in zip(stated.promised_cells, stated.cell_allocations, strict=True):
        has = taken.get(cell["cellID"])
        if has is None or has == said:
            wanted.append(cell)
        else:
            wanted.append({**cell, "allocation": _written(has)})
    if wanted == list(stated.cells):
        return None
    return Patch(field=Field.CELLS, wanted=wanted)


def groups_patch(stated: Stated, requested: Requested | None) -> Patch | None:
    """Return what ``spec.groups`` should be; None when it is.

    Groups of a kind that no client ever asked for stay as they are, and so does what the others
    say beside uuid and name. No group is there twice.

    Source: spec placement, 8.4; spec hosts, C.1.
    """
    if requested is None:
        return None
    wanted: dict[tuple[str, str], Json] = {}
    for group in stated.groups:
        kind, key = _identity(group)
        is_asked = requested.traits if kind == "trait" else requested.aggregates
        if is_asked is None or key in is_asked:
            wanted.setdefault((kind, key), group)
    for trait in sorted(requested.traits or ()):
        wanted.setdefault(("trait", trait), {"trait": {"name": trait}})
    for uuid, name in sorted((requested.aggregates or {}).items()):
        group = {"aggregate": {"name": name or uuid, "uuid": uuid}}
        wanted.setdefault(("aggregate", uuid), group)
    found = list(wanted.values())
    if list(stated.groups) == found:
        return None
    return Patch(field=Field.GROUPS, wanted=found)


def _identity(group: Json) -> tuple[str, str]:
    if isinstance(group, dict):
        trait, aggregate = group.get("trait"), group.get("aggregate")
        if isinstance(trait, dict):
            return "trait", str(trait.get("name"))
        if isinstance(aggregate, dict):
            return "aggregate", str(aggregate.get("uuid"))
    return "aggregate", repr(group)
