from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from django.conf import LazySettings
from django.core.exceptions import ObjectDoesNotExist
from django.db import DatabaseError, connection, connections, transaction
from django.utils.timezone import now
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from capacity.host_table import HostTableCache, current_host_table, position, verify_host_table
from capacity.models import Reservation, ReservationAllocation, ReservationKind
from capacity.nova.pipelines import active_pipelines
from hosts.models import Aggregate, Host, Instance
from journal.errors import HeadroomError
from scheduling.resources import GIB, ResourceVector
from scheduling.table import HostTable
from tests.capacity.host_table_moves import Writer, add_host, empty_tables
from tests.capacity.pipeline_moves import (
    ALL_MOVES,
    assert_as_if_loaded_anew,
    assert_pipelines_as_if_loaded_anew,
)
from tests.factories import (
    make_commitment,
    make_host,
    make_reservation,
    make_slot,
    make_vm,
)
from tests.process_tables import expire_check, load_host_table, reset_host_table

pytestmark = pytest.mark.django_db(transaction=True)

WRITERS = 4
READERS = 2
TRANSACTIONS = 60


@contextmanager
def own_connection() -> Iterator[None]:
    try:
        yield
    finally:
        connections.close_all()


@contextmanager
def one_snapshot() -> Iterator[None]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def write_at_random(seed: int) -> int:
    """Make transactions of a few writes each; some are rolled back, some lose a lock."""
    rng = random.Random(seed)  # noqa: S311 - a reproducible load, nothing secret
    committed = 0
    with own_connection():
        for _ in range(TRANSACTIONS):
            try:
                with transaction.atomic():
                    with connection.cursor() as cursor:
                        cursor.execute("SET LOCAL lock_timeout = '50ms'")
                    for _ in range(rng.randint(1, 4)):
                        rng.choice(ALL_MOVES)(rng.randrange(4096))
                    if rng.random() < 0.2:
                        transaction.set_rollback(True)
                    else:
                        committed += 1
            except (DatabaseError, HeadroomError, ObjectDoesNotExist):
                continue  # another one removed or locked it meanwhile
    return committed


@hypothesis_settings(max_examples=2, phases=[Phase.explicit, Phase.generate])
@given(seeds=st.lists(st.integers(0, 2**32), min_size=WRITERS, max_size=WRITERS, unique=True))
def test_shared_table_and_pipelines_are_true_whenever_they_are_compared_while_many_write(
    seeds: list[int],
) -> None:
    empty_tables()
    reset_host_table()
    make_commitment()
    for number in range(4):
        add_host(number)
    current_host_table()
    done = threading.Event()
    checked = []

    def read() -> None:
        with own_connection():
            while not done.is_set():
                current_host_table()
                active_pipelines()

    def verify() -> None:
        with own_connection():
            while not done.is_set():
                checked.append(verify_host_table())
                with one_snapshot():
                    table = load_host_table()
                    assert_pipelines_as_if_loaded_anew(table, table)

    with ThreadPoolExecutor(WRITERS + READERS + 1) as pool:
        readers = [pool.submit(read) for _ in range(READERS)]
        verifier = pool.submit(verify)
        writers = [pool.submit(write_at_random, seed) for seed in seeds]
        try:
            committed = sum(writer.result() for writer in writers)
        finally:
            done.set()  # whatever a writer ran into, readers must end
        for reader in (*readers, verifier):
            reader.result()
    assert committed > TRANSACTIONS // 2
    assert checked
    assert [differences for differences in checked if differences] == []
    assert_as_if_loaded_anew()


def test_transaction_that_commits_late_is_seen_after_younger_ones() -> None:
    late, early = make_host("late"), make_host("early")
    current_host_table()
    old, young = Writer(), Writer()
    try:
        old.write(lambda _: set_zone(late, "old"), 0)
        for number in range(3):
            young.write(lambda index: set_zone(early, f"z{index}"), number)
            young.commit()
            assert zone_of("early") == f"z{number}"
            assert zone_of("late") == "az-a"
        old.commit()
        assert zone_of("late") == "old"
        assert verify_host_table() == {}
    finally:
        old.close()
        young.close()


def test_long_transaction_does_not_make_every_refresh_read_the_same_rows_again(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    host = make_host("h1")
    current_host_table()
    sleeper = Writer()
    try:
        sleeper.write(lambda _: set_zone(make_host("sleeper"), "zzz"), 0)
        set_zone(host, "az-b")
        assert zone_of("h1") == "az-b"
        with django_assert_num_queries(1):
            current_host_table()
    finally:
        sleeper.close()


def test_threads_that_start_together_load_the_table_once() -> None:
    make_host("h1")
    cache = HostTableCache()
    barrier = threading.Barrier(4)

    def start() -> int:
        with own_connection():
            barrier.wait()
            return id(cache.current())

    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(lambda _: start(), range(4)))
    assert len(set(tables)) == 1


