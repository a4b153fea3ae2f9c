"""Statements per request, and connections that break (spec placement, 9.5)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import (
    OperationalError,
    connection,
    connections,
)
from django.test.utils import CaptureQueriesContext

from core.prepared import run
from journal.errors import Busy
from placement.database import in_transaction, retried
from placement.domain.errors import CONCURRENT_UPDATE, Conflict
from tests.placement.client import PlacementClient, placement_settings, uuid

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def placement(settings: Any) -> PlacementClient:
    placement_settings(settings, enforce_new_defaults=True)
    return PlacementClient()


def kill_connection() -> None:
    """End this thread's connection as a restart of the server would."""
    connection.ensure_connection()
    pid = connection.connection.info.backend_pid
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    finally:
        other.close()


@pytest.mark.parametrize(
    ("method", "path", "statements"),
    [
        ("GET", "/", 0),
        ("GET", "/resource_providers", 1),
        ("GET", "/resource_providers/{provider}", 1),
        ("GET", "/resource_providers/{provider}/inventories", 1),
        ("GET", "/resource_providers/{provider}/inventories/VCPU", 1),
        ("GET", "/resource_providers/{provider}/usages", 1),
        ("GET", "/resource_providers/{provider}/aggregates", 1),
        ("GET", "/resource_providers/{provider}/traits", 1),
        ("GET", "/resource_providers/{provider}/allocations", 1),
        ("GET", "/resource_providers/bogus/allocations", 0),
        ("GET", "/allocations/{consumer}", 1),
        ("GET", "/usages?project_id=p", 1),
        ("GET", "/traits", 1),
        ("GET", "/traits/HW_CPU_X86_SSE", 1),
        ("GET", "/resource_classes", 1),
        ("DELETE", "/allocations/{consumer}", 1),
    ],
)
def test_statements_of_a_request(
    placement: PlacementClient, method: str, path: str, statements: int
) -> None:
    provider, consumer = placement.make_provider(VCPU=8), uuid()
    placement.allocate(consumer, {provider: {"VCPU": 1}})
    placement.get("/resource_providers")  # so that this process keeps the providers
    with CaptureQueriesContext(connection) as captured:
        answer = placement.call(method, path.format(provider=provider, consumer=consumer))
    assert answer.status in {200, 204, 404}
    assert len(captured) == statements


def test_a_write_of_allocations_is_one_statement(placement: PlacementClient) -> None:
    provider = placement.make_provider(VCPU=8)
    with CaptureQueriesContext(connection) as captured:
        assert placement.allocate(uuid(), {provider: {"VCPU": 1}}).status == 204
    assert len(captured) == 1


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_connection_that_ended_while_idle_is_not_noticed(
    placement: PlacementClient, method: str
) -> None:
    provider, consumer = placement.make_provider(VCPU=8), uuid()
    placement.allocate(consumer, {provider: {"VCPU": 1}})
    kill_connection()
    if method == "PUT":
        assert placement.allocate(uuid(), {provider: {"VCPU": 1}}).status == 204
    else:
        assert placement.call(method, f"/allocations/{consumer}").status in {200, 204}


def test_transactions_begin_on_a_live_connection(placement: PlacementClient) -> None:
    placement.get("/traits")
    kill_connection()
    assert placement.post("/resource_providers", {"name": "n"}).status == 200


def test_a_lost_deadlock_is_run_again_and_told_in_the_end(placement: PlacementClient) -> None:
    attempts = []

    def deadlock() -> None:
        attempts.append(1)
        run("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40P01'; END $$")

    with pytest.raises(Conflict) as caught:
        retried(deadlock)
    assert caught.value.wire_code == CONCURRENT_UPDATE
    assert len(attempts) == 4


def test_other_failures_are_not_repeated(placement: PlacementClient) -> None:
    attempts = []

    def full() -> None:
        attempts.append(1)
        run("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100'; END $$")

    with pytest.raises(OperationalError):
        retried(full)
    assert len(attempts) == 1


def test_rows_that_are_locked_for_too_long_are_busy(
    placement: PlacementClient, settings: Any
) -> None:
    provider, consumer = placement.make_provider(VCPU=8), uuid()
    placement.allocate(consumer, {provider: {"VCPU": 1}})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"lock_timeout_seconds": 0.05})
    holds, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        def work() -> None:
            run("SELECT id FROM placement_provider FOR UPDATE").fetchall()
            holds.set()
            may_end.wait(timeout=30)

        try:
            in_transaction(work)
        finally:
            connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert holds.wait(timeout=30)
        answer = placement.allocate(consumer, {provider: {"VCPU": 2}}, generation=1)
        moved = placement.put(f"/resource_providers/{provider}", {"name": "other"})
    finally:
        may_end.set()
        holder.join(timeout=30)
    assert (answer.status, moved.status) == (503, 503)
    assert answer.headers["retry-after"] == "1"
    assert placement.held(consumer) == {provider: {"VCPU": 1}}
    with pytest.raises(Busy):
        retried(lambda: run("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '55P03'; END $$"))
