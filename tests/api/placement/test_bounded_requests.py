"""No request of allocations spins: names are compared as UUIDs, and the lock's loop ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.utils import OperationalError

from journal.outages import sqlstate_of
from tests.placement.client import Answer, PlacementClient, consumer_body, drift, uuid

pytestmark = pytest.mark.django_db

LOCK = "SELECT placement_lock_consumers(%s::uuid[], %s, %s, NULL)"


@pytest.fixture(autouse=True)
def _bounded(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '20s'")


def post(placement: PlacementClient, consumer: str, other: str, provider: str) -> Answer:
    body = {name: consumer_body({provider: {"VCPU": 1}}) for name in (consumer, other)}
    return placement.post("/allocations", body, version="1.28")


def reshape(placement: PlacementClient, consumer: str, other: str, provider: str) -> Answer:
    body = {name: consumer_body({provider: {"VCPU": 1}}) for name in (consumer, other)}
    inventories = {
        provider: {"resource_provider_generation": 1, "inventories": {"VCPU": {"total": 8}}}
    }
    return placement.post(
        "/reshaper",
        {"inventories": inventories, "allocations": body},
        X_Roles="service",
        version="1.30",
    )


@pytest.mark.parametrize("write", [post, reshape])
def test_a_consumer_named_twice_is_refused(
    placement: PlacementClient, write: Callable[..., Answer]
) -> None:
    provider, consumer = placement.make_provider(VCPU=8), uuid()
    answer = write(placement, consumer, consumer.upper(), provider)
    assert answer.status == 400
    assert f"names consumer {consumer} more than once" in answer.error["detail"]
    assert placement.used(provider) == {"VCPU": 0}
    assert placement.held(consumer) == {}
    assert drift() == []


def test_a_provider_named_twice_is_refused(placement: PlacementClient) -> None:
    provider, consumer = placement.make_provider(VCPU=8), uuid()
    twice = provider.upper()
    body = consumer_body({provider: {"VCPU": 1}, twice: {"VCPU": 2}})
    answer = placement.put(f"/allocations/{consumer}", body, version="1.28")
    assert answer.status == 400
    assert f"names resource provider {provider} more than once" in answer.error["detail"]
    new = {"resource_provider_generation": 1, "inventories": {"VCPU": {"total": 4}}}
    answer = placement.post(
        "/reshaper",
        {"inventories": {provider: new, twice: new}, "allocations": {}},
        X_Roles="service",
        version="1.30",
    )
    assert answer.status == 400
    assert f"names resource provider {provider} more than once" in answer.error["detail"]
    assert placement.generation(provider) == 1


def lock(cursor: Any, uuids: list[str]) -> None:
    cursor.execute(LOCK, [uuids, ["p"] * len(uuids), ["u"] * len(uuids)])


@pytest.mark.sql("placement_lock_consumers")
def test_the_lock_counts_a_consumer_once() -> None:
    consumer = uuid()
    with connection.cursor() as cursor:
        lock(cursor, [consumer, consumer])
        cursor.execute("SELECT count(*) FROM placement_consumer WHERE uuid = %s", [consumer])
        assert cursor.fetchone() == (1,)


def test_the_lock_gives_up_when_others_always_delete_what_it_made() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION pg_temp.gone() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RETURN NULL; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER gone BEFORE INSERT ON placement_consumer "
            "FOR EACH ROW EXECUTE FUNCTION pg_temp.gone()"
        )
        with pytest.raises(OperationalError) as caught, transaction.atomic():
            lock(cursor, [uuid()])
    assert sqlstate_of(caught.value) == "40001"
