"""Writes with an ``Idempotency-Key``: once for a caller and key, however often they are sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import connections
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.utils import timezone
from rest_framework.request import Request

from core.api import json_answer
from core.idempotent import HEADER, LONGEST_KEY, REPLAYED_HEADER, IdempotentView
from journal.conf import AccessToken
from journal.errors import InvalidInput
from journal.middleware import RequestIDMiddleware
from journal.models import KeptAnswer
from journal.pruning import prune_over

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


class Work:
    """What a view does: counts, and whatever a test wants done meanwhile."""

    def __init__(self) -> None:
        self.done = 0
        self.lock = threading.Lock()
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self) -> HttpResponse:
        with self.lock:
            self.done += 1
            number = self.done
        self.meanwhile()
        return json_answer({"number": number}, status=202)


@pytest.fixture
def work(settings: Any) -> Work:
    settings.HEADROOM = django_settings.HEADROOM.model_copy(update={"auth": "noauth"})
    return Work()


def send(
    work: Work, key: str | None = "k1", *, body: str = '{"a":1}', path: str = "/x", token: str = ""
) -> Any:
    class View(IdempotentView):
        def write(self, request: Request) -> HttpResponse:
            assert self.body().decode() == body
            return work()

    headers = {"X-Auth-Token": token} | ({} if key is None else {HEADER: key})
    request = RequestFactory().post(path, body, content_type="application/json", headers=headers)
    return RequestIDMiddleware(View.as_view())(request)


def code(answer: Any) -> tuple[int, str]:
    assert answer["Content-Type"] == "application/problem+json"
    return answer.status_code, json.loads(answer.content)["code"]


def test_the_same_request_is_carried_out_once_and_answered_the_same(work: Work) -> None:
    first, second, quoted = send(work), send(work), send(work, '"k1"')
    assert work.done == 1
    for again in (second, quoted):
        assert (again.status_code, again.content) == (202, first.content)
        assert again["Content-Type"] == first["Content-Type"]
        assert again[REPLAYED_HEADER] == "true"
    assert REPLAYED_HEADER not in first


def test_without_a_key_everything_is_carried_out(work: Work) -> None:
    assert [json.loads(send(work, None).content)["number"] for _ in range(2)] == [1, 2]
    assert not KeptAnswer.objects.exists()


def test_a_key_with_another_request_is_refused(work: Work) -> None:
    send(work)
    refused = (422, "idempotency_key_reused")
    assert code(send(work, body='{"a":2}')) == refused
    assert code(send(work, path="/y")) == refused
    assert code(send(work, path="/x?b=1")) == refused
    assert work.done == 1
    assert send(work, "k2", body='{"a":2}').status_code == 202


def test_keys_of_one_caller_are_not_those_of_another(work: Work, settings: Any) -> None:
    tokens = tuple(
        AccessToken(
            token_sha256=sha256(f"{name}-token".encode()).hexdigest(),
            name=name,
            roles=("cloud_resource_admin",),
        )
        for name in ("ann", "bob")
    )
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"auth": "token", "tokens": tokens})
    sent = [send(work, token=f"{name}-token", body=name) for name in ("ann", "bob", "ann")]
    assert [json.loads(answer.content)["number"] for answer in sent] == [1, 2, 1]


@pytest.mark.parametrize(
    "key", ["", " ", '""', "a b", "a\tb", "é", "\x7f", "k" * (LONGEST_KEY + 1)]
)
def test_what_is_no_key_is_refused(work: Work, key: str) -> None:
    answer = send(work, key)
    assert code(answer) == (400, "invalid_input")
    assert json.loads(answer.content)["field"] == HEADER
    assert work.done == 0


@pytest.mark.parametrize("error", [InvalidInput("no"), RuntimeError("broken")])
def test_after_a_refusal_or_error_the_key_is_free(work: Work, error: Exception) -> None:
    def fail() -> None:
        work.meanwhile = lambda: None
        raise error

    work.meanwhile = fail
    assert send(work).status_code in {400, 500}
    assert not KeptAnswer.objects.exists()
    assert json.loads(send(work).content) == {"number": 2}


def test_whoever_is_under_way_is_waited_for_and_who_died_is_not(work: Work) -> None:
    seen = []
    work.meanwhile = lambda: seen.append(send(Work()))
    send(work)
    assert [code(answer) for answer in seen] == [(409, "idempotency_key_in_progress")]

    KeptAnswer.objects.update(status=None, claimed_until=timezone.now() - DAY / 24)
    assert code(send(work, body="other")) == (422, "idempotency_key_reused")
    work.meanwhile = lambda: None
    assert json.loads(send(work).content) == {"number": 2}
    assert json.loads(send(work).content) == {"number": 2}


def test_who_took_so_long_that_another_took_over_changes_nothing_kept(work: Work) -> None:
    def taken_over() -> None:
        work.meanwhile = lambda: None
        KeptAnswer.objects.update(claimed_until=timezone.now() - DAY / 24)
        send(work)

    work.meanwhile = taken_over
    assert json.loads(send(work).content) == {"number": 1}
    assert json.loads(send(work).content) == {"number": 2}


def test_after_a_day_a_key_is_new_and_its_row_is_forgotten(work: Work) -> None:
    send(work)
    KeptAnswer.objects.update(created_at=timezone.now() - DAY)
    assert json.loads(send(work, body="other").content) == {"number": 2}
    assert prune_over(now=timezone.now())["kept_answers"] == 0
    assert prune_over(now=timezone.now() + DAY)["kept_answers"] == 1


@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_one_is_carried_out(work: Work) -> None:
    together, told = threading.Barrier(8), threading.Event()

    def wait() -> None:
        told.wait(30)

    work.meanwhile = wait

    def one(_: int) -> Any:
        try:
            together.wait(30)
            answer = send(work)
            if answer.status_code == 409:
                told.set()
            return answer
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(one, range(8)))
    assert work.done == 1
    carried_out = [answer for answer in answers if answer.status_code == 202]
    assert {answer.content for answer in carried_out} == {b'{"number":1}'}
    assert sum(REPLAYED_HEADER not in answer for answer in carried_out) == 1
    refused = [code(answer) for answer in answers if answer.status_code != 202]
    assert refused
    assert set(refused) == {(409, "idempotency_key_in_progress")}


def test_orders_of_failover_take_keys(work: Work) -> None:
    body = {"vm": "no-such-vm", "apply": True}
    headers = {HEADER: "k1"}
    path = "/api/v1/failover/replans"
    sent = [
        Client().post(path, body, content_type="application/json", headers=headers)
        for _ in range(2)
    ]
    assert [answer.status_code for answer in sent] == [200, 200]
    assert sent[0].json() == sent[1].json()
    assert [REPLAYED_HEADER in answer for answer in sent] == [False, True]
    other = {"zone": "nowhere", "apply": True}
    path = "/api/v1/failover/rebalances"
    refused = Client().post(path, other, content_type="application/json", headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_key_reused")
