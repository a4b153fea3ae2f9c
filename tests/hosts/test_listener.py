"""The listener on oslo.messaging's driver in memory: what is sent, forged, lost and repeated."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from oslo_config import cfg
from pydantic import SecretStr
from structlog.testing import capture_logs

from config.launcher.processes import wait_until
from hosts.doctor import check_listener
from hosts.domain.notifications import Hint
from hosts.feed.hints import MOST_HINTS
from hosts.feed.lists import PassKind
from hosts.listener import Endpoint, Hints, listen
from hosts.models import FeedHint
from journal.clock import database_now
from journal.models import Heartbeat
from journal.services import record_heartbeat

oslo_messaging: Any = import_module("oslo_messaging")  # Any: it has no types; after the listener
PATIENCE_SECONDS = 30.0
SAMPLES = json.loads(
    (Path(__file__).parents[1] / "data" / "nova-notifications.json").read_text(encoding="utf-8")
)["samples"]
VM = "178b0921-8f85-4257-88b6-2e743b5a975c"


@pytest.fixture
def exchange(settings: Any) -> str:
    """Have the listener at an exchange that no other test uses."""
    name = f"nova-{uuid4()}"
    changed = {"transport_url": SecretStr("fake://"), "exchange": name}
    chosen = settings.HEADROOM.listener.model_copy(update=changed)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"listener": chosen})
    return name


@contextmanager
def listening() -> Iterator[threading.Event]:
    until = threading.Event()
    thread = threading.Thread(target=listen, args=(until,))
    thread.start()
    try:
        assert wait_until(lambda: Heartbeat.objects.filter(name="listener").exists(), 30.0)
        yield until
    finally:
        until.set()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def notifier(exchange: str) -> Any:
    oslo_messaging.set_transport_defaults(exchange)  # as Nova does with its control_exchange
    transport = oslo_messaging.get_notification_transport(cfg.ConfigOpts(), url="fake://")
    return oslo_messaging.Notifier(
        transport, "nova-compute:test", driver="messagingv2", topics=["versioned_notifications"]
    )


def send(to: Any, name: str, **data: Any) -> None:
    sample = SAMPLES[name]
    payload = json.loads(json.dumps(sample["payload"]))
    payload["nova_object.data"].update(data)
    (to.error if sample["priority"] == "ERROR" else to.info)({}, sample["event_type"], payload)


def hints() -> set[tuple[str, str]]:
    return set(FeedHint.objects.values_list("kind", "object_id"))


def waited_for(wanted: set[tuple[str, str]]) -> set[tuple[str, str]]:
    wait_until(lambda: wanted <= hints(), PATIENCE_SECONDS)
    return hints()


@pytest.mark.django_db(transaction=True)
class TestListening:
    def test_notifications_become_hints_once_each(self, exchange: str) -> None:
        with listening():
            to = notifier(exchange)
            for name in (
                "instance-create-end",
                "instance-create-start",
                "flavor-create",
                "instance-create-end",
                "instance-create-error",
                "service-update",
                "scheduler-select_destinations-end",
            ):
                send(to, name)
            wanted = {("servers", VM), ("flavors", ""), ("hosts", "")}
            assert waited_for(wanted) == wanted
        assert Heartbeat.objects.filter(name="notification").exists()

    @pytest.mark.parametrize(
        "name",
        [
            "instance-resize_finish-end",
            "instance-live_migration_post_dest-end",
            "instance-evacuate",
        ],
    )
    def test_a_vm_on_its_way_has_migrations_looked_at(self, exchange: str, name: str) -> None:
        with listening():
            send(notifier(exchange), name)
            wanted = {("servers", VM), ("migrations", "")}
            assert waited_for(wanted) == wanted

    def test_what_is_forged_hints_at_nothing_and_stops_nothing(self, exchange: str) -> None:
        with listening():
            to = notifier(exchange)
            for data in ({"uuid": "x' OR 1=1"}, {"uuid": None}, {"uuid": ["a"] * 9}):
                send(to, "instance-create-end", **data)
            to.info({}, "instance.create.end", "no object")
            to.info({}, "\0" * 9, {"a": 1})
            send(to, "flavor-delete")
            assert waited_for({("flavors", "")}) == {("flavors", "")}

    def test_what_is_sent_while_nobody_listens_is_heard_later(self, exchange: str) -> None:
        with listening():
            pass  # our queue is there from now on
        send(notifier(exchange), "instance-delete-end")
        Heartbeat.objects.all().delete()
        with listening():
            assert waited_for({("servers", VM)}) == {("servers", VM)}

    def test_another_consumer_of_the_topic_hears_all_of_it(self, exchange: str) -> None:
        heard: list[str] = []

        class Other:
            def info(self, *about: Any) -> None:
                heard.append(about[2])

        transport = oslo_messaging.get_notification_transport(cfg.ConfigOpts(), url="fake://")
        target = oslo_messaging.Target(exchange=exchange, topic="versioned_notifications")
        other = oslo_messaging.get_notification_listener(
            transport, [target], [Other()], executor="threading"
        )
        other.start()
        try:
            with listening():
                send(notifier(exchange), "flavor-create")
                waited_for({("flavors", "")})
                wait_until(lambda: bool(heard), PATIENCE_SECONDS)
            assert heard == ["flavor.create"]
        finally:
            other.stop()
            other.wait()

    def test_a_database_that_was_away_gets_what_was_heard(self, exchange: str) -> None:
        with listening(), capture_logs() as logged:
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE hosts_feedhint RENAME TO elsewhere")
            try:
                send(notifier(exchange), "flavor-create")
                assert wait_until(
                    lambda: any(one["event"] == "hints_not_written" for one in logged),
                    PATIENCE_SECONDS,
                )
            finally:
                with connection.cursor() as cursor:
                    cursor.execute("ALTER TABLE elsewhere RENAME TO hosts_feedhint")
            assert waited_for({("flavors", "")}) == {("flavors", "")}


def test_beyond_a_bound_hints_are_dropped() -> None:
    waiting = Hints()
    for number in range(2 * MOST_HINTS):
        waiting.add(Hint(kind=PassKind.SERVERS, object_id=f"{number}"))
    assert len(waiting._waiting) == MOST_HINTS


def test_every_kind_that_is_hinted_at_is_one_that_the_feed_reads() -> None:
    heard: list[Hint] = []
    for sample in SAMPLES.values():
        Endpoint(heard.append).info({}, "", sample["event_type"], sample["payload"], {})
    assert {hint.kind for hint in heard} == {
        PassKind.SERVERS,
        PassKind.HOSTS,
        PassKind.FLAVORS,
        PassKind.SERVER_GROUPS,
        PassKind.MIGRATIONS,
    }


def test_without_an_address_it_does_not_start() -> None:
    with pytest.raises(CommandError, match="HEADROOM_LISTENER__TRANSPORT_URL"):
        call_command("listen")


def told() -> list[str]:
    return [f"{one.severity}: {one.found}" for one in check_listener()]


@pytest.mark.django_db
def test_the_doctor_says_whether_a_hint_arrives(exchange: str) -> None:
    assert told() == ["error: the listener was never seen"]
    record_heartbeat("listener")
    assert told() == ["warning: the listener was seen 0 s ago, and heard nothing yet"]
    record_heartbeat("notification")
    assert told() == ["ok: the listener was seen 0 s ago, and heard a hint 0 s ago"]
    Heartbeat.objects.filter(name="listener").update(
        beaten_at=database_now() - timedelta(seconds=121)
    )
    assert told() == ["error: the listener was seen 121 s ago"]


@pytest.mark.django_db
def test_without_a_listener_nothing_is_wrong() -> None:
    assert told() == ["ok: no listener: changes are seen by polling"]
