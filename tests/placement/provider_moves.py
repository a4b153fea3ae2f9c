"""Writes of the Placement API by number, for scripts of overlapping transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from uuid import UUID

from django.db import transaction

from journal.actors import Actor
from journal.errors import HeadroomError
from placement.domain.capacity import InventoryAmounts
from placement.models import Consumer, ResourceProvider
from placement.services.allocations import (
    AllocationRequest,
    ConsumerWrite,
    delete_allocations,
    replace_allocations,
)
from placement.services.inventories import delete_inventories, replace_inventories
from placement.services.links import (
    delete_provider_traits,
    set_provider_aggregates,
    set_provider_traits,
)
from placement.services.names import (
    delete_class,
    delete_trait,
    ensure_class,
    ensure_trait,
    rename_class,
)
from placement.services.providers import KEEP, create_provider, delete_provider, update_provider
from placement.services.reshaper import NewInventories, reshape

Move = Callable[[int], Any]
ACTOR = Actor(name="tester")
LATEST = 39
NAMES = 12
CLASSES = ("VCPU", "MEMORY_MB", "CUSTOM_A", "CUSTOM_B")
TRAITS = ("MISC_SHARES_VIA_AGGREGATE", "HW_CPU_X86_AVX", "CUSTOM_T1", "CUSTOM_T2")


def uuid_of(number: int) -> str:
    return str(UUID(int=number % NAMES + 1))


def consumer_of(number: int) -> str:
    return str(UUID(int=0xC0 + number % 5))


def generation(number: int) -> int:
    """Return the generation that this transaction sees, so that most writes are right."""
    row = ResourceProvider.objects.filter(uuid=uuid_of(number)).values_list("generation").first()
    return row[0] if row else 0


def chosen(words: tuple[str, ...], number: int) -> list[str]:
    return [word for place, word in enumerate(words) if number >> place & 1]


def some_inventories(number: int) -> dict[str, InventoryAmounts]:
    return {name: InventoryAmounts(total=number % 7 + 1) for name in chosen(CLASSES, number)}


def request_of(number: int, providers: Iterable[int]) -> AllocationRequest:
    consumer = consumer_of(number)
    known = Consumer.objects.filter(uuid=consumer).values_list("generation").first()
    write = ConsumerWrite(
        uuid=consumer,
        project_id="p",
        user_id="u",
        resources={
            uuid_of(one): {CLASSES[(number + one) % len(CLASSES)]: number % 2 + 1}
            for one in providers
        },
        generation=known[0] if known else None,
    )
    return AllocationRequest(consumers=[write], checks_generations=True)


def create(number: int) -> None:
    parent = uuid_of(number // NAMES) if number % 3 else None
    create_provider(name=f"p{number % NAMES}", uuid=uuid_of(number), parent_uuid=parent)


def move(number: int) -> None:
    parent = uuid_of(number // NAMES) if number % 4 else None
    update_provider(uuid_of(number), name=f"p{number % NAMES}", parent_uuid=parent, minor=LATEST)


def rename(number: int) -> None:
    update_provider(uuid_of(number), name=f"renamed{number}", parent_uuid=KEEP, minor=LATEST)


def delete(number: int) -> None:
    delete_provider(uuid_of(number))


def inventories(number: int) -> None:
    replace_inventories(
        uuid_of(number),
        inventories=some_inventories(number // NAMES),
        generation=generation(number),
        minor=LATEST,
    )


def no_inventories(number: int) -> None:
    delete_inventories(uuid_of(number))


def traits(number: int) -> None:
    names = chosen(TRAITS, number // NAMES)
    set_provider_traits(uuid_of(number), names=names, generation=generation(number))


def no_traits(number: int) -> None:
    delete_provider_traits(uuid_of(number))


def aggregates(number: int) -> None:
    uuids = [str(UUID(int=0xA0 + place)) for place in range(3) if number // NAMES >> place & 1]
    set_provider_aggregates(uuid_of(number), aggregates=uuids, generation=None)


def allocate(number: int) -> None:
    request = request_of(number, {number // 5, number // 60})
    replace_allocations(request, actor=ACTOR, request_id="r", kind="put")


def give_back(number: int) -> None:
    delete_allocations(consumer_of(number), generation=None, actor=ACTOR, request_id="r")


def new_shape(number: int) -> None:
    one, other = number // 5, number // 60
    new = {
        uuid_of(at): NewInventories(
            generation=generation(at),
            by_class={name: InventoryAmounts(total=9) for name in chosen(CLASSES, number + at)},
        )
        for at in (one, other)
    }
    reshape(new, request_of(number, [other]), actor=ACTOR, request_id="r")


def new_names(number: int) -> None:
    ensure_trait(f"CUSTOM_T{number % 4}")
    ensure_class(f"CUSTOM_C{number % 4}")


def old_names(number: int) -> None:
    delete_trait(f"CUSTOM_T{number % 4}")
    delete_class(f"CUSTOM_C{number % 4}")


def other_name(number: int) -> None:
    rename_class("CUSTOM_A", "CUSTOM_Z") if number % 2 else rename_class("CUSTOM_Z", "CUSTOM_A")


def forgiving(action: Move) -> Move:
    """Return a move that leaves things as they are where the service refuses it."""

    def attempt(number: int) -> None:
        with suppress(HeadroomError), transaction.atomic():
            action(number)

    attempt.__name__ = action.__name__
    return attempt


MOVES = tuple(
    forgiving(action)
    for action in (
        *(create, create, inventories, inventories, allocate, allocate, allocate),
        *(move, rename, delete, no_inventories, traits, no_traits, aggregates),
        *(give_back, new_shape, new_names, old_names, other_name),
    )
)


def seed() -> None:
    """Make the names and a few providers."""
    for name in CLASSES:
        if name.startswith("CUSTOM_"):
            ensure_class(name)
    for name in TRAITS:
        if name.startswith("CUSTOM_"):
            ensure_trait(name)
    for number in range(4):
        create_provider(name=f"p{number}", uuid=uuid_of(number), parent_uuid=None)
        inventories(number + NAMES * 15)
