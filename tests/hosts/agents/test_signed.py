"""Requests that agents sign, and their reports (spec hosts, D.5, D.6, D.14)."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from hosts.agents.enrolment import revoke_key
from hosts.agents.models import HostAgent, HostKey, RequestNonce
from hosts.agents.signed import key_again
from journal.actors import Actor
from tests.examples import few
from tests.factories import make_host
from tests.hosts.agents.agents import Signed, enrolled, report, signed
from tests.hosts.agents.test_enrolment import code_of
from tests.openapi_documents import validator

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _hosts() -> None:
    make_host("h1")
    make_host("h2")


def written() -> tuple[Any, ...]:
    return tuple(HostAgent.objects.values_list("report", "reported_at", "fence_epoch"))


def test_a_report_is_kept_and_shown(settings: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"auth": "noauth"})
    identity = enrolled()

    answer = signed(identity, report(boot_id="b")).send()

    assert (answer.status_code, answer.content) == (204, b"")
    shown = Client().get("/api/v1/hosts/h1/resources")
    told = shown.json()
    assert shown.status_code == 200
    validator("hosts", "Report").validate(told)
    assert told.pop("reported_at")
    assert told == report(boot_id="b")


@pytest.mark.parametrize("name", ["h2", "none", "a%00b"])
def test_a_host_that_reported_nothing_is_not_found(settings: Any, name: str) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"auth": "noauth"})
    enrolled("h2")

    answer = Client().get(f"/api/v1/hosts/{name}/resources")

    assert (answer.status_code, answer.json()["code"]) == (404, "host_not_reported")


def test_reports_need_a_reader() -> None:
    assert Client().get("/api/v1/hosts/h1/resources").status_code == 401


def test_an_older_report_changes_nothing() -> None:
    identity = enrolled()
    signed(identity, report(generated_at="2026-01-02T00:00:00Z", boot_id="new")).send()

    answer = signed(identity, report(generated_at="2026-01-01T00:00:00Z", boot_id="old")).send()

    assert answer.status_code == 204
    assert HostAgent.objects.get().report["boot_id"] == "new"  # type: ignore[index]  # there is one


@pytest.mark.django_db(transaction=True)  # for statements are prepared outside of one alone
@pytest.mark.parametrize("offset", ["+23:59", "-23:59", "+16:00", "+05:30:30"])
def test_the_time_of_a_report_may_have_any_offset(offset: str) -> None:
    stamp = f"2026-01-02T12:00:00{offset}"

    answer = signed(enrolled(), report(generated_at=stamp)).send()

    assert answer.status_code == 204
    assert HostAgent.objects.get().generated_at == datetime.fromisoformat(stamp)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cpu": None}, "cpu"),
        ({"cpu": report()["cpu"] | {"capacity": -1}}, "cpu/capacity"),
        ({"cpu": report()["cpu"] | {"capacity": 2**63}}, "cpu/capacity"),
        ({"cpu": report()["cpu"] | {"capacity": 1.5}}, "cpu/capacity"),
        ({"cpu": report()["cpu"] | {"type": "memory"}}, "cpu/type"),
        ({"flux": {}}, None),
        ({"generated_at": "yesterday"}, "generated_at"),
        ({"generated_at": "2026-01-02T03:04:05"}, "generated_at"),
        ({"generated_at": "2026-13-02T03:04:05Z"}, "generated_at"),
        ({"generated_at": "2999-01-02T03:04:05Z"}, "generated_at"),
        ({"generated_at": "0001-01-01T00:00:00+05:00"}, "generated_at"),
        ({"generated_at": "9999-12-31T23:59:59-05:00"}, "generated_at"),
        ({"hugepages": [{}] * 17}, "hugepages"),
        ({"boot_id": "a\0b"}, None),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], field: str | None) -> None:
    answer = signed(enrolled(), report(**changes)).send()

    assert code_of(answer) == (400, "invalid_report")
    assert json.loads(answer.content)["error"].get("field") == field
    assert written() == ((None, None, 1),)


def test_a_request_is_taken_once() -> None:
    identity = enrolled()
    request = signed(identity)
    assert request.send().status_code == 204

    assert code_of(request.send()) == (401, "replayed")
    assert RequestNonce.objects.count() == 1


def test_nonces_are_forgotten_with_the_agents_next_request() -> None:
    identity = enrolled()
    signed(identity).send()
    RequestNonce.objects.update(seen_at="2026-01-01T00:00:00Z")

    signed(identity).send()

    assert RequestNonce.objects.count() == 1


@pytest.mark.parametrize("seconds", [-301, 360, 7200])
def test_a_clock_that_is_off_is_told_our_time(seconds: int) -> None:
    identity = enrolled()
    request = signed(identity)
    timestamp = int(request.headers["X-Host-Timestamp"]) + seconds

    answer = signed(identity, timestamp=timestamp).send()

    assert code_of(answer) == (401, "clock_skew")
    assert "server_time" in json.loads(answer.content)["error"]["details"]
    assert RequestNonce.objects.count() == 0


def test_a_captured_request_is_good_for_nothing_else() -> None:
    identity, other = enrolled("h1"), enrolled("h2")
    request = signed(identity)
    there = f"/hosts/v1/{other.host_id}/resources"

    assert code_of(replace(request, path=there).send()) == (401, "bad_signature")
    assert code_of(request.send(query="?a=1")) == (401, "bad_signature")
    assert code_of(replace(request, body=request.body + b" ").send()) == (401, "bad_signature")
    headers = request.headers | {"X-Host-Id": other.host_id}
    assert code_of(replace(request, headers=headers).send()) == (401, "unknown_key")
    headers = request.headers | {"X-Host-Epoch": "2"}
    assert code_of(replace(request, headers=headers).send()) == (401, "bad_signature")
    assert RequestNonce.objects.count() == 0
    assert code_of(signed(identity, path=there).send()) == (403, "wrong_host")
    assert written() == ((None, None, 1),) * 2


def test_an_epoch_that_is_over_is_told_the_new_one() -> None:
    identity = enrolled()
    HostAgent.objects.update(fence_epoch=2)

    answer = signed(identity).send()

    assert code_of(answer) == (409, "stale_epoch")
    assert json.loads(answer.content)["error"]["details"] == {"fence_epoch": 2}


def test_a_revoked_key_is_good_for_nothing() -> None:
    identity = enrolled()
    revoke_key(pk=HostKey.objects.get().pk, actor=Actor(name="ann"), request_id="r")

    assert code_of(signed(identity).send()) == (401, "key_revoked")


KNOWN: dict[str, Any] = {}


@few(30)
@given(
    name=st.sampled_from(
        ["Id", "Key", "Timestamp", "Nonce", "Epoch", "Signature", "body", "path", "method"]
    ),
    text=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60)
    | st.sampled_from(["0" * 12, "f" * 32, "9" * 18, str(uuid.uuid4())]),
)
def test_no_forged_request_is_taken_or_breaks_anything(name: str, text: str) -> None:
    if not HostAgent.objects.exists():
        KNOWN["identity"] = enrolled()
    request = signed(KNOWN["identity"])
    forged: Signed
    if name == "body":
        forged = replace(request, body=text.encode())
    elif name == "path":
        forged = replace(request, path=f"/hosts/v1/{text.replace('?', '')}")
    elif name == "method":
        forged = replace(request, method="POST" if text else "PATCH")
    else:
        if request.headers[f"X-Host-{name}"] == text:
            return
        forged = replace(request, headers=request.headers | {f"X-Host-{name}": text})

    answer = forged.send()

    assert 400 <= answer.status_code < 500, (answer.status_code, answer.content)
    assert written() == ((None, None, 1),)


def test_a_signed_request_costs_few_statements(
    django_assert_max_num_queries: Any,  # Any: a fixture of pytest-django
) -> None:
    identity = enrolled()

    with django_assert_max_num_queries(3, connection=connection):
        assert signed(identity).send().status_code == 204


def test_the_key_of_a_request_is_what_is_stored() -> None:
    identity = enrolled()
    HostAgent.objects.update(change_seq=7, mode="enforce", agent_version="3")
    stored = HostKey.objects.select_related("agent").get()

    found = key_again(identity.kid, stored.agent.uuid, epoch=1)

    for known, row in ((found, stored), (found.agent, stored.agent)):
        names = {field.attname for field in type(row)._meta.concrete_fields}
        assert {name: getattr(known, name) for name in names} == {
            name: getattr(row, name) for name in names
        }
