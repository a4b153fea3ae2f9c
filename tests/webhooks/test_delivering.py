"""Deliveries to a real receiver: at least once, in order for each object, never lost."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.db.models import F

from journal.actors import Actor
from journal.clock import database_now
from journal.history import read_moment
from journal.models import AuditEntry, LogConsumer, Outbox
from journal.pruning import prune_logs
from tests.killing import MOST_STATEMENTS, run_in_child
from tests.webhooks.receiver import Receiver, receiving
from webhooks import services
from webhooks.addresses import AddressForbidden
from webhooks.conf import WebhookSettings
from webhooks.delivering import _claim, deliver, deliver_all
from webhooks.following import follow
from webhooks.models import Delivery, Endpoint
from webhooks.tasks import prune_deliveries

pytestmark = pytest.mark.django_db(transaction=True)

KEY = b"k" * 32
WHO: dict[str, Any] = {"actor": Actor(name="test"), "request_id": "req-1"}


@pytest.fixture(autouse=True)
def chosen(settings: Any, tmp_path: Path) -> Any:
    (tmp_path / "s1").write_text("whsec_" + base64.b64encode(KEY).decode())
    choose(
        settings,
        **WebhookSettings(
            secrets_dir=tmp_path, allow_http=True, private_networks=("127.0.0.0/8",)
        ).model_dump(),
    )
    return settings


def choose(settings: Any, **fields: Any) -> None:
    found = settings.HEADROOM.webhooks.model_copy(update=fields)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"webhooks": found})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def endpoint(receiver: Receiver, name: str = "one", **fields: Any) -> Endpoint:
    values = {"url": receiver.url, "secret_name": "s1", "kinds": [], "is_paused": False, **fields}
    found = services.save_endpoint(name=name, fields=values, **WHO)
    follow()
    return found


def announce(*ids: str, topic: str = "t") -> None:
    Outbox.objects.bulk_create(
        Outbox(topic=topic, object_type="Thing", object_id=one, payload={"n": number})
        for number, one in enumerate(ids)
    )


def due_now() -> None:
    Delivery.objects.update(due_at=database_now())


def deliver_until_done(rounds: int = 20) -> None:
    for _ in range(rounds):
        follow()
        due_now()
        deliver_all()
        if not Delivery.objects.filter(state="waiting").exists():
            return
    raise AssertionError("still waiting")


def told(receiver: Receiver) -> list[tuple[str, int]]:
    found = [json.loads(body) for body in receiver.bodies]
    return [(one["subject"], one["data"]["n"]) for one in found]


def state_of(**lookups: Any) -> str:
    return Delivery.objects.get(**lookups).state


def test_entries_are_told_signed_and_in_their_order(receiver: Receiver) -> None:
    announce("before")
    endpoint(receiver)
    announce("a", "b", "a")
    deliver_until_done()

    assert told(receiver) == [("a", 0), ("b", 1), ("a", 2)]
    headers, body = receiver.headers[0], receiver.bodies[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    signature = base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{signature}"
    assert headers["content-type"].startswith("application/cloudevents+json")
    assert len({one["webhook-id"] for one in receiver.headers}) == 3
    assert follow() == 0


def test_endpoints_get_the_kinds_they_ask_for(receiver: Receiver) -> None:
    endpoint(receiver, kinds=["wanted"])
    announce("a", topic="other")
    announce("b", topic="wanted")
    deliver_until_done()
    assert told(receiver) == [("b", 0)]


@pytest.mark.parametrize("status", [500, 503, 404, 302])
def test_a_failure_is_tried_again_and_holds_up_its_object_alone(
    receiver: Receiver, status: int
) -> None:
    endpoint(receiver)
    receiver.location = receiver.url
    announce("a", "b", "a")
    receiver.statuses = [status]
    follow()
    deliver_all()
    assert told(receiver) == [("a", 0)]  # the rest of the round waits
    deliver_all()
    assert told(receiver) == [("a", 0), ("b", 1)]
    first = Delivery.objects.order_by("event_id")[0]
    assert (first.state, first.attempts, first.answered_status) == ("waiting", 1, status)
    deliver_until_done()
    assert told(receiver) == [("a", 0), ("b", 1), ("a", 0), ("a", 2)]
    assert receiver.headers[0]["webhook-id"] == receiver.headers[2]["webhook-id"]
    assert receiver.bodies[0] == receiver.bodies[2]


def test_a_receiver_that_hangs_or_is_away_is_given_up_in_time(
    receiver: Receiver, settings: Any
) -> None:
    choose(settings, timeout_seconds=0.2)
    endpoint(receiver)
    announce("a")
    receiver.statuses = [None]
    follow()
    deliver_all()
    (row,) = Delivery.objects.all()
    assert (row.state, row.answered_status) == ("waiting", None)
    assert row.error.startswith("no answer")
    deliver_until_done()


@contextmanager
def dripping(*, first: bytes, piece: bytes, last: bytes) -> Iterator[str]:
    """A receiver that answers piece by piece, for longer than is waited; yield its address."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(30)
    paused = threading.Event()

    def answer() -> None:
        with suppress(OSError), server.accept()[0] as link:
            link.recv(1 << 16)
            link.sendall(first)
            for _ in range(200):
                link.sendall(piece)
                paused.wait(0.02)
            link.sendall(last)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
    finally:
        thread.join()
        server.close()


