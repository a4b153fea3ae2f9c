"""Refreshes of the provider snapshot that meet each other and writers (spec placement, 9.4)."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from uuid import UUID

import numpy as np
import pytest
from django.db import connection, connections, transaction

from journal.errors import HeadroomError
from placement.domain.capacity import InventoryAmounts
from placement.domain.snapshot import Snapshot
from placement.selectors.snapshot import SnapshotCache, current_snapshot
from placement.selectors.snapshot.changes import Changes, read_changes
from placement.services.inventories import replace_inventories
from placement.services.links import set_provider_traits
from placement.services.names import ensure_trait
from placement.services.providers import create_provider
from tests.domain.placement.facts import facts
from tests.placement.provider_moves import MOVES, seed
from tests.process_tables import load_snapshot

pytestmark = pytest.mark.django_db(transaction=True)

WRITERS = 4
ROUNDS = 40
PATIENCE_SECONDS = 30


@contextmanager
def own_connection() -> Iterator[None]:
    try:
        yield
    finally:
        connections.close_all()


def make(number: int) -> str:
    uuid = str(UUID(int=number))
    create_provider(name=f"host-{number}", uuid=uuid, parent_uuid=None)
    return uuid


def capacity_of(snapshot: Snapshot, uuid: str) -> int:
    """Return the capacity of VCPU of a provider, -1 when it has none."""
    row = snapshot.row_of(uuid)
    columns = snapshot.classes.get("VCPU")
    if row < 0 or columns is None:
        return -1
    at, has_class = columns.positions(np.array([row], dtype=np.int32))
    return int(columns.capacity[at[0]]) if has_class[0] else -1


def test_a_request_sees_whatever_was_committed_before_it_came() -> None:
    cache = SnapshotCache()
    ensure_trait("CUSTOM_ODD")

    def write_and_look(number: int) -> None:
        with own_connection():
            uuid = make(number)
            generation = 0
            for total in range(1, ROUNDS):
                generation = replace_inventories(
                    uuid,
                    inventories={"VCPU": InventoryAmounts(total=total)},
                    generation=generation,
                    minor=39,
                ).generation
                snapshot = cache.current()
                assert capacity_of(snapshot, uuid) == total
                names = ["CUSTOM_ODD"] if total % 2 else []
                generation = set_provider_traits(uuid, names=names, generation=generation)
                snapshot = cache.current()
                assert snapshot.traits_of(snapshot.row_of(uuid)) == names

    with ThreadPoolExecutor(WRITERS) as pool:
        for done in [pool.submit(write_and_look, number) for number in range(1, WRITERS + 1)]:
            done.result()
    assert facts(cache.current()) == facts(load_snapshot())


def test_the_snapshot_is_true_after_many_wrote_and_looked_at_once() -> None:
    seed()
    current_snapshot()

    def write(seed_number: int) -> None:
        rng = random.Random(seed_number)  # noqa: S311 - a reproducible load, nothing secret
        with own_connection():
            for _ in range(ROUNDS):
                with suppress(HeadroomError):
                    rng.choice(MOVES)(rng.randrange(4096))
                if rng.random() < 0.5:
                    current_snapshot()

    with ThreadPoolExecutor(WRITERS) as pool:
        for done in [pool.submit(write, number) for number in range(WRITERS)]:
            done.result()
    assert facts(current_snapshot()) == facts(load_snapshot())


def test_a_transaction_that_commits_late_is_seen_and_nothing_is_applied_twice() -> None:
    seen: list[Changes] = []

    def recorded(since: str) -> Changes:
        changes = read_changes(since)
        seen.append(changes)
        return changes

    cache = SnapshotCache(recorded)
    early, late = make(1), make(2)
    cache.current()
    has_written, may_commit = threading.Event(), threading.Event()

    def write_and_wait() -> None:
        with own_connection(), transaction.atomic():
            replace_inventories(
                late, inventories={"VCPU": InventoryAmounts(total=7)}, generation=0, minor=39
            )
            has_written.set()
            assert may_commit.wait(PATIENCE_SECONDS)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write_and_wait)
        assert has_written.wait(PATIENCE_SECONDS)
        replace_inventories(
            early, inventories={"VCPU": InventoryAmounts(total=5)}, generation=0, minor=39
        )
        snapshot = cache.current()
        assert (capacity_of(snapshot, early), capacity_of(snapshot, late)) == (5, -1)
        assert capacity_of(cache.current(), late) == -1
        may_commit.set()
        writing.result()
    assert capacity_of(cache.current(), late) == 7
    cache.current()
    assert [changes.count for changes in seen] == [1, 0, 1, 0]


def test_a_request_does_not_join_a_refresh_that_began_before_it_came() -> None:
    make(1)
    has_looked, may_go_on = threading.Event(), threading.Event()
    looks: list[int] = []

    def slow_at_first(since: str) -> Changes:
        changes = read_changes(since)
        looks.append(1)
        if len(looks) == 1:
            has_looked.set()
            assert may_go_on.wait(PATIENCE_SECONDS)
        return changes

    cache = SnapshotCache(slow_at_first)
    cache.current()

    def look() -> int:
        with own_connection():
            return len(cache.current())

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(look)
        assert has_looked.wait(PATIENCE_SECONDS)
        make(2)
        others = [pool.submit(look) for _ in range(3)]
        may_go_on.set()
        assert first.result() == 1
        assert [other.result() for other in others] == [2, 2, 2]
    assert 2 <= len(looks) <= 4


def test_a_refresh_that_failed_leaves_the_snapshot_as_it_was() -> None:
    fails = [False]

    def failing(since: str) -> Changes:
        if fails[0]:
            raise ConnectionError
        return read_changes(since)

    cache = SnapshotCache(failing)
    make(1)
    assert len(cache.current()) == 1
    make(2)
    fails[0] = True
    with pytest.raises(ConnectionError):
        cache.current()
    fails[0] = False
    assert len(cache.current()) == 2


def test_a_transaction_sees_its_own_writes_and_leaves_none_behind_when_rolled_back() -> None:
    make(1)
    assert len(current_snapshot()) == 1
    with transaction.atomic():
        make(2)
        assert len(current_snapshot()) == 2
        transaction.set_rollback(True)
    assert len(current_snapshot()) == 1


def test_a_look_when_nothing_changed_is_one_statement() -> None:
    make(1)
    current_snapshot()
    connection.force_debug_cursor = True
    before = len(connection.queries_log)
    try:
        current_snapshot()
        assert len(connection.queries_log) == before + 1
    finally:
        connection.force_debug_cursor = False
