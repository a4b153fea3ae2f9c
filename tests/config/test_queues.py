"""Every task has a queue, and what is quick does not wait behind what is long."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

from config.celery_app import app
from config.launcher.places import Checkout
from config.launcher.production import serve_command
from config.launcher.workers import names_queues, worker_commands
from config.queues import LONG, QUEUES, ROUTES, SOON, STEADY

MOST_SECONDS = {SOON: 120, STEADY: 900, LONG: 3600}
OURS = ("capacity.", "commitments.", "failover.", "hosts.", "journal.", "placement.")


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
        queue = ROUTES.get(name, {"queue": STEADY})["queue"]
        assert seconds <= MOST_SECONDS[queue], (name, queue, seconds)


def test_every_route_is_of_a_task_that_there_is() -> None:
    assert ROUTES.keys() <= our_tasks().keys()
    assert {route["queue"] for route in ROUTES.values()} == {SOON, LONG}


def test_what_beat_sends_often_is_soon_or_short() -> None:
    for name, entry in settings.CELERY["beat_schedule"].items():
        queue = entry["options"].get("queue") or ROUTES.get(entry["task"], {}).get("queue")
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