@pytest.mark.parametrize(
    ("first", "piece", "last"),
    [
        (b"HTTP/1.1 204 No Content\r\nX-Odd: ", b"x", b"\r\n\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n"),
    ],
)
def test_who_answers_a_byte_now_and_then_is_given_up_in_time(
    receiver: Receiver, settings: Any, first: bytes, piece: bytes, last: bytes
) -> None:
    choose(settings, timeout_seconds=0.5)
    with dripping(first=first, piece=piece, last=last) as url:
        endpoint(receiver, url=url)
        announce("a")
        follow()
        deliver_all()
    (row,) = Delivery.objects.all()
    assert (row.state, row.answered_status) == ("waiting", None)
    assert row.error.startswith("no answer")


def test_what_fails_too_often_is_dead_and_can_be_delivered_again(
    receiver: Receiver, settings: Any
) -> None:
    choose(settings, most_attempts=2)
    endpoint(receiver)
    announce("a", "a")
    receiver.statuses = [500, 500]
    deliver_until_done()
    assert told(receiver) == [("a", 0), ("a", 0), ("a", 1)]
    dead = Delivery.objects.get(state="dead")
    assert services.deliver_again(keys=[dead.pk], **WHO) == 1
    deliver_until_done()
    assert told(receiver)[3:] == [("a", 0)]
    assert AuditEntry.objects.filter(action="webhook_replayed", object_id="one").exists()


def test_who_is_gone_is_told_no_more_until_an_operator_says_so(receiver: Receiver) -> None:
    found = endpoint(receiver)
    announce("a", "b")
    receiver.statuses = [410]
    follow()
    deliver_all()
    found.refresh_from_db()
    assert found.disabled_at is not None
    due_now()
    assert deliver_all() == {}
    endpoint(receiver)
    deliver_until_done()
    assert told(receiver) == [("a", 0), ("a", 0), ("b", 1)]


def test_who_is_paused_is_told_later(receiver: Receiver) -> None:
    endpoint(receiver, is_paused=True)
    announce("a")
    follow()
    assert deliver_all() == {}
    endpoint(receiver)
    deliver_until_done()
    assert told(receiver) == [("a", 0)]


def test_one_that_hangs_holds_up_no_other(receiver: Receiver, settings: Any) -> None:
    choose(settings, timeout_seconds=4.0)
    with receiving() as slow:
        endpoint(slow, "slow")
        endpoint(receiver, "fast")
        slow.statuses = [None]
        announce("a", "b")
        follow()
        deliver_all()
        assert told(receiver) == [("a", 0), ("b", 1)]
        assert len(slow.bodies) == 1


def test_one_is_claimed_by_a_plan_that_reads_what_it_joins_again_and_again(
    receiver: Receiver,
) -> None:
    found = endpoint(receiver)
    announce("z")
    follow()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE webhooks_delivery")  # as if it had this one row for ever
        for way in ("seqscan", "hashjoin", "mergejoin", "bitmapscan"):
            cursor.execute(f"SET enable_{way} = off")
    announce("a", "b", "c")
    follow()
    try:
        claimed = _claim(found.pk)
    finally:
        connection.close()
    assert claimed is not None
    assert list(Delivery.objects.filter(attempts=1).values_list("object_id", flat=True)) == ["z"]


def test_everything_since_a_moment_is_told_again(receiver: Receiver) -> None:
    since = database_now()
    announce("old")
    endpoint(receiver)
    announce("a", "b")
    deliver_until_done()
    call_command("replay_webhooks", "one", "--since", since.isoformat())
    deliver_until_done()
    assert told(receiver) == [("a", 0), ("b", 1), ("old", 0), ("a", 0), ("b", 1)]
    for wrong in (["none", "--since", "2026-01-01T00:00:00Z"], ["one", "--since", "yesterday"]):
        with pytest.raises(CommandError):
            call_command("replay_webhooks", *wrong)


