"""The listener as a process, on a real RabbitMQ that goes away, and killed at any moment."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from config.launcher.processes import wait_until
from hosts.models import FeedHint
from journal.models import Heartbeat
from tests.e2e.processes import Process, wait_until_database_is_ours
from tests.hosts.test_listener import VM, send
from tests.peers.rabbitmq import IS_INSTALLED, RabbitMQ, running_rabbitmq

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not IS_INSTALLED, reason="no RabbitMQ here (Debian: rabbitmq-server)"),
]
import_module("hosts.listener")  # chooses the threads of oslo.service before what follows
oslo_messaging: Any = import_module("oslo_messaging")  # Any: it has no types
PATIENCE_SECONDS = 60.0


@pytest.fixture
def rabbit(tmp_path: Path) -> Iterator[RabbitMQ]:
    with running_rabbitmq(tmp_path) as node:
        yield node


@pytest.fixture
def listener(rabbit: RabbitMQ, tmp_path: Path) -> Iterator[Process]:
    process = Process(
        role="listener",
        directory=tmp_path,
        overrides={
            "HEADROOM_LISTENER__TRANSPORT_URL": rabbit.url,
            "HEADROOM_LISTENER__METRICS_PORT": "0",
        },
    )
    try:
        start(process)
        yield process
    finally:
        process.end()
        wait_until_database_is_ours()


def start(process: Process) -> None:
    """Start it and wait until its queue is there."""
    Heartbeat.objects.all().delete()
    process.start()
    is_there = Heartbeat.objects.filter(name="listener").exists
    assert wait_until(is_there, PATIENCE_SECONDS), process.log()


def tell(rabbit: RabbitMQ, name: str) -> None:
    """Send a notification as Nova does, on a connection that ends before the queue can go away."""
    oslo_messaging.set_transport_defaults("nova")
    transport = oslo_messaging.get_notification_transport(cfg.ConfigOpts(), url=rabbit.url)
    try:
        topics = ["versioned_notifications"]
        send(
            oslo_messaging.Notifier(transport, "nova:test", driver="messagingv2", topics=topics),
            name,
        )
    finally:
        transport.cleanup()


def heard(kind: str, object_id: str = "") -> bool:
    found = FeedHint.objects.filter(kind=kind, object_id=object_id)
    return wait_until(found.exists, PATIENCE_SECONDS)


def heard_in_the_end(rabbit: RabbitMQ, name: str, kind: str) -> bool:
    """Send until the listener is connected again: what comes before that may be lost."""

    def is_heard() -> bool:
        tell(rabbit, name)
        return FeedHint.objects.filter(kind=kind).exists()

    return wait_until(is_heard, PATIENCE_SECONDS)


def test_hints_outlive_the_queue_and_the_listener(listener: Process, rabbit: RabbitMQ) -> None:
    tell(rabbit, "instance-create-end")
    assert heard("servers", VM), listener.log()

    rabbit.stop()
    FeedHint.objects.all().delete()
    rabbit.start()
    assert heard_in_the_end(rabbit, "flavor-create", "flavors"), listener.log()

    rabbit.stop()
    assert listener.stop() == 0, listener.log()
    FeedHint.objects.all().delete()
    listener.start()
    rabbit.start()
    assert heard_in_the_end(rabbit, "flavor-delete", "flavors"), listener.log()

    listener.kill()
    FeedHint.objects.all().delete()
    for _ in range(3):  # doubled
        tell(rabbit, "service-update")
    start(listener)
    assert heard("hosts"), listener.log()
    assert FeedHint.objects.filter(kind="hosts").count() == 1
    assert listener.stop() == 0, listener.log()
