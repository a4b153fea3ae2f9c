"""The worker is killed in the middle of syncs: the next one ends where an undisturbed one does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.utils import timezone
from kombu import Queue

from commitments.models import Commitment, CommitmentEvent, Condition, SyncRun
from commitments.services.sync import CHUNK_ROWS
from commitments.tasks import SYNC
from config.celery_app import app
from config.launcher.processes import wait_until
from journal.models import Outbox
from tests.e2e.processes import Process, someone_waits_for_a_lock, wait_until_database_is_ours
from tests.factories import make_commitment, make_group
from tests.peers.fake_cloud import PASSWORD, PROJECT, USER, FakeCloud, limes_commitment

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

GROUP = "test_group_v1"
NEW = 2 * CHUNK_ROWS + 100
CHANGED, MISSING, LONG_MISSING, FOUND_AGAIN, OVER = 40, 5, 6, 4, 3
PATIENCE_SECONDS = 90.0
SEED = 1
COMPARED = (
    "commitment_uuid",
    "state",
    "requested_amount",
    "project_id",
    "generation",
    "origin",
    "missed_syncs",
    "limes_record",
    "ready_reason",
)


@pytest.fixture
def worker(tmp_path: Path, fake_cloud: FakeCloud) -> Iterator[Process]:
    """A worker with a queue of its own that knows Keystone and Limes, not started yet."""
    queue = f"e2e-{uuid4()}"
    arguments = ["--queues", queue, "--concurrency", "1", "--without-mingle", "--without-gossip"]
    process = Process(
        role="worker",
        directory=tmp_path,
        arguments=arguments,
        overrides={
            "HEADROOM_KEYSTONE__AUTH_URL": f"{fake_cloud.url}/v3",
            "HEADROOM_KEYSTONE__USERNAME": USER,
            "HEADROOM_KEYSTONE__PASSWORD": PASSWORD,
            "HEADROOM_KEYSTONE__PROJECT_NAME": PROJECT,
            "HEADROOM_SYNC__CONCURRENCY": "2",
            "HEADROOM_SYNC__RETRIES": "0",
        },
    )
    yield process
    if process.child is not None and process.child.process.poll() is None:
        process.kill()
    with app.connection() as link:
        Queue(queue)(link.default_channel).delete()


def uuid_of(kind: str, number: int) -> str:
    return f"{kind}-{number:06}"


def prepare() -> None:
    """Store what is known before: rows to change, to miss, to end, to find again, to forget."""
    now = timezone.now()
    long_ago = now - timedelta(hours=7)
    for number in range(CHANGED):
        make_commitment(uuid_of("changed", number), group=GROUP, project_id="p0")
    for number in range(MISSING):
        make_commitment(uuid_of("missing", number), group=GROUP)
    for number in range(LONG_MISSING):
        make_commitment(
            uuid_of("long-missing", number), group=GROUP, missed_syncs=2, missing_since=long_ago
        )
    for number in range(FOUND_AGAIN):
        make_commitment(
            uuid_of("found", number), group=GROUP, missed_syncs=2, missing_since=long_ago
        )
    for number in range(OVER):
        make_commitment(
            uuid_of("over", number),
            group=GROUP,
            end_time=now - timedelta(days=2),
            ready_status=False,
            ready_reason=Condition.EXPIRED,
            ready_changed_at=now - timedelta(days=2),
        )


@pytest.fixture
def listed(fake_cloud: FakeCloud) -> FakeCloud:
    """Limes lists new, changed and found commitments in eight projects."""
    uuids = [
        *(uuid_of("new", number) for number in range(NEW)),
        *(uuid_of("changed", number) for number in range(CHANGED)),
        *(uuid_of("found", number) for number in range(FOUND_AGAIN)),
    ]
    for number, uuid in enumerate(uuids):
        fake_cloud.add(f"p{number % 8}", [limes_commitment(uuid, id=number, amount=3)])
    return fake_cloud


def dispatch(worker: Process) -> None:
    app.send_task(SYNC, queue=worker.arguments[1])


def run_undisturbed(worker: Process) -> list[object]:
    worker.start()
    dispatch(worker)
    good = SyncRun.objects.filter(outcome="success")
    assert wait_until(good.exists, PATIENCE_SECONDS), worker.log()
    worker.kill()
    wait_until_database_is_ours()
    return state_of_everything()


def state_of_everything() -> list[object]:
    """Return all that a sync writes, without keys and times."""
    return [
        sorted(Commitment.objects.values_list(*COMPARED), key=str),
        sorted(CommitmentEvent.objects.values_list("commitment_uuid", "action")),
        sorted(Outbox.objects.values_list("object_id", "topic")),
    ]


def forget_everything() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE commitments_commitment, commitments_commitmentevent, commitments_syncrun, "
            "journal_outbox CASCADE"
        )


def killed_while_limes_is_read(worker: Process, cloud: FakeCloud, number: int) -> None:
    cloud.always = {f"/limes/v1/domains/domain-1/projects/p{number % 8}/": "hang"}
    cloud.seen.clear()
    dispatch(worker)
    path = f"/limes/v1/domains/domain-1/projects/p{number % 8}/commitments"
    assert wait_until(lambda: cloud.seen[path] > 0, PATIENCE_SECONDS), worker.log()


def killed_while_a_chunk_is_written(worker: Process, cloud: FakeCloud, number: int) -> None:
    del cloud
    row = Commitment.objects.select_for_update().get(
        commitment_uuid=uuid_of("changed", number % CHANGED)
    )
    assert row.pk
    dispatch(worker)
    assert wait_until(someone_waits_for_a_lock, PATIENCE_SECONDS), worker.log()


def killed_while_the_missing_are_judged(worker: Process, cloud: FakeCloud, number: int) -> None:
    del cloud
    row = Commitment.objects.select_for_update().get(
        commitment_uuid=uuid_of("missing", number % MISSING)
    )
    assert row.pk
    dispatch(worker)
    assert wait_until(someone_waits_for_a_lock, PATIENCE_SECONDS), worker.log()


def killed_between_chunks(worker: Process, cloud: FakeCloud, number: int) -> None:
    del cloud, number
    before = CommitmentEvent.objects.count()
    runs = SyncRun.objects.count()
    dispatch(worker)
    assert wait_until(
        lambda: CommitmentEvent.objects.count() > before or SyncRun.objects.count() > runs,
        PATIENCE_SECONDS,
    ), worker.log()


KILLS: list[Callable[[Process, FakeCloud, int], None]] = [
    killed_while_limes_is_read,
    killed_while_a_chunk_is_written,
    killed_between_chunks,
    killed_while_the_missing_are_judged,
]


def test_a_sync_that_is_killed_and_run_again_ends_where_an_undisturbed_one_does(
    worker: Process, listed: FakeCloud
) -> None:
    make_group(GROUP, flavors=[("small", 1024, 1)])
    forget_everything()
    prepare()
    expected = run_undisturbed(worker)
    ends = Commitment.objects.filter(state="superseded", origin="sync").count()
    assert (Commitment.objects.count(), ends) == (
        NEW + CHANGED + MISSING + LONG_MISSING + FOUND_AGAIN,
        LONG_MISSING,
    )

    forget_everything()
    prepare()
    chance = random.Random(SEED)  # noqa: S311 - a test
    kills = list(KILLS)
    chance.shuffle(kills)
    kills.sort(key=lambda kill: kill is killed_while_the_missing_are_judged)
    for kill in kills:
        worker.start()
        with transaction.atomic():
            kill(worker, listed, chance.randrange(1000))
            worker.kill()
        listed.released.set()
        listed.released.clear()
        listed.always = {}
        wait_until_database_is_ours()
        assert not SyncRun.objects.filter(outcome="success").exists()
        created = Commitment.objects.filter(commitment_uuid__startswith="new").count()
        assert created in set(_whole_chunks())

    assert run_undisturbed(worker) == expected
    runs = SyncRun.objects.order_by("pk").values_list("outcome", flat=True)
    assert list(runs) == ["abandoned"] * len(KILLS) + ["success"]


def _whole_chunks() -> Iterator[int]:
    """Yield how many of the new rows are there after whole chunks, in order of uuid."""
    uuids = sorted(
        [uuid_of("new", number) for number in range(NEW)]
        + [uuid_of("changed", number) for number in range(CHANGED)]
        + [uuid_of("found", number) for number in range(FOUND_AGAIN)]
    )
    for end in range(0, len(uuids) + CHUNK_ROWS, CHUNK_ROWS):
        yield sum(uuid.startswith("new") for uuid in uuids[:end])
