"""A process compares its providers in memory with those of the database, now and then."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.domain.snapshot_differences import snapshot_differences
from placement.metrics import CHECKS, DIFFERENCES
from placement.models import Inventory
from placement.selectors.snapshot import SnapshotCache, current_snapshot
from placement.services.providers import create_provider
from tests.domain.placement.facts import facts
from tests.placement.client import placement_settings
from tests.placement.provider_moves import MOVES, seed
from tests.placement.rows import make_provider
from tests.placement.test_snapshot_property import empty_tables
from tests.process_tables import expire_check, load_snapshot

pytestmark = pytest.mark.django_db(transaction=True)


@settings(max_examples=25)
@given(numbers=st.lists(st.integers(0, 10_000), min_size=1, max_size=12))
def test_snapshots_differ_where_they_say_something_else(numbers: list[int]) -> None:
    empty_tables()
    seed()
    before = load_snapshot()
    current_snapshot()
    for number in numbers:
        MOVES[number % len(MOVES)](number // len(MOVES))
        now, anew = current_snapshot(), load_snapshot()
        assert snapshot_differences(now, anew) == {}
        differences = snapshot_differences(before, now)
        assert bool(differences) == (facts(before) != facts(now)), differences
        assert snapshot_differences(now, before) == differences


def join_checks() -> None:
    for thread in threading.enumerate():
        if thread.name == "placement-snapshot-check":
            thread.join()


def test_the_snapshot_is_checked_in_the_background_once_it_is_due(settings: Any) -> None:
    placement_settings(settings, snapshot_check_seconds=1)
    host = make_provider("host", inventories={"VCPU": 8})
    cache = SnapshotCache()
    assert cache.current().classes["VCPU"].capacity.tolist() == [8]
    expire_check(cache)
    cache.current()
    join_checks()
    equal, different = (CHECKS.labels(outcome=one) for one in ("equal", "different"))
    were = equal._value.get(), different._value.get()
    wrong = DIFFERENCES.labels(part="inventories")._value.get()
    # A change that leaves no trace, which no service can make.
    Inventory.objects.filter(provider=host).update(total=16)
    expire_check(cache)
    assert cache.current().classes["VCPU"].capacity.tolist() == [8]
    join_checks()
    assert cache.current().classes["VCPU"].capacity.tolist() == [16]
    assert (equal._value.get(), different._value.get()) == (were[0], were[1] + 1)
    assert DIFFERENCES.labels(part="inventories")._value.get() == wrong + 1


def test_a_check_compares_one_state_of_the_database(settings: Any) -> None:
    placement_settings(settings, snapshot_check_seconds=0)
    make_provider("host", inventories={"VCPU": 8})
    cache = SnapshotCache()
    assert cache.verify() == {}  # nothing is kept yet
    cache.current()
    create_provider(name="other", uuid=None, parent_uuid=None)
    assert cache.verify() == {}
    cache.current()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM placement_inventory")
    assert cache.verify() == {"inventories": 1}
