"""What projects use is kept by every write and never drifts (spec placement, 5.8)."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, connections

from journal.actors import Actor
from placement.models import Allocation, Consumer, ProjectUsage
from placement.selectors.allocations import get_project_usages
from placement.services.audit import AuditKind, find_problems, repair_problems
from placement.services.upkeep import MOST_READ_ROWS, MOST_USAGE_ROWS, fold_project_usage
from placement.tasks import fold_project_usage as fold_task
from tests.placement.client import PlacementClient, consumer_body, placement_settings, uuid

pytestmark = pytest.mark.django_db(transaction=True)

PROJECTS = ("p1", "p2")
USERS = ("u1", "u2")
TYPES = (None, "INSTANCE", "MIGRATION")
Usages = dict[str, tuple[dict[str, int], int]]


@pytest.fixture
def client(settings: Any) -> PlacementClient:
    placement_settings(settings)
    return PlacementClient(version="1.39")


def drift() -> list[str]:
    return [one.detail for one in find_problems() if one.kind == AuditKind.PROJECT_USAGE]


def kept(project: str, **chosen: Any) -> Usages:
    found = get_project_usages(project, **chosen)
    return {kind: (usage.resources, usage.consumer_count) for kind, usage in found.items()}


def summed(project: str, *, user_id: str | None = None, consumer_type: str | None = None) -> Usages:
    """Return what :func:`kept` should, by going through all allocations."""
    amounts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    consumers: defaultdict[str, set[int]] = defaultdict(set)
    rows = Allocation.objects.select_related(
        "consumer__project", "consumer__user", "consumer__type", "resource_class"
    )
    for row in rows.order_by("resource_class_id"):
        consumer = row.consumer
        kind = consumer.type.name if consumer.type else "unknown"
        if consumer.project.external_id != project:
            continue
        if user_id is not None and consumer.user.external_id != user_id:
            continue
        if consumer_type == "all":
            kind = "all"
        elif consumer_type is not None and kind != consumer_type:
            continue
        name = row.resource_class.name
        amounts[kind][name] = amounts[kind].get(name, 0) + row.used
        consumers[kind].add(consumer.pk)
    return {kind: (found, len(consumers[kind])) for kind, found in amounts.items()}


class Writes:
    """Random writes of a few consumers on a few providers, some of which must be refused."""

    def __init__(self, client: PlacementClient, random: Random) -> None:
        self.client = client
        self.random = random
        self.providers = [client.make_provider(VCPU=20, MEMORY_MB=4096) for _ in range(3)]
        self.consumers = [uuid() for _ in range(5)]

    def body(self, consumer: str) -> dict[str, Any]:
        random = self.random
        known = Consumer.objects.filter(uuid=UUID(consumer)).first()
        amounts = {
            provider: {"VCPU": random.randint(1, 9), "MEMORY_MB": random.choice((64, 128))}
            for provider in random.sample(self.providers, random.randint(0, 2))
        }
        return consumer_body(
            amounts,
            generation=known.generation if known else None,
            version="1.39",
            project_id=random.choice(PROJECTS),
            user_id=random.choice(USERS),
            consumer_type=random.choice(TYPES[1:]),
        )

    def one(self) -> None:
        random, client = self.random, self.client
        consumer = random.choice(self.consumers)
        kind = random.choice(("put", "put", "put without type", "post", "delete", "fold"))
        if kind == "fold":
            fold_project_usage()
        elif kind == "delete":
            client.delete(f"/allocations/{consumer}")
        elif kind == "post":
            chosen = random.sample(self.consumers, 3)
            client.post("/allocations", {one: self.body(one) for one in chosen})
        elif kind == "put":
            client.put(f"/allocations/{consumer}", self.body(consumer))
        else:
            body = self.body(consumer)
            del body["consumer_type"]
            client.put(f"/allocations/{consumer}", body, version="1.36")


@pytest.mark.parametrize("seed", range(4))
def test_usage_is_the_sum_of_allocations_after_any_writes(
    client: PlacementClient, seed: int
) -> None:
    writes = Writes(client, Random(seed))  # noqa: S311 - the same writes every time
    for number in range(60):
        writes.one()
        if number % 10 == 9:
            assert drift() == []
            for project in PROJECTS:
                assert kept(project) == summed(project)
                for chosen in ({"user_id": "u1"}, {"consumer_type": "all"}):
                    assert kept(project, **chosen) == summed(project, **chosen)
                for kind in ("unknown", "INSTANCE", "NOBODY"):
                    found = kept(project, user_id="u2", consumer_type=kind)
                    assert found == summed(project, user_id="u2", consumer_type=kind)
    assert Allocation.objects.exists()


def test_writers_and_folds_at_once_lose_nothing(client: PlacementClient) -> None:
    writers = [Writes(client, Random(seed)) for seed in range(4)]  # noqa: S311 - as above
    failures: list[Exception] = []

    def work(writes: Writes) -> None:
        try:
            for _ in range(40):
                writes.one()
        except Exception as error:  # noqa: BLE001 - told by the test
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(writes,)) for writes in writers]
    for thread in threads:
        thread.start()
    with connection.cursor() as cursor:
        while any(thread.is_alive() for thread in threads):
            cursor.execute("SELECT placement_fold_project_usage(0)")
            cursor.execute("SELECT placement_rebuild_project_usage()")
    for thread in threads:
        thread.join()
    assert failures == []
    assert drift() == []


@pytest.mark.sql("placement_fold_project_usage")
def test_a_fold_leaves_one_row_for_each_sum_and_none_for_nothing(client: PlacementClient) -> None:
    provider = client.make_provider(VCPU=100)
    stays = uuid()
    assert client.allocate(stays, {provider: {"VCPU": 2}}).status == 204
    for _ in range(MOST_USAGE_ROWS):
        consumer = uuid()
        assert client.allocate(consumer, {provider: {"VCPU": 1}}).status == 204
        assert client.delete(f"/allocations/{consumer}").status == 204
    before = [kept(project) for project in ("p", "p1")]
    assert fold_task()["folded"] > MOST_USAGE_ROWS
    assert sorted(ProjectUsage.objects.values_list("used", flat=True)) == [1, 2]
    assert [kept(project) for project in ("p", "p1")] == before
    assert fold_task() == {"folded": 0}


@pytest.fixture
def _no_autovacuum() -> Iterator[None]:
    """Keep autovacuum off the table: it would be another who sums up."""
    table = ProjectUsage._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        yield
        cursor.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


@pytest.mark.sql("placement_fold_usage_of")
@pytest.mark.usefixtures("_no_autovacuum")
def test_who_reads_many_rows_sums_them_up_unless_another_does(client: PlacementClient) -> None:
    provider = client.make_provider(VCPU=100)
    for project in ("p1", "p2"):
        claim = client.allocate(uuid(), {provider: {"VCPU": 2}}, project_id=project)
        assert claim.status == 204
        row = ProjectUsage.objects.filter(project__external_id=project).first()
        assert row is not None
        owner = {"project_id": row.project_id, "user_id": row.user_id, "type_id": row.type_id}
        kind = {**owner, "resource_class_id": row.resource_class_id}
        changes = [ProjectUsage(**kind, used=used) for used in (5, -5)]
        ProjectUsage.objects.bulk_create(changes * (MOST_READ_ROWS // 2))
    of_project = ProjectUsage.objects.filter(project__external_id="p1")
    before, path = of_project.count(), "/usages?project_id=p1"
    assert before > MOST_READ_ROWS
    other = connections.create_connection("default")
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("LOCK TABLE placement_project_usage IN SHARE UPDATE EXCLUSIVE MODE")
        answer = client.get(path)
        assert of_project.count() == before
    finally:
        other.close()
    assert answer.json["usages"]["unknown"] == {"VCPU": 2, "consumer_count": 1}
    assert client.get(path).content == answer.content
    assert sorted(of_project.values_list("used", flat=True)) == [1, 2]
    assert client.get(path).content == answer.content
    assert ProjectUsage.objects.filter(project__external_id="p2").count() == before
    assert drift() == []


def test_a_refused_write_changes_no_usage(client: PlacementClient) -> None:
    provider, consumer = client.make_provider(VCPU=4), uuid()
    assert client.allocate(consumer, {provider: {"VCPU": 3}}).status == 204
    rows = list(ProjectUsage.objects.values())
    assert client.allocate(uuid(), {provider: {"VCPU": 2}}).status == 409
    assert list(ProjectUsage.objects.values()) == rows


@pytest.mark.sql("placement_rebuild_project_usage")
def test_drift_is_found_and_repaired(client: PlacementClient) -> None:
    provider = client.make_provider(VCPU=4)
    assert client.allocate(uuid(), {provider: {"VCPU": 3}}).status == 204
    ProjectUsage.objects.exclude(resource_class=None).update(used=5)
    assert drift() == ["usage says 5, allocations add up to 3"]
    found = find_problems()
    done = repair_problems(found, actor=Actor(name="test"), request_id="req-1")
    assert done[AuditKind.PROJECT_USAGE] == 1
    assert drift() == []
