"""Hosts that VMs are to leave: what is left is counted until nothing is (spec hosts, C.3)."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F

from hosts.models import Eviction, Host, Instance
from hosts.services import evictions
from hosts.services.evictions import (
    MOST_LISTED,
    look_at_evictions,
    open_eviction,
    prune_evictions,
)
from journal.actors import Actor
from journal.models import AuditEntry
from tests.factories import make_host, make_vm

ANN = Actor(name="ann")


def order(host: Host, reason: str = "new disks") -> Eviction:
    with transaction.atomic():
        return open_eviction(host, reason=reason, actor=ANN)


def look() -> dict[str, int]:
    return look_at_evictions(actor=ANN, request_id="r")


def in_maintenance(name: str = "h1", **facts: Any) -> Host:
    return make_host(name, maintenance="manual", maintenance_reason="disks", **facts)


@pytest.mark.django_db(transaction=True)
def test_what_is_left_is_counted_until_nothing_is() -> None:
    host, other = in_maintenance(), make_host("h2")
    for number, status in enumerate(["ACTIVE", "ERROR", "MIGRATING", "SHUTOFF"]):
        make_vm(f"vm-{number}", host, status=status, memory_gib=2)
    make_vm("elsewhere", other)

    row = order(host)

    assert (row.outstanding_vms, row.outstanding_memory_bytes) == (4, 8 << 30)
    assert [one["name"] for one in row.outstanding] == ["vm-1", "vm-0", "vm-3", "vm-2"]
    assert row.outstanding[0]["step"] == "needs somebody: it is in an error"
    assert look() == {"open": 1}
    Instance.objects.filter(name__in=["vm-0", "vm-1"]).update(host=other)
    assert look() == {"open": 1}
    row.refresh_from_db()
    assert row.outstanding_vms == 2
    assert order(host, "and new memory").pk == row.pk
    Instance.objects.filter(host=host).update(host=other)

    assert look() == {"succeeded": 1}

    row.refresh_from_db()
    assert (row.end, row.outstanding, row.reason) == ("succeeded", [], "and new memory")
    assert row.closed_at is not None
    entry = AuditEntry.objects.get(action="host_eviction_ended")
    assert (entry.object_id, entry.after) == ("h1", {"end": "succeeded", "vms": 0})
    assert look() == {}
    assert order(host).pk != row.pk


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("maintenance", ["", "ha"])
def test_a_host_that_is_in_service_again_is_not_evicted_any_more(maintenance: str) -> None:
    host = in_maintenance()
    make_vm("vm", host)
    order(host)
    Host.objects.update(maintenance=maintenance)
    assert look() == {"cancelled": 1}
    row = Eviction.objects.get()
    assert (row.end, row.outstanding_vms) == ("cancelled", 1)


@pytest.mark.django_db(transaction=True)
def test_orders_and_looks_at_once_leave_one_open_and_end_it_once() -> None:
    host = in_maintenance()
    barrier = threading.Barrier(4)
    errors: list[Exception] = []

    def run(work: Any) -> None:
        try:
            barrier.wait(30)
            work()
        except Exception as error:  # noqa: BLE001 - told to the test
            errors.append(error)
        finally:
            connection.close()

    works = [lambda: order(host), lambda: order(host), look, look]
    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    look()
    assert not errors
    ended = AuditEntry.objects.filter(action="host_eviction_ended").count()
    assert ended == Eviction.objects.filter(end="succeeded").count() == Eviction.objects.count()


@pytest.mark.django_db(transaction=True)
def test_an_order_again_forgets_nothing_of_what_is_done_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = in_maintenance()
    row = order(host)

    def move() -> None:
        Eviction.objects.filter(pk=row.pk).update(service_disabled=True, moving_uuid="vm-1")
        connection.close()

    moving = threading.Thread(target=move)

    def counted(row: Eviction) -> None:
        moving.start()
        moving.join(timeout=1)
        count(row)

    count = evictions._count
    monkeypatch.setattr(evictions, "_count", counted)
    assert order(host, "and new memory").pk == row.pk
    moving.join()
    row.refresh_from_db()
    assert (row.service_disabled, row.moving_uuid) == (True, "vm-1")
    assert row.reason == "and new memory"


@pytest.mark.django_db
def test_the_database_keeps_one_open_and_ends_with_a_time() -> None:
    host = in_maintenance()
    Eviction.objects.create(host=host, reason="r", opened_by="ann")
    for facts in ({}, {"end": "succeeded"}, {"outstanding_vms": -1}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Eviction.objects.create(host=host, reason="r", opened_by="ann", **facts)


@pytest.mark.django_db
def test_a_full_host_lists_the_first_of_its_vms() -> None:
    host = in_maintenance(memory_gib=4096)
    for number in range(MOST_LISTED + 2):
        make_vm(f"vm-{number:03}", host, memory_gib=1)
    row = order(host)
    assert (row.outstanding_vms, len(row.outstanding)) == (MOST_LISTED + 2, MOST_LISTED)


@pytest.mark.django_db
def test_those_that_ended_are_forgotten_after_a_month_and_open_ones_never() -> None:
    host = in_maintenance()
    order(host)
    ended = Eviction.objects.create(
        host=host, reason="r", opened_by="ann", end="succeeded", closed_at="2026-01-01T00:00Z"
    )
    fresh = Eviction.objects.create(
        host=host, reason="r", opened_by="ann", end="cancelled", closed_at="2100-01-01T00:00Z"
    )
    Eviction.objects.update(opened_at=F("opened_at") - timedelta(days=400))
    assert prune_evictions() == 1
    assert not Eviction.objects.filter(pk=ended.pk).exists()
    assert Eviction.objects.filter(pk=fresh.pk).exists()
    assert Eviction.objects.count() == 2
