"""What the tests of the syncer share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.db import connection
from prometheus_client import REGISTRY, CollectorRegistry

from commitments.clients.http_cloud import HTTPCloud
from commitments.conf import SyncSettings
from commitments.metrics.gauges import SYNC
from commitments.models import Commitment
from commitments.services.sync import SyncReport, sync_commitments
from journal.actors import task_actor
from tests.factories import make_commitment
from tests.peers.fake_cloud import FakeCloud, limes_commitment

GROUP = "test_group_v1"
NOW = datetime(2026, 11, 21, tzinfo=UTC)
UUID = "6a1d3c52-0d1c-4a7a-9d7e-1a2b3c4d5e6f"
LIMES = "/limes/v1/"
SYNCER = task_actor("commitments.sync")


def uuid_of(number: int) -> str:
    return f"aaaaaaaa-0000-0000-0000-{number:012}"


def sync(cloud: FakeCloud, *, now: datetime | None = NOW, **options: Any) -> SyncReport:
    settings = SyncSettings(retries=0, timeout_seconds=20)
    client = HTTPCloud(cloud.settings(), settings)
    return sync_commitments(client, actor=SYNCER, request_id="req", now=now, **options)


def many(cloud: FakeCloud, count: int) -> None:
    """Let Limes list commitments of four projects."""
    for number in range(count):
        cloud.add(f"p{number % 4}", [limes_commitment(uuid_of(number), id=number)])


def understood(cloud: FakeCloud) -> None:
    """Let Limes list a commitment that is fine, so that not all are misunderstood."""
    cloud.add("fine", [limes_commitment(uuid_of(999_999), id=999_999)])


def metric(name: str, **labels: str) -> float:
    full = f"cortex_committed_resource_syncer_{name}"
    return REGISTRY.get_sample_value(full, labels) or 0.0


def fact(name: str) -> float | None:
    """Return a gauge that is read from the rows of the runs."""
    full = f"cortex_committed_resource_syncer_{name}"
    registry = CollectorRegistry()
    registry.register(SYNC)
    return registry.get_sample_value(full)


def tuples() -> list[tuple[object, ...]]:
    """Return the physical versions of every row that a sync could write."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 'c', id, ctid::text, xmin::text FROM commitments_commitment UNION ALL "
            "SELECT 'e', id, ctid::text, xmin::text FROM commitments_commitmentevent UNION ALL "
            "SELECT 'o', id, ctid::text, xmin::text FROM journal_outbox UNION ALL "
            "SELECT 'r', id, ctid::text, xmin::text FROM capacity_reservation ORDER BY 1, 2"
        )
        return list(cursor.fetchall())


def live_row(uuid: str = UUID, **fields: Any) -> Commitment:
    return make_commitment(uuid, group=GROUP, amount_gib=2, project_id="p1", **fields)


def empty(cloud: FakeCloud) -> None:
    cloud.commitments.clear()


def keystone_down(cloud: FakeCloud) -> None:
    cloud.always = {"/v3/": 503}
