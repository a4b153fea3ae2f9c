"""Rows of the Placement API for tests that do not go through it."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID, uuid4

from django.db import connection, transaction

from placement.models import (
    Aggregate,
    Allocation,
    Consumer,
    ConsumerProject,
    ConsumerType,
    ConsumerUser,
    Inventory,
    ProviderAggregate,
    ProviderTrait,
    ResourceClass,
    ResourceProvider,
    Trait,
)


def make_provider(
    name: str,
    *,
    parent: ResourceProvider | None = None,
    inventories: Mapping[str, int] | None = None,
    traits: tuple[str, ...] = (),
    aggregates: tuple[UUID, ...] = (),
    uuid: UUID | None = None,
) -> ResourceProvider:
    """Make a provider with inventories given by class and total."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval(pg_get_serial_sequence('placement_provider', 'id'))")
        pk = int((cursor.fetchone() or (0,))[0])
    row = ResourceProvider.objects.create(
        pk=pk,
        uuid=uuid or uuid4(),
        name=name,
        parent=parent,
        root_id=parent.root_id if parent else pk,
        generation=0,
    )
    for class_name, total in (inventories or {}).items():
        Inventory.objects.create(provider=row, resource_class=make_class(class_name), total=total)
    for trait_name in traits:
        trait, _ = Trait.objects.get_or_create(name=trait_name)
        ProviderTrait.objects.create(provider=row, trait=trait)
    for aggregate_uuid in aggregates:
        aggregate, _ = Aggregate.objects.get_or_create(uuid=aggregate_uuid)
        ProviderAggregate.objects.create(provider=row, aggregate=aggregate)
    return row


def make_class(name: str) -> ResourceClass:
    """Return a class, made when it is missing."""
    return ResourceClass.objects.get_or_create(name=name)[0]


@transaction.atomic
def allocate(
    consumer_uuid: UUID,
    held: Mapping[ResourceProvider, Mapping[str, int]],
    *,
    project: str = "project-1",
    type_name: str = "",
) -> Consumer:
    """Let a new consumer hold amounts of providers, kept in their inventories as well."""
    consumer = Consumer.objects.create(
        uuid=consumer_uuid,
        generation=1,
        project=ConsumerProject.objects.get_or_create(external_id=project)[0],
        user=ConsumerUser.objects.get_or_create(external_id="user-1")[0],
        type=ConsumerType.objects.get_or_create(name=type_name)[0] if type_name else None,
    )
    for provider, amounts in held.items():
        for class_name, amount in amounts.items():
            inventory = Inventory.objects.get(provider=provider, resource_class__name=class_name)
            inventory.used += amount
            inventory.save(update_fields=["used"])
            Allocation.objects.create(
                consumer=consumer,
                provider=provider,
                resource_class_id=inventory.resource_class_id,
                used=amount,
            )
    with connection.cursor() as cursor:
        cursor.execute("SELECT placement_rebuild_project_usage()")
    return consumer


def grow_providers(name: str, *, consumer_uuid: UUID) -> ResourceProvider:
    """Make a host with a NUMA cell, one consumer on both, a trait, a class and an aggregate."""
    host = make_provider(
        name,
        inventories={
            "VCPU": 16,
            "MEMORY_MB": 65536,
            "DISK_GB": 100,
            f"CUSTOM_{name.upper().replace('-', '_')}": 4,
        },
        traits=("CUSTOM_GOLD", "HW_CPU_X86_AVX"),
        aggregates=(uuid4(),),
    )
    cell = make_provider(f"{name}-cell", parent=host, inventories={"PCPU": 8})
    allocate(consumer_uuid, {host: {"VCPU": 4, "MEMORY_MB": 8192}, cell: {"PCPU": 2}})
    return host
