"""Every task has a queue, and what is quick does not wait behind what is long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from django.conf import settings
from kombu import Connection
from redis import Redis

from config.celery_app import app
from config.launcher.places import Checkout
from config.launcher.production import serve_command
from config.launcher.workers import names_queues, worker_commands
from config.queues import LONG, QUEUES, SOON, STEADY, broker_url
from core.jobs import QUEUE_OF, Queue, route
from tests.own_broker import own_database
from tests.schedule import beat_schedule

ROOT = Path(__file__).parents[2]
MOST_SECONDS = {SOON: 120, STEADY: 900, LONG: 3600}
OURS = (
    "core.",
    "capacity.",
    "commitments.",
    "failover.",
    "hosts.",
    "journal.",
    "placement.",
    "webhooks.",
)


def our_tasks() -> dict[str, int]:
    """Return the hard time limit of each task of ours, in seconds."""
    app.loader.import_default_modules()
    usual = int(app.conf.task_time_limit)
    return {
        name: int(task.time_limit or usual)
        for name, task in app.tasks.items()
        if name.startswith(OURS)
    }


def test_tasks_of_a_queue_end_before_its_patience_does() -> None:
    tasks = our_tasks()
    assert len(tasks) > 25
    for name, seconds in tasks.items():
        queue = QUEUE_OF[name]
        assert seconds <= MOST_SECONDS[queue], (name, queue, seconds)


def test_every_task_is_a_job_that_names_its_queue() -> None:
    assert QUEUE_OF.keys() == our_tasks().keys()
    assert set(QUEUE_OF.values()) == set(QUEUES) == set(get_args(Queue))


def test_a_process_that_needed_no_job_yet_sends_to_its_queue() -> None:
    show = "import django; django.setup(); from core.jobs import QUEUE_OF; "
    show += "from celery import current_app; assert not QUEUE_OF; "
    show += "queue = current_app.amqp.router.route({}, 'failover.replan_due')['queue']; "
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", show + "print(queue.name)"],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "soon\n"
    assert route("celery.backend_cleanup") is None


def test_what_beat_sends_often_is_soon_or_short() -> None:
    for name, entry in beat_schedule().items():
        queue = entry["options"].get("queue") or QUEUE_OF[entry["task"]]
        every = getattr(entry["schedule"], "run_every", None)
        if queue == LONG and every is not None and name != "heartbeat-long":
            assert every.total_seconds() >= 60, name


def test_a_running_task_is_not_given_to_a_second_worker() -> None:
    visibility = app.conf.broker_transport_options["visibility_timeout"]
    assert visibility > max(our_tasks().values())


def test_worker_without_queues_is_one_for_each() -> None:
    checkout = Checkout(root=Path("/nowhere"))
    commands = worker_commands(checkout, ["--concurrency", "4"])
    assert list(commands) == list(QUEUES)
    for queue, line in commands.items():
        assert line[line.index("--queues") + 1] == queue
        assert line[-2:] == ["--concurrency", "4"]
        assert f"{queue}@%h" in line
    assert not names_queues(["--loglevel", "INFO"])
    for extra in (["--queues", SOON], ["--queues=soon"], ["-Q", SOON], ["-Qsoon"]):
        assert names_queues(extra)
        line = serve_command(checkout, "worker", extra)
        assert line[-len(extra) :] == extra
        assert line.count("--queues") == extra.count("--queues")
    alone = serve_command(checkout, "worker", [])
    assert alone[alone.index("--queues") + 1] == "soon,steady,long"


def test_messages_go_to_the_database_of_redis_that_the_address_names() -> None:
    address = own_database(settings.REDIS_URL, "gw14")
    with Connection(broker_url(address)) as connection, Redis.from_url(address) as database:
        with connection.SimpleQueue("named-database") as queue:
            queue.put({})
            assert database.llen("named-database") == 1
            queue.clear()
        assert database.llen("named-database") == 0


@pytest.mark.parametrize(
    "address", ["redis://:secret@10.0.0.1:6379/4", "rediss://10.0.0.1/0?ssl_cert_reqs=required"]
)
def test_addresses_that_are_no_socket_are_given_as_they_are(address: str) -> None:
    assert broker_url(address) == address
