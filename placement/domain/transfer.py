"""What a Placement holds, as values, and what copying one into another takes (spec 10.3, 13)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from placement.domain.capacity import InventoryAmounts

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRecord:
    """A provider with everything that is its own; ``parent`` is empty for a root."""

    uuid: str
    name: str
    parent: str = ""
    generation: int = 0
    inventories: Mapping[str, InventoryAmounts] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRecord:
    """A consumer and what it holds: provider -> class -> amount, nothing empty."""

    uuid: str
    project: str
    user: str
    type_name: str = ""
    generation: int = 1
    allocations: Mapping[str, Amounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything a Placement holds."""

    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    providers: Mapping[str, ProviderRecord] = field(default_factory=dict)
    consumers: Mapping[str, ConsumerRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """What to write so that the target holds what the source holds; nothing is removed.

    Attributes:
        new_classes: Names, sorted.
        new_traits: Names, sorted.
        new_providers: Parents before children.
        changed_providers: Providers that exist and differ, as they should be.
        changed_consumers: Consumers that are new or differ, as they should be.
        renamed: Uuid in the source -> uuid here, of nested providers matched by name.
        problems: Why the source cannot be copied, in words; empty when it can.
    """

    new_classes: tuple[str, ...] = ()
    new_traits: tuple[str, ...] = ()
    new_providers: tuple[ProviderRecord, ...] = ()
    changed_providers: tuple[ProviderRecord, ...] = ()
    changed_consumers: tuple[ConsumerRecord, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the target holds it all already."""
        return not (
            self.new_classes
            or self.new_traits
            or self.new_providers
            or self.changed_providers
            or self.changed_consumers
        )

    @property
    def counts(self) -> dict[str, int]:
        """How much of each kind there is to write."""
        return {
            "classes": len(self.new_classes),
            "traits": len(self.new_traits),
            "new providers": len(self.new_providers),
            "changed providers": len(self.changed_providers),
            "consumers": len(self.changed_consumers),
            "matched by name": len(self.renamed),
        }


def plan_copy(source: Contents, target: Contents) -> CopyPlan:
    """Return what brings ``source`` into ``target``; copying twice plans nothing the second time.

    A root keeps its uuid, which Nova knows. A nested provider that exists here under another uuid
    but the same name is taken for the same: agents make such providers anew with random uuids.
    """
    renamed, problems = _match_by_name(source, target)
    wanted = {
        renamed.get(uuid, uuid): _provider_here(record, renamed)
        for uuid, record in source.providers.items()
    }
    new = {uuid: record for uuid, record in wanted.items() if uuid not in target.providers}
    ordered, lost = _parents_first(new, known=frozenset(target.providers))
    problems += lost
    consumers = {uuid: _consumer_here(record, renamed) for uuid, record in source.consumers.items()}
    inventories = {
        **{uuid: record.inventories for uuid, record in target.providers.items()},
        **{uuid: record.inventories for uuid, record in wanted.items()},
    }
    problems += _without_inventory(consumers, inventories)
    return CopyPlan(
        new_classes=tuple(sorted(source.classes - target.classes)),
        new_traits=tuple(sorted(source.traits - target.traits)),
        new_providers=ordered,
        changed_providers=tuple(
            record
            for uuid, record in sorted(wanted.items())
            if uuid in target.providers and _provider_differs(record, target.providers[uuid])
        ),
        changed_consumers=tuple(
            record
            for uuid, record in sorted(consumers.items())
            if record.allocations and _consumer_differs(record, target.consumers.get(uuid))
        ),
        renamed=renamed,
        problems=tuple(problems),
    )


def _match_by_name(source: Contents, target: Contents) -> tuple[dict[str, str], list[str]]:
    by_name = {record.name: record for record in target.providers.values()}
    renamed: dict[str, str] = {}
    problems: list[str] = []
    for uuid, record in sorted(source.providers.items()):
        here = by_name.get(record.name)
        if here is None or here.uuid == uuid:
            continue
        if uuid not in target.providers and record.parent and here.parent:
            renamed[uuid] = here.uuid
        else:
            problems.append(f"provider {record.name} is {uuid} there and {here.uuid} here")
    return renamed, problems


def _provider_here(record: ProviderRecord, renamed: Mapping[str, str]) -> ProviderRecord:
    return ProviderRecord(
        uuid=renamed.get(record.uuid, record.uuid),
        name=record.name,
        parent=renamed.get(record.parent, record.parent),
        generation=record.generation,
        inventories=record.inventories,
        traits=record.traits,
        aggregates=record.aggregates,
    )


def _consumer_here(record: ConsumerRecord, renamed: Mapping[str, str]) -> ConsumerRecord:
    return ConsumerRecord(
        uuid=record.uuid,
        project=record.project,
        user=record.user,
        type_name=record.type_name,
        generation=record.generation,
        allocations={renamed.get(uuid, uuid): held for uuid, held in record.allocations.items()},
    )


def _parents_first(
    providers: Mapping[str, ProviderRecord], *, known: frozenset[str]
) -> tuple[tuple[ProviderRecord, ...], list[str]]:
    """Order providers so that each comes after its parent; name those that cannot come at all."""
    ordered: list[ProviderRecord] = []
    placed = set(known)
    waiting = sorted(providers.values(), key=lambda record: record.uuid)
    while waiting:
        ready = [record for record in waiting if not record.parent or record.parent in placed]
        if not ready:
            return tuple(ordered), [
                f"provider {record.name} has no way up to a root" for record in waiting
            ]
        ordered += ready
        placed |= {record.uuid for record in ready}
        waiting = [record for record in waiting if record.uuid not in placed]
    return tuple(ordered), []


def _without_inventory(
    consumers: Mapping[str, ConsumerRecord],
    inventories: Mapping[str, Mapping[str, InventoryAmounts]],
) -> list[str]:
    return [
        f"consumer {consumer.uuid} holds {name} of provider {provider}, which has none"
        for _, consumer in sorted(consumers.items())
        for provider, held in sorted(consumer.allocations.items())
        for name in sorted(held)
        if name not in inventories.get(provider, {})
    ]


def _provider_differs(wanted: ProviderRecord, here: ProviderRecord) -> bool:
    return (
        wanted.name != here.name
        or wanted.parent != here.parent
        or dict(wanted.inventories) != dict(here.inventories)
        or wanted.traits != here.traits
        or wanted.aggregates != here.aggregates
    )


def _consumer_differs(wanted: ConsumerRecord, here: ConsumerRecord | None) -> bool:
    return here is None or (
        wanted.project != here.project
        or wanted.user != here.user
        or wanted.type_name != here.type_name
        or {uuid: dict(held) for uuid, held in wanted.allocations.items()}
        != {uuid: dict(held) for uuid, held in here.allocations.items()}
    )
