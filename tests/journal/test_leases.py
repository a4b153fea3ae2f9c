"""Leases: one holder at a time, across connections and deaths, checked by each write."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from threading import enumerate as enumerate_threads
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, transaction
from psycopg.pq import TransactionStatus

from capacity.locks import zone_lock
from config.launcher.processes import wait_until
from journal.leases import LeaseLost, check_leases, held_lease, take_lease
from journal.models import Lease as LeaseRow

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "tests.work:az-a"
PATIENCE_SECONDS = 30.0


def expire(name: str = NAME) -> None:
    """Let the term of a lease end, as if its holder had been silent."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE journal_lease SET expires_at = clock_timestamp() WHERE name = %s", [name]
        )


def elsewhere(work: object) -> object:
    """Run something on another connection."""

    def run() -> object:
        try:
            return work()  # type: ignore[operator]  # a function without arguments
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result(PATIENCE_SECONDS)


def test_lease_has_one_holder_and_is_free_when_that_one_is_done() -> None:
    with held_lease(NAME) as is_ours:
        assert is_ours
        assert elsewhere(lambda: take_lease(NAME)) is None
        with held_lease(NAME) as is_ours_again:
            assert not is_ours_again
        with held_lease("tests.work:az-b") as is_other:
            assert is_other
    again = take_lease(NAME)
    assert again is not None
    assert again.epoch == 2


def test_one_of_many_gets_a_lease() -> None:
    racers = 8
    barrier = Barrier(racers)

    def race(_: int) -> bool:
        try:
            barrier.wait(PATIENCE_SECONDS)
            return take_lease(NAME) is not None
        finally:
            connection.close()

    for _ in range(5):
        with ThreadPoolExecutor(racers) as pool:
            assert sum(pool.map(race, range(racers))) == 1
        expire()


def test_one_of_many_gets_a_lease_that_nobody_had() -> None:
    """Two rows of one epoch meet in either of two keys."""
    racers, names = 8, [f"tests.fresh:{number}" for number in range(60)]
    barrier = Barrier(racers)

    def race(_: int) -> list[bool]:
        try:
            won = []
            for name in names:
                barrier.wait(PATIENCE_SECONDS)
                won.append(take_lease(name) is not None)
            return won
        finally:
            connection.close()

    with ThreadPoolExecutor(racers) as pool:
        won = list(pool.map(race, range(racers)))
    assert [sum(each) for each in zip(*won, strict=True)] == [1] * len(names)


def test_a_lease_that_nobody_renews_goes_to_the_next_who_asks() -> None:
    first = take_lease(NAME)
    assert first is not None
    expire()
    second = take_lease(NAME)
    assert second is not None
    assert second.epoch == first.epoch + 1
    assert not first.renew()
    first.give_back()
    assert take_lease(NAME) is None  # what the first gives back is not its own any more


def test_a_lease_given_back_is_not_renewed() -> None:
    """The renewing thread may have chosen it just before."""
    first = take_lease(NAME)
    assert first is not None
    first.give_back()
    assert not first.renew()
    assert take_lease(NAME) is not None


def test_a_lease_that_ran_out_is_renewed_late_while_nobody_has_it() -> None:
    lease = take_lease(NAME)
    assert lease is not None
    expire()
    assert lease.renew()
    assert take_lease(NAME) is None


def test_a_living_holder_renews_its_lease(settings: object) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"lease_seconds": 0.3})  # type: ignore[attr-defined]
    with held_lease(NAME):
        taken_at = LeaseRow.objects.get(name=NAME).taken_at
        assert wait_until(
            lambda: (LeaseRow.objects.get(name=NAME).renewed_at - taken_at).total_seconds() > 1,
            PATIENCE_SECONDS,
        )
        assert LeaseRow.objects.get(name=NAME).epoch == 1


def test_one_thread_renews_all_leases_of_a_process(settings: object) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"lease_seconds": 0.3})  # type: ignore[attr-defined]
    for _ in range(20):
        with held_lease(NAME) as is_ours:
            assert is_ours
    others = ["tests.work:az-b", "tests.work:az-c"]
    with held_lease(others[0]), held_lease(others[1]):
        assert [thread.name for thread in enumerate_threads()].count("leases") == 1
        taken = dict(LeaseRow.objects.values_list("name", "taken_at"))

        def are_renewed() -> bool:
            now = dict(LeaseRow.objects.values_list("name", "renewed_at"))
            return all((now[name] - taken[name]).total_seconds() > 1 for name in others)

        assert wait_until(are_renewed, PATIENCE_SECONDS)
    assert LeaseRow.objects.get(name=NAME).epoch == 20
    assert wait_until(
        lambda: "leases" not in [thread.name for thread in enumerate_threads()], PATIENCE_SECONDS
    )


def test_a_lease_costs_a_message_to_take_and_one_to_give_back() -> None:
    connection.ensure_connection()  # which asks a new session where it leads
    seen: list[TransactionStatus] = []

    def look(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        seen.append(connection.connection.info.transaction_status)
        return result

    with connection.execute_wrapper(look), held_lease(NAME):
        pass
    assert seen == [TransactionStatus.IDLE] * 2


def test_a_write_of_a_holder_that_was_too_slow_is_refused() -> None:
    with held_lease(NAME) as is_ours:
        assert is_ours
        with transaction.atomic():
            zone_lock(["az-a"])
        expire()
        assert elsewhere(lambda: take_lease(NAME)) is not None
        with pytest.raises(LeaseLost), transaction.atomic():
            zone_lock(["az-a"])
    with transaction.atomic():
        zone_lock(["az-a"])  # outside of the run it is nobody's business


def test_nobody_takes_a_lease_while_its_holder_writes() -> None:
    with held_lease(NAME), transaction.atomic():
        check_leases()
        elsewhere(expire)
        assert elsewhere(lambda: take_lease(NAME)) is None
    assert take_lease(NAME) is not None


def test_a_lease_is_not_taken_within_a_transaction() -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        take_lease(NAME)


def test_renewal_goes_on_while_the_holder_writes() -> None:
    lease = take_lease(NAME)
    assert lease is not None
    written = Event()
    with transaction.atomic():
        lease.check()
        assert elsewhere(lease.renew)
        written.set()
    assert written.is_set()
    assert settings.HEADROOM.lease_seconds >= 1


def test_no_lock_of_a_session_is_taken_anywhere() -> None:
    from pathlib import Path  # noqa: PLC0415 - this test alone reads files

    root = Path(settings.BASE_DIR)
    apps = ("bridge", "capacity", "commitments", "config", "failover", "hosts", "journal")
    taken = [
        str(path)
        for app in (*apps, "console", "core", "placement", "scheduling")
        for kind in ("*.py", "*.sql")
        for path in (root / app).rglob(kind)
        if "advisory_lock" in path.read_text(encoding="utf-8")
    ]
    assert taken == []