def test_table_is_checked_in_the_background_once_it_is_due(settings: LazySettings) -> None:
    before = settings.HEADROOM
    every_second = before.scheduler.model_copy(update={"host_table_check_seconds": 1})
    settings.HEADROOM = before.model_copy(update={"scheduler": every_second})
    host = make_host("h1")
    cache = HostTableCache()
    cache.current()
    with connection.cursor() as cursor:  # a change that leaves no trace, which no service can make
        cursor.execute("ALTER TABLE hosts_host DISABLE TRIGGER USER")
        set_zone(host, "az-z")
        cursor.execute("ALTER TABLE hosts_host ENABLE TRIGGER USER")
    expire_check(cache)
    assert zone_in(cache.current(), "h1") == "az-a"
    for thread in threading.enumerate():
        if thread.name == "host-table-check":
            thread.join()
    assert zone_in(cache.current(), "h1") == "az-z"


def _drop(_: object) -> None:
    return


def read_ahead(monkeypatch: pytest.MonkeyPatch, reader: str, change: Callable[[], object]) -> None:
    """Let another connection commit a change after the changes were asked for, before rows are."""
    original: Callable[..., object] = getattr(position, reader)

    def read(*args: object, **kwargs: object) -> object:
        monkeypatch.undo()
        writer = Writer()
        writer.write(lambda _: _drop(change()), 0)
        writer.commit()
        writer.close()
        return original(*args, **kwargs)

    monkeypatch.setattr(position, reader, read)


def test_vm_that_is_seen_too_early_and_gone_at_the_next_look_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = make_host("h1")
    current_host_table()
    set_zone(host, "az-b")
    vm = make_vm(openstack_id="vm")
    moved = Instance.objects.filter(pk=vm.pk)
    current_host_table()
    set_zone(host, "az-c")
    moved.delete()
    vm.pk = None  # the same VM as a new row, on the host, which itself does not change again
    vm.host = host
    read_ahead(monkeypatch, "read_hosts", vm.save)
    assert current_host_table().instance_index.lists(0, ("vm",))
    Instance.objects.all().delete()
    assert current_host_table().instance_index.lists(0, ())
    assert verify_host_table() == {}


def test_user_that_is_seen_too_early_and_gone_at_the_next_look_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = make_reservation(make_host("h1"))
    elsewhere = make_host("h2")
    current_host_table()
    Reservation.objects.update(project_id="p1")
    row = ReservationAllocation(
        reservation=held,
        vm_uuid="vm",
        state="expected",
        memory_bytes=1,
        vcpus=1,
        since=now(),
        vm_host=elsewhere,
    )
    read_ahead(monkeypatch, "read_reservations", row.save)
    assert set(current_host_table().reservations.failover_of_vm) == {"vm"}
    ReservationAllocation.objects.all().delete()
    assert set(current_host_table().reservations.failover_of_vm) == set()
    assert verify_host_table() == {}


def test_host_that_is_renamed_while_it_is_read_keeps_one_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_host("h1", aggregate_uuids=["a"])
    Aggregate.objects.create(uuid="a", name="a")
    current_host_table()
    Aggregate.objects.update(metadata={"filter_tenant_id": "p1"})
    read_ahead(monkeypatch, "read_hosts", lambda: Host.objects.update(name="h9"))
    assert current_host_table().names == ("h9",)
    assert current_host_table().names == ("h9",)
    assert verify_host_table() == {}


def test_host_that_is_renamed_while_vms_are_in_flight_to_it_leaves_no_slot_with_the_old_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slot on h1 expects a VM in flight to h2; then h1 gets the name of h2 and h2 another one.

    The refresh sees the new name of h1 first: until it sees that of h2, the VM seems to be in
    flight to the slot's own host.
    """
    slot_host, flight_host = make_host("h1"), make_host("h2")
    slot = make_slot(make_commitment(), slot_host, memory_gib=8, vcpus=4)
    vm = make_vm(memory_gib=2, vcpus=1, slot=slot, slot_state="expected")
    make_reservation(
        flight_host,
        kind=ReservationKind.IN_FLIGHT,
        vm_uuid=vm.openstack_id,
        placement_id=uuid.uuid4(),
        end_time=now(),
        confirmed_host=None,
    )

    def expected_only() -> ResourceVector:
        return current_host_table().reservations.by_id[slot.pk].expected_only

    def rename() -> None:
        Host.objects.filter(pk=flight_host.pk).update(name="h3")
        Host.objects.filter(pk=slot_host.pk).update(name="h2")

    expected = ResourceVector(memory_bytes=2 * GIB, vcpus=1)
    assert expected_only() == expected
    set_zone(slot_host, "az-b")
    read_ahead(monkeypatch, "read_hosts", rename)
    current_host_table()
    assert set(current_host_table().names) == {"h2", "h3"}
    assert expected_only() == expected
    assert verify_host_table() == {}


def set_zone(host: Host, zone: str) -> None:
    Host.objects.filter(pk=host.pk).update(zone=zone)


def zone_of(name: str) -> str:
    return zone_in(current_host_table(), name)


def zone_in(table: HostTable, name: str) -> str:
    code: int = table.zone[table.row_of[name]]
    return table.zones[code]
