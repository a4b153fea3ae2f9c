"""What changes between the choice of hosts and the placement (spec scheduling, 16.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from capacity.host_table import read_host_table
from capacity.models import HostCapacity, SchedulingDecision
from capacity.nova import placement, scheduling
from hosts.models import Aggregate, Host, HostStatus
from scheduling.resources import GIB
from tests.api.scheduler_client import READ_ONLY, NovaClient, in_flight
from tests.capacity.host_table_moves import Writer
from tests.factories import make_host, make_hosts

pytestmark = pytest.mark.django_db(transaction=True)

Change = Callable[[str], object]


def disable(name: str) -> object:
    return Host.objects.filter(name=name).update(status=HostStatus.DISABLED)


def rename(name: str) -> object:
    return Host.objects.filter(name=name).update(name=f"{name}-renamed")


def swap_names(name: str) -> object:
    """Give the name to another host, which no filter has looked at under it."""
    with transaction.atomic():
        Host.objects.filter(name=name).update(name=f"{name}-renamed")
        return Host.objects.filter(name="spare").update(name=name)


def fill(name: str) -> object:
    return HostCapacity.objects.filter(host__name=name).update(allocated_memory_bytes=63 * GIB)


def move(name: str) -> object:
    return Host.objects.filter(name=name).update(zone="az-z")


def remove(name: str) -> object:
    return Host.objects.get(name=name).delete()


def restrict_aggregate(name: str) -> object:
    uuids = Host.objects.get(name=name).aggregate_uuids
    aggregates = Aggregate.objects.filter(uuid__in=uuids)
    return aggregates.update(metadata={"filter_tenant_id": "others"})


CHANGES = [disable, rename, swap_names, fill, move, remove, restrict_aggregate]


def with_aggregates(*names: str) -> None:
    for name in names:
        Aggregate.objects.create(uuid=f"of-{name}", name=name)
        Host.objects.filter(name=name).update(aggregate_uuids=[f"of-{name}"])


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let another connection commit changes after the choice, before the first placement."""

    def arrange(change: Change, *names: str) -> None:
        place_once = placement._place_once

        def changed_first(*args: Any) -> object:
            monkeypatch.setattr(placement, "_place_once", place_once)
            writer = Writer()
            for name in names:
                writer.write(lambda _, name=name: _drop(change(name)), 0)  # type: ignore[misc]
            writer.commit()
            writer.close()
            return place_once(*args)

        monkeypatch.setattr(placement, "_place_once", changed_first)

    return arrange


def _drop(_: object) -> None:
    return


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_host_that_changed_after_the_choice_is_refused_and_the_next_is_taken(
    nova: NovaClient, between: Callable[..., None], change: Change
) -> None:
    make_hosts(3)
    make_host("spare")
    with_aggregates("h1", "h2", "h3")
    ranking = nova.hosts(options=READ_ONLY)
    best, second, third = ranking
    between(change, best)
    assert nova.hosts(options={"max_candidates": 2}) == [second, third]
    assert in_flight() == sorted([second, third])
    assert SchedulingDecision.objects.get().target_host_name == second


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_no_host_is_held_when_the_choice_on_a_fresh_table_finds_none(
    nova: NovaClient,
    between: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    change: Change,
) -> None:
    make_hosts(2)
    make_host("spare", zone="az-b")
    with_aggregates("h1", "h2")
    outcomes = []

    def place_vm(*args: Any, **kwargs: Any) -> placement.PlacementOutcome:
        outcomes.append(placement.place_vm(*args, **kwargs))
        return outcomes[-1]

    monkeypatch.setattr(scheduling, "place_vm", place_vm)
    between(change, "h1")
    answer = nova.hosts(availability_zone="az-a", offered=("h1",))
    assert answer == []
    assert in_flight() == []
    assert [outcome.refused for outcome in outcomes] == [("h1",)]


def test_a_changed_host_that_still_passes_is_taken_in_the_next_round(
    nova: NovaClient, between: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_hosts(2)
    outcomes = []

    def place_vm(*args: Any, **kwargs: Any) -> placement.PlacementOutcome:
        outcomes.append(placement.place_vm(*args, **kwargs))
        return outcomes[-1]

    monkeypatch.setattr(scheduling, "place_vm", place_vm)

    def describe(name: str) -> object:
        return Host.objects.filter(name=name).update(disabled_reason="none")

    between(describe, "h1", "h2")
    assert sorted(nova.hosts(offered=("h1", "h2"))) == ["h1", "h2"]
    assert [outcome.rounds for outcome in outcomes] == [2]


def test_what_the_own_transaction_wrote_cannot_be_told_from_later_changes(
    nova: NovaClient,
) -> None:
    make_hosts(1)
    with transaction.atomic():
        Host.objects.update(zone="az-a")
        assert read_host_table().snapshot == ""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_snapshot()::text")
        row = cursor.fetchone()
    assert (read_host_table().snapshot,) == row
    assert nova.hosts(offered=("h1",)) == ["h1"]
