"""How agents become known (spec hosts, D.4)."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.http import HttpResponse
from headroom_host_agent.server.identity import new_identity

from hosts.agents.enrolment import revoke_key, revoke_token
from hosts.agents.models import EnrolmentToken, HostAgent, HostKey
from journal.actors import Actor
from journal.models import AuditEntry
from tests.factories import make_host
from tests.hosts.agents.agents import enrolled, enrolment, make_token, send_enrolment

ANN = Actor(name="ann")


def code_of(answer: HttpResponse) -> tuple[int, str]:
    return answer.status_code, json.loads(answer.content)["error"]["code"]


@pytest.mark.django_db
def test_an_agent_with_a_token_becomes_known() -> None:
    make_host("h1")
    identity = new_identity()

    answer = send_enrolment(enrolment(identity, make_token("h*")))

    told = json.loads(answer.content)
    agent = HostAgent.objects.get(host_name="h1")
    assert answer.status_code == 201
    assert told["host_id"] == str(agent.uuid)
    assert told["fence_epoch"] == 1
    assert (told["heartbeat_s"], told["lease_ttl_s"], told["poll_wait_s"]) == (10, 30, 25)
    assert set(told["server_public_keys"][0]) == {"kid", "key"}
    assert bytes(agent.keys.get(kid=told["kid"]).public_key) == identity.public_key
    assert EnrolmentToken.objects.get().uses_left == 0
    actions = set(AuditEntry.objects.values_list("action", "actor"))
    assert ("host_agent_enrolled", "host:h1") in actions


@pytest.mark.django_db
def test_the_audit_has_room_for_hosts_of_the_longest_names() -> None:
    names = [f"{'h' * 254}{number}" for number in range(2)]
    for name in names:
        make_host(name)
        answer = send_enrolment(enrolment(new_identity(), make_token("h*"), name))
        assert answer.status_code == 201
    enrolled = AuditEntry.objects.filter(action="host_agent_enrolled")
    actors = set(enrolled.values_list("actor", flat=True))
    assert len(actors) == 2
    assert all(actor.startswith("host:hhh") for actor in actors)


@pytest.mark.django_db
def test_a_lost_answer_is_given_again_and_uses_nothing_up() -> None:
    make_host("h1")
    asked = enrolment(new_identity(), make_token())
    first = send_enrolment(asked)

    again = send_enrolment(asked)

    known = ("host_id", "kid", "fence_epoch")
    assert again.status_code == 200
    assert [json.loads(again.content)[key] for key in known] == [
        json.loads(first.content)[key] for key in known
    ]
    assert HostKey.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("which", ["unknown", "over", "used", "revoked"])
def test_tokens_of_no_use_are_all_told_the_same(which: str) -> None:
    make_host("h1")
    make_host("h2")
    token = make_token(uses=1)
    row = EnrolmentToken.objects.get()
    if which == "unknown":
        token += "x"
    elif which == "over":
        EnrolmentToken.objects.update(expires_at=row.created_at)
    elif which == "used":
        assert send_enrolment(enrolment(new_identity(), token, "h2")).status_code == 201
    else:
        revoke_token(pk=row.pk, actor=ANN, request_id="r")
        revoke_token(pk=row.pk, actor=ANN, request_id="r")
        assert AuditEntry.objects.filter(action="enrolment_token_revoked").count() == 1

    answer = send_enrolment(enrolment(new_identity(), token))

    assert code_of(answer) == (401, "bad_token")
    assert "unknown, over or used up" in answer.content.decode()
    assert not HostAgent.objects.filter(host_name="h1").exists()


@pytest.mark.django_db
def test_a_token_is_for_names_of_known_hosts() -> None:
    token = make_token("h?")

    assert code_of(send_enrolment(enrolment(new_identity(), token, "node1"))) == (
        403,
        "name_not_allowed",
    )
    assert code_of(send_enrolment(enrolment(new_identity(), token, "h1"))) == (403, "no_such_host")
    assert EnrolmentToken.objects.get().uses_left == 1


@pytest.mark.django_db
def test_a_host_has_one_key_until_an_operator_revokes_it() -> None:
    make_host("h1")
    first = enrolled("h1")

    assert code_of(send_enrolment(enrolment(new_identity(), make_token()))) == (409, "host_exists")

    key = HostKey.objects.get(kid=first.kid)
    revoke_key(pk=key.pk, actor=ANN, request_id="r")
    revoke_key(pk=key.pk, actor=ANN, request_id="r")
    second = enrolled("h1")
    assert (second.host_id, second.kid != first.kid) == (first.host_id, True)
    assert AuditEntry.objects.filter(action="host_key_revoked").count() == 1


@pytest.mark.django_db
def test_a_cloned_disk_does_not_become_another_host() -> None:
    make_host("h1")
    make_host("h2")
    identity = enrolled("h1")

    answer = send_enrolment(enrolment(identity, make_token(), "h2"))

    assert code_of(answer) == (409, "key_in_use")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"public_key": "AAAA"}, "bad_key"),
        ({"public_key": "no base64"}, "bad_key"),
        ({"proof": "AAAA"}, "bad_proof"),
        ({"proof": "ä"}, "bad_proof"),
        ({"name": "h2"}, "bad_proof"),
        ({"name": ""}, "invalid_enrolment"),
        ({"name": "a\0b"}, "invalid_report"),
        ({"name": 1}, "invalid_enrolment"),
        ({"token": None}, "invalid_enrolment"),
        ({"token": "x" * 256}, "invalid_enrolment"),
        ({"agent_version": "x" * 65}, "invalid_enrolment"),
    ],
)
def test_what_is_malformed_is_named(changes: dict[str, Any], code: str) -> None:
    asked = enrolment(new_identity(), make_token()) | changes

    assert code_of(send_enrolment(asked)) == (400, code)


@pytest.mark.django_db
@pytest.mark.parametrize("document", [None, [], "text", 1])
def test_a_body_that_is_no_object_is_refused(document: object) -> None:
    assert code_of(send_enrolment(document)) == (400, "invalid_enrolment")


@pytest.mark.django_db(transaction=True)
def test_of_agents_that_enrol_at_once_as_one_host_one_is_taken() -> None:
    make_host("h1")
    token = make_token(uses=4)
    asked = [enrolment(new_identity(), token) for _ in range(4)]
    start = threading.Barrier(4)
    statuses: list[int] = []

    def enrols(document: dict[str, Any]) -> None:
        start.wait()
        statuses.append(send_enrolment(document).status_code)
        connection.close()

    threads = [threading.Thread(target=enrols, args=(document,)) for document in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(statuses) == [201, 409, 409, 409]
    assert EnrolmentToken.objects.get().uses_left == 3
    assert HostKey.objects.count() == 1


@pytest.mark.django_db
def test_the_database_keeps_one_active_key_and_no_negative_uses() -> None:
    make_host("h1")
    enrolled("h1")
    agent = HostAgent.objects.get()

    with pytest.raises(IntegrityError, match="hosts_key_one_active"), transaction.atomic():
        HostKey.objects.create(agent=agent, kid="x", public_key=b"k" * 32)
    with pytest.raises(IntegrityError, match="hosts_token_uses_not_negative"), transaction.atomic():
        EnrolmentToken.objects.update(uses_left=-1)


def command(*arguments: str) -> str:
    out = StringIO()
    call_command("host_agent", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_operators_make_list_and_end_tokens_and_keys() -> None:
    make_host("h1")
    token = command("token", "create", "--name", "h*", "--uses", "2", "--ttl", "2d").strip()
    row = EnrolmentToken.objects.get()
    assert row.expires_at - row.created_at > timedelta(days=1, hours=23)
    assert token not in command("token", "list")
    assert "h*  2 uses left" in command("token", "list")
    assert send_enrolment(enrolment(new_identity(), token)).status_code == 201

    kid = HostKey.objects.get().kid
    assert command("key", "list") == f"{kid}  h1  active\n"
    command("key", "revoke", kid)
    assert command("key", "list") == f"{kid}  h1  revoked\n"
    command("token", "revoke", str(row.pk))
    assert "0 uses left" in command("token", "list")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "arguments",
    [
        ("token", "create", "--name", ""),
        ("token", "create", "--name", "x", "--uses", "0"),
        ("token", "create", "--name", "x", "--ttl", "31d"),
        ("token", "create", "--name", "x", "--ttl", "0s"),
        ("key", "revoke", "none"),
    ],
)
def test_what_is_out_of_bounds_is_an_error(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        command(*arguments)
