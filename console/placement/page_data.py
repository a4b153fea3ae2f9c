"""What admin pages show of providers, their trees and consumers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from django.db.models import QuerySet

from console.base import PageData, time_tag
from console.charts import Segment, stacked_bar
from console.links import find_url, list_url, row_url
from console.names import Names
from core.text import count_text, memory_short, percent_text, plural
from hosts.models import Host, Instance
from placement.domain.capacity import InventoryAmounts
from placement.models import (
    Aggregate,
    Allocation,
    AllocationEvent,
    Consumer,
    Inventory,
    ProviderAggregate,
    ProviderTrait,
    ResourceProvider,
)
from placement.selectors.held import HeldAmounts, held_by_provider

ROWS_SHOWN = 100
EVENTS_SHOWN = 50
TREE_SHOWN = 200
MIB = 1 << 20
GIB = 1 << 30
_BYTES_PER_UNIT = {"MEMORY_MB": MIB, "NUMA_MEMORY_MB": MIB, "DISK_GB": GIB}
USAGE_LEGEND = (("vms", "allocated"), ("other", "reserved"), ("free", "free"))
_WORDS = dict(USAGE_LEGEND)
_DEEPEST_INDENT = 8

RowT = TypeVar("RowT")


def amount_text(resource_class: str, amount_units: int) -> str:
    """Write an amount of a resource class: memory and disk with binary units, others counted."""
    unit_bytes = _BYTES_PER_UNIT.get(resource_class)
    return (
        count_text(amount_units) if unit_bytes is None else memory_short(amount_units * unit_bytes)
    )


def inventory_line(row: Inventory, *, held_units: int = 0) -> PageData:
    """Return an inventory for a page; its resource class is read along.

    Args:
        row: The inventory.
        held_units: What commitments and failover hold of it, in units of its class.
    """
    name = row.resource_class.name
    held = f"{amount_text(name, held_units)} held by commitments and failover"
    amounts = InventoryAmounts(
        total=row.total, reserved=row.reserved, allocation_ratio=row.allocation_ratio
    )
    capacity = amounts.capacity
    reserved = max(0, int(row.total * row.allocation_ratio) - capacity)
    free = capacity - row.used
    parts = {"vms": row.used, "other": reserved, "free": max(0, free)}
    segments = [
        Segment(kind=kind, amount_units=amount, text=amount_text(name, amount), label=_WORDS[kind])
        for kind, amount in parts.items()
    ]
    rest = (
        f"{amount_text(name, free)} free"
        if free >= 0
        else f"{amount_text(name, -free)} over capacity"
    )
    summary = (
        f"{amount_text(name, row.used)} of {amount_text(name, capacity)} used "
        f"({percent_text(row.used, capacity)}), {rest}"
    )
    terms = (
        f"total {count_text(row.total)}, reserved {count_text(row.reserved)}, "
        f"ratio {row.allocation_ratio:g}; one allocation {count_text(row.min_unit)} to "
        f"{count_text(row.max_unit)} in steps of {count_text(row.step_size)}"
    )
    return PageData(
        resource=name,
        resource_url=row_url(row.resource_class),
        bar=stacked_bar(segments, capacity_units=capacity + reserved, title=f"{name}: {summary}"),
        summary=summary,
        terms=terms,
        is_over=free < 0,
        held=held if held_units else "",
    )


def provider_page(provider: ResourceProvider) -> PageData:
    """Return the page of a provider: its tree with inventories, and who holds what of it."""
    members = list(
        ResourceProvider.objects.filter(root=provider.root_id).order_by("id")[: TREE_SHOWN + 1]
    )
    if len(members) > TREE_SHOWN:
        members = [row for row in members[:TREE_SHOWN] if row.pk != provider.pk] + [provider]
        tree_note = f"first {TREE_SHOWN:,} providers of the tree"
    else:
        tree_note = plural(len(members), "provider")
    consumers = Consumer.objects.filter(allocations__provider=provider).distinct()
    total = consumers.count()
    host = Host.objects.filter(openstack_id=str(provider.uuid)).first()
    return PageData(
        legend=USAGE_LEGEND,
        tree=_tree_lines(members, shown=provider.pk),
        tree_note=tree_note,
        held=_consumer_lines(provider, consumers.order_by("id")[:ROWS_SHOWN]),
        held_note=plural(total, "consumer")
        if total <= ROWS_SHOWN
        else f"first {ROWS_SHOWN:,} of {plural(total, 'consumer')}",
        held_url=list_url("placement.consumer", provider=provider.pk),
        history=_history("consumer", provider_uuid=provider.uuid),
        host_name=host.name if host else "",
        host_url=row_url(host) if host else "",
    )


def consumer_page(consumer: Consumer) -> PageData:
    """Return the page of a consumer: what it holds where, and the VM it is."""
    vm = Instance.objects.filter(openstack_id=str(consumer.uuid)).first()
    return PageData(
        held=_provider_lines(consumer),
        history=_history("provider", consumer_uuid=consumer.uuid),
        vm_name=vm.name if vm else "",
        vm_url=row_url(vm) if vm else "",
    )


def _consumer_lines(
    provider: ResourceProvider, consumers: QuerySet[Consumer]
) -> tuple[PageData, ...]:
    """Return what each consumer holds of a provider, and which VM it is, in three queries."""
    rows = list(consumers.select_related("type"))
    held = _grouped(
        (row.consumer_id, _amount(row))
        for row in Allocation.objects.filter(provider=provider, consumer__in=rows)
        .select_related("resource_class")
        .order_by("resource_class_id")
    )
    names = Names(str(row.uuid) for row in rows)
    return tuple(
        PageData(
            who=names.of("vm", str(row.uuid)) or str(row.uuid),
            uuid=str(row.uuid),
            url=row_url(row),
            vm_url=find_url("vm", str(row.uuid)) if names.of("vm", str(row.uuid)) else "",
            kind=row.type.name if row.type else "no type",
            amounts=", ".join(held.get(row.pk, ())),
        )
        for row in rows
    )


def _provider_lines(consumer: Consumer) -> tuple[PageData, ...]:
    """Return what a consumer holds of each provider."""
    allocations = list(
        Allocation.objects.filter(consumer=consumer)
        .select_related("provider", "resource_class")
        .order_by("provider__name", "resource_class_id")
    )
    held = _grouped((row.provider_id, _amount(row)) for row in allocations)
    providers = {row.provider_id: row.provider for row in allocations}
    return tuple(
        PageData(
            who=provider.name,
            uuid=str(provider.uuid),
            url=row_url(provider),
            vm_url="",
            kind="nested" if provider.parent_id else "root",
            amounts=", ".join(held[pk]),
        )
        for pk, provider in providers.items()
    )


def _amount(row: Allocation) -> str:
    name = row.resource_class.name
    return f"{name} {amount_text(name, row.used)}"


def _history(other: str, **lookups: UUID) -> tuple[PageData, ...]:
    """Return the newest events, newest first.

    Args:
        other: ``provider`` or ``consumer``: which side of an event is linked.
        lookups: The side whose page this is.
    """
    events = list(AllocationEvent.objects.filter(**lookups).order_by("-id")[:EVENTS_SHOWN])
    names = Names(str(getattr(event, f"{other}_uuid")) for event in events)
    return tuple(
        PageData(
            moment=time_tag(event.created_at),
            other=names.link(other, str(getattr(event, f"{other}_uuid"))),
            change=(
                f"{event.resource_class} {amount_text(event.resource_class, event.previous)} → "
                f"{amount_text(event.resource_class, event.amount)}"
            ),
            actor=event.actor,
            request_id=event.request_id,
        )
        for event in events
    )


def _tree_lines(members: Sequence[ResourceProvider], *, shown: int) -> tuple[PageData, ...]:
    """Order a tree depth first, children by name; a provider whose parent is cut off is a top."""
    children: dict[int | None, list[ResourceProvider]] = defaultdict(list)
    known = {row.pk for row in members}
    for row in members:
        children[row.parent_id if row.parent_id in known else None].append(row)
    pks = sorted(known)
    held = held_by_provider({row.root_id for row in members})
    inventories = _grouped(
        (row.provider_id, inventory_line(row, held_units=_held_units(held, row)))
        for row in Inventory.objects.filter(provider__in=pks)
        .select_related("resource_class")
        .order_by("resource_class_id")
    )
    traits = _grouped(
        ProviderTrait.objects.filter(provider__in=pks)
        .order_by("trait__name")
        .values_list("provider_id", "trait__name")
    )
    aggregates = _aggregates_of(pks)
    lines: list[PageData] = []
    waiting = [(row, 0) for row in sorted(children[None], key=_by_name, reverse=True)]
    while waiting:
        row, depth = waiting.pop()
        lines.append(
            PageData(
                name=row.name,
                url=row_url(row),
                uuid=str(row.uuid),
                depth=min(depth, _DEEPEST_INDENT),
                is_shown=row.pk == shown,
                inventories=tuple(inventories.get(row.pk, ())),
                traits=tuple(traits.get(row.pk, ())),
                aggregates=tuple(aggregates.get(row.pk, ())),
            )
        )
        below = sorted(children[row.pk], key=_by_name, reverse=True)
        waiting += [(child, depth + 1) for child in below]
    return tuple(lines)


def _held_units(held: Mapping[int, HeldAmounts], row: Inventory) -> int:
    on_provider = held.get(row.provider_id)
    return on_provider.of_class(row.resource_class.name) if on_provider else 0


def _by_name(row: ResourceProvider) -> str:
    return row.name


def _aggregates_of(pks: Sequence[int]) -> Mapping[int, Sequence[tuple[str, str]]]:
    links = list(
        ProviderAggregate.objects.filter(provider__in=pks)
        .order_by("aggregate_id")
        .select_related("aggregate")
    )
    return _grouped(
        (link.provider_id, (str(link.aggregate), row_url(link.aggregate))) for link in links
    )


def _grouped(pairs: Iterable[tuple[int, RowT]]) -> dict[int, list[RowT]]:
    found: dict[int, list[RowT]] = defaultdict(list)
    for key, row in pairs:
        found[key].append(row)
    return found


def member_links(aggregate: Aggregate) -> tuple[tuple[str, str], ...]:
    """Return names and pages of an aggregate's first providers."""
    members = ResourceProvider.objects.filter(aggregate_links__aggregate=aggregate)
    return tuple((row.name, row_url(row)) for row in members.order_by("name")[:ROWS_SHOWN])
