"""The demo's receiver takes what Headroom signs and nothing else, and refuses some of it once."""

from __future__ import annotations

import base64
import http.client
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from journal.clock import database_now
from journal.models import AuditEntry, Outbox
from tests.webhooks.test_delivering import choose
from webhooks.conf import WebhookSettings
from webhooks.delivering import deliver_all
from webhooks.demo_receiver import (
    ADDRESS,
    FAILS_EVERY,
    LONGEST_BODY,
    Deliveries,
    is_genuine,
    is_unlucky,
    receiver,
)
from webhooks.domain.message import signed_headers
from webhooks.following import follow
from webhooks.models import Delivery, Endpoint

KEY = b"k" * 32
BODY = b'{"n":1}'
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
LUCKY, UNLUCKY = (
    next(f"headroom-{n}" for n in range(1000) if is_unlucky(f"headroom-{n}") is unlucky)
    for unlucky in (False, True)
)


def headers(message: str = LUCKY, *, key: bytes = KEY, now: datetime = NOW) -> dict[str, str]:
    return signed_headers(BODY, [b"old" * 9, key], message_id=message, now=now)


def judged(told: dict[str, str], body: bytes = BODY) -> int:
    return Deliveries([b"other" * 6, KEY]).judge(told, body, now=NOW.timestamp())


def test_what_is_signed_by_one_of_the_keys_is_taken() -> None:
    assert judged(headers()) == 204


@pytest.mark.parametrize(
    ("told", "body"),
    [
        pytest.param(headers(key=b"x" * 32), BODY, id="another key"),
        pytest.param(headers(), b'{"n":2}', id="another body"),
        pytest.param({**headers(), "webhook-id": UNLUCKY}, BODY, id="another id"),
        pytest.param(headers(now=datetime(2026, 11, 23, 11, tzinfo=UTC)), BODY, id="old"),
        pytest.param(headers(now=datetime(2026, 11, 23, 13, tzinfo=UTC)), BODY, id="to come"),
        pytest.param({**headers(), "webhook-timestamp": "٣"}, BODY, id="no number"),
        pytest.param({**headers(), "webhook-timestamp": "9" * 5000}, BODY, id="long number"),
        pytest.param({**headers(), "webhook-signature": "é"}, BODY, id="no signature"),
        pytest.param({}, BODY, id="nothing"),
    ],
)
def test_everything_else_is_refused(told: dict[str, str], body: bytes) -> None:
    assert judged(told, body) == 401


def test_one_of_several_is_refused_the_first_time_and_taken_the_second() -> None:
    deliveries = Deliveries([KEY])
    now = NOW.timestamp()

    answers = [deliveries.judge(headers(UNLUCKY), BODY, now=now) for _ in range(2)]

    assert answers == [503, 204]
    share = sum(is_unlucky(f"headroom-{number}") for number in range(10_000)) / 10_000
    assert 0.5 / FAILS_EVERY < share < 2 / FAILS_EVERY


def test_a_forged_message_does_not_use_up_the_refusal() -> None:
    deliveries = Deliveries([KEY])
    told = headers(UNLUCKY)

    assert deliveries.judge(told, b"forged", now=NOW.timestamp()) == 401
    assert deliveries.judge(told, BODY, now=NOW.timestamp()) == 503
    assert is_genuine(told, BODY, [KEY], now=NOW.timestamp())


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def address(said: list[str]) -> Iterator[tuple[str, int]]:
    with receiver(Deliveries([KEY]), port=0, say=said.append) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield ADDRESS, int(server.server_address[1])
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("length", ["", "-1", "0", "x", "1e3", str(LONGEST_BODY + 1)])
def test_a_body_of_no_or_too_great_length_is_not_read(
    address: tuple[str, int], length: str
) -> None:
    link = http.client.HTTPConnection(*address, timeout=30)
    link.putrequest("POST", "/")
    link.putheader("Content-Length", length)
    link.endheaders()
    assert link.getresponse().status == 400
    link.close()


@pytest.fixture
def folder(settings: Any, tmp_path: Path) -> Path:
    (tmp_path / "demo").write_text(f"whsec_{base64.b64encode(KEY).decode()}\n")
    ours = WebhookSettings(secrets_dir=tmp_path, allow_http=True, private_networks=("127.0.0.0/8",))
    choose(settings, **ours.model_dump())
    return tmp_path


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("folder")
def test_what_happens_after_the_set_up_is_delivered_and_what_was_refused_again(
    address: tuple[str, int], said: list[str]
) -> None:
    url = "http://{}:{}/".format(*address)
    Outbox.objects.create(topic="t", object_type="Thing", object_id="before", payload={})
    call_command("set_up_demo_webhooks", url=url)
    follow()
    with transaction.atomic():
        for number in range(4 * FAILS_EVERY):
            Outbox.objects.create(topic="t", object_type="Thing", object_id=f"{number}", payload={})

    for _ in range(2 * FAILS_EVERY):
        follow()
        Delivery.objects.filter(state="waiting").update(due_at=database_now())
        deliver_all()
        if not Delivery.objects.exclude(state="delivered").exists():
            break

    rows = list(Delivery.objects.order_by("event_id"))
    assert len(rows) == 4 * FAILS_EVERY
    assert {row.state for row in rows} == {"delivered"}
    assert all(row.attempts == (2 if is_unlucky(f"headroom-{row.event_id}") else 1) for row in rows)
    assert sum(line.startswith("204") for line in said) == len(rows)


@pytest.mark.django_db
@pytest.mark.usefixtures("folder")
class TestSetUp:
    def test_a_second_start_follows_the_receiver_and_keeps_what_an_operator_chose(self) -> None:
        call_command("set_up_demo_webhooks", url="http://127.0.0.1:20001/")
        Endpoint.objects.update(kinds=["commitment"], is_paused=True)

        for _ in range(2):
            call_command("set_up_demo_webhooks", url="http://127.0.0.1:20002/")

        row = Endpoint.objects.get()
        assert (row.url, row.kinds, row.is_paused) == (
            "http://127.0.0.1:20002/", ["commitment"], True,
        )  # fmt: skip
        assert AuditEntry.objects.filter(action="webhook_saved").count() == 2

    def test_an_address_that_is_not_allowed_is_an_error(self, settings: Any) -> None:
        choose(settings, allow_http=False)
        with pytest.raises(CommandError, match="https://"):
            call_command("set_up_demo_webhooks", url="http://127.0.0.1:20001/")