def test_a_transaction_that_commits_late_is_not_missed(receiver: Receiver) -> None:
    endpoint(receiver)
    written, may_commit = threading.Event(), threading.Event()

    def late() -> None:
        with transaction.atomic():
            announce("late")
            written.set()
            may_commit.wait(30)
        connections.close_all()

    thread = threading.Thread(target=late)
    thread.start()
    assert written.wait(30)
    announce("early")
    assert follow() == 1
    may_commit.set()
    thread.join()
    deliver_until_done()
    assert sorted(told(receiver)) == [("early", 0), ("late", 0)]


def test_several_workers_tell_each_object_in_order(receiver: Receiver) -> None:
    endpoint(receiver)
    announce(*[f"o{number % 3}" for number in range(30)])
    (found,) = Endpoint.objects.all()

    def work() -> None:
        follow()
        deliver(found.pk, until=time.monotonic() + 60)
        connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    deliver_until_done()
    for name in ("o0", "o1", "o2"):
        numbers = [number for one, number in told(receiver) if one == name]
        assert numbers == sorted(numbers)
        assert len(numbers) == 10


def test_killed_at_any_statement_nothing_is_lost_and_order_is_kept(receiver: Receiver) -> None:
    found = endpoint(receiver)

    def once() -> None:
        follow()
        deliver(found.pk, until=time.monotonic() + 60)

    for number in range(1, MOST_STATEMENTS):
        announce("a", "a")
        due_now()
        if run_in_child(partial(once), number):
            break
    else:
        raise AssertionError("it never finished")
    deliver_until_done()
    assert number > 5
    ids = [int(json.loads(body)["id"]) for body in receiver.bodies]
    assert sorted(set(ids)) == sorted(
        Outbox.objects.filter(object_id="a").values_list("pk", flat=True)
    )
    first_seen = list(dict.fromkeys(ids))
    assert first_seen == sorted(first_seen)


def test_a_position_of_another_history_loses_nothing(receiver: Receiver) -> None:
    endpoint(receiver)
    announce("a")
    text = LogConsumer.objects.get().position
    LogConsumer.objects.update(position=text.rsplit(" ", 1)[0] + " other")
    deliver_until_done()
    assert told(receiver) == [("a", 0)]
    assert read_moment().history in LogConsumer.objects.get().position


def test_the_outbox_is_kept_for_it_while_there_is_somebody_to_tell(receiver: Receiver) -> None:
    found = endpoint(receiver)
    announce("a")
    Outbox.objects.update(created_at=F("created_at") - timedelta(days=30))
    prune_logs(now=database_now())
    assert Outbox.objects.count() == 1
    services.remove_endpoint(endpoint=found, **WHO)
    assert follow() == 0
    assert not LogConsumer.objects.exists()


def test_old_deliveries_are_forgotten_but_not_what_can_still_be_told(receiver: Receiver) -> None:
    endpoint(receiver)
    announce("a", "b")
    follow()
    first, second = Delivery.objects.order_by("event_id")
    Delivery.objects.filter(pk=first.pk).update(state="delivered")
    Delivery.objects.update(created_at=F("created_at") - timedelta(days=31))
    prune_deliveries()
    assert list(Delivery.objects.values_list("pk", flat=True)) == [second.pk]
    Endpoint.objects.update(is_paused=True)
    prune_deliveries()
    assert not Delivery.objects.exists()


def test_private_addresses_are_refused_unless_settings_say_otherwise(
    receiver: Receiver, settings: Any
) -> None:
    endpoint(receiver)
    announce("a")
    choose(settings, private_networks=())
    follow()
    deliver_all()
    (row,) = Delivery.objects.all()
    assert "not public" in row.error
    assert receiver.bodies == []


@pytest.mark.parametrize(
    "url",
    ["http://a.example/", "ftp://a.example/", "https://u:p@a.example/", "https://a/#x", "https://"],
)
def test_addresses_that_no_endpoint_may_have(settings: Any, url: str) -> None:
    choose(settings, allow_http=False)
    fields = {"url": url, "secret_name": "s1", "kinds": [], "is_paused": False}
    with pytest.raises(AddressForbidden):
        services.save_endpoint(name="one", fields=fields, **WHO)


def test_a_secret_that_is_not_there_is_said(receiver: Receiver) -> None:
    endpoint(receiver, secret_name="none")
    announce("a")
    follow()
    deliver_all()
    assert "secret none" in Delivery.objects.get().error
