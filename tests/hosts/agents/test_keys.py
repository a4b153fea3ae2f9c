"""Rotation of keys, and the server's own (spec hosts, D.4, D.6, D.14)."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.db.models import F
from django.http import HttpResponse
from headroom_host_agent.provision.signing.keys import key_id, sign, verify
from headroom_host_agent.provision.signing.v2 import rotation_bytes, server_key_bytes
from headroom_host_agent.server.identity import Identity, new_identity

from hosts.agents.enrolment import revoke_key
from hosts.agents.models import HostKey, ServerKey
from hosts.agents.server_keys import Signer, rotate_server_key, signer, told_keys
from journal.actors import Actor
from journal.clock import database_now
from journal.models import AuditEntry
from tests.factories import make_host
from tests.hosts.agents.agents import (
    Signed,
    enrolled,
    enrolment,
    make_token,
    send_enrolment,
    signed,
)
from tests.hosts.agents.test_enrolment import code_of

pytestmark = pytest.mark.django_db
ANN = Actor(name="ann")


@pytest.fixture
def identity() -> Identity:
    make_host("h1")
    return enrolled()


def rotation(identity: Identity, following: Identity, **changes: Any) -> Signed:
    kid = key_id(following.public_key)
    proof = sign(following.seed_bytes, rotation_bytes(identity.host_id, kid))
    document = {
        "public_key": base64.b64encode(following.public_key).decode(),
        "proof": base64.b64encode(proof).decode(),
        **changes,
    }
    return signed(identity, document, method="POST", path=f"/hosts/v1/{identity.host_id}/keys")


def rotated(identity: Identity) -> Identity:
    following = new_identity()
    answer = rotation(identity, following).send()
    assert answer.status_code == 201, answer.content
    return replace(identity, seed=following.seed, kid=json.loads(answer.content)["kid"])


def drop(identity: Identity, kid: str) -> HttpResponse:
    path = f"/hosts/v1/{identity.host_id}/keys/{kid}"
    return signed(identity, method="DELETE", path=path, body=b"").send()


def pass_hours(hours: float) -> None:
    HostKey.objects.update(not_after=F("not_after") - timedelta(hours=hours))


def test_an_old_key_is_taken_for_a_day_more(identity: Identity) -> None:
    following = rotated(identity)

    assert signed(following).send().status_code == 204
    pass_hours(23.9)
    assert signed(identity).send().status_code == 204
    pass_hours(0.2)

    assert code_of(signed(identity).send()) == (401, "key_revoked")
    assert signed(following).send().status_code == 204
    entry = AuditEntry.objects.get(action="host_key_rotated")
    assert (entry.actor, entry.before) == ("host:h1", {"kid": identity.kid})


def test_a_lost_answer_to_a_rotation_is_given_again(identity: Identity) -> None:
    following = new_identity()
    assert rotation(identity, following).send().status_code == 201

    again = rotation(identity, following).send()

    assert (again.status_code, HostKey.objects.count()) == (200, 2)
    assert json.loads(again.content) == {"kid": key_id(following.public_key)}


def test_a_host_has_three_keys_at_most_until_one_is_dropped_or_over(identity: Identity) -> None:
    second = rotated(identity)
    third = rotated(second)
    assert code_of(rotation(third, new_identity()).send()) == (409, "too_many_keys")

    assert drop(third, identity.kid).status_code == 204
    assert drop(third, identity.kid).status_code == 204
    assert code_of(signed(identity).send()) == (401, "key_revoked")
    fourth = rotated(third)
    pass_hours(25)
    rotated(fourth)


def test_the_active_key_and_others_keys_cannot_be_dropped(identity: Identity) -> None:
    make_host("h2")
    other = enrolled("h2")

    assert code_of(drop(identity, identity.kid)) == (409, "last_key")
    assert code_of(drop(identity, other.kid)) == (404, "no_such_key")
    assert code_of(drop(identity, "none")) == (404, "no_such_key")
    assert set(HostKey.objects.values_list("state", flat=True)) == {"active"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"public_key": "AAAA"}, "bad_key"),
        ({"public_key": "no base64"}, "bad_key"),
        ({"proof": "AAAA"}, "bad_proof"),
        ({"proof": ""}, "invalid_enrolment"),
        ({"public_key": 1}, "invalid_enrolment"),
    ],
)
def test_a_malformed_rotation_changes_nothing(
    identity: Identity, changes: dict[str, Any], code: str
) -> None:
    assert code_of(rotation(identity, new_identity(), **changes).send()) == (400, code)
    assert HostKey.objects.count() == 1


def test_a_key_is_proven_for_its_host_and_belongs_to_one(identity: Identity) -> None:
    make_host("h2")
    other, following = enrolled("h2"), new_identity()
    foreign = json.loads(rotation(other, following).body)

    assert code_of(rotation(identity, following, **foreign).send()) == (400, "bad_proof")
    assert code_of(rotation(identity, other).send()) == (409, "key_in_use")


def test_a_retiring_key_makes_no_other_active(identity: Identity) -> None:
    rotated(identity)

    assert code_of(rotation(identity, new_identity()).send()) == (403, "key_retiring")


def test_an_operator_ends_keys_at_once_and_who_enrols_anew_has_no_older_one(
    identity: Identity,
) -> None:
    second = rotated(identity)
    revoke_key(pk=HostKey.objects.get(kid=second.kid).pk, actor=ANN, request_id="r")
    assert code_of(signed(second).send()) == (401, "key_revoked")
    assert signed(identity).send().status_code == 204

    assert send_enrolment(enrolment(new_identity(), make_token())).status_code == 201

    assert code_of(signed(identity).send()) == (401, "key_revoked")
    states = sorted(HostKey.objects.values_list("state", flat=True))
    assert states == ["active", "revoked", "revoked"]


def test_the_database_keeps_no_end_of_an_active_key(identity: Identity) -> None:
    with pytest.raises(IntegrityError, match="hosts_key_ended"), transaction.atomic():
        HostKey.objects.update(not_after=database_now())
    with pytest.raises(IntegrityError, match="hosts_key_ended"), transaction.atomic():
        HostKey.objects.update(state="retiring")


@pytest.mark.django_db(transaction=True)
def test_no_request_fails_while_the_key_is_rotated() -> None:
    make_host("h1")
    known = [enrolled()]
    statuses: list[int] = []
    is_over = threading.Event()

    def report_on() -> None:
        while not is_over.is_set():
            statuses.append(signed(known[-1]).send().status_code)
        connection.close()

    threads = [threading.Thread(target=report_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        known.append(rotated(known[-1]))
        drop(known[-1], known[-3].kid if len(known) > 2 else "none")
    is_over.set()
    for thread in threads:
        thread.join()

    assert set(statuses) == {204}


def at_once(work: Callable[[], object], count: int) -> None:
    start = threading.Barrier(count)

    def run() -> None:
        start.wait(10)
        work()
        connection.close()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


@pytest.mark.django_db(transaction=True)
def test_processes_that_need_a_key_at_once_make_one() -> None:
    found: list[Signer] = []

    at_once(lambda: found.append(signer()), 4)

    assert len({(one.kid, one.seed) for one in found}) == 1
    assert ServerKey.objects.count() == 1
    assert AuditEntry.objects.filter(action="server_key_made").count() == 1


def test_the_servers_key_stays_itself_and_is_not_in_the_database(settings: Any) -> None:
    first = signer()
    row = ServerKey.objects.get()

    assert signer() == first
    assert first.seed not in bytes(row.sealed_seed)
    assert first.seed.hex() not in repr(first)
    assert key_id(bytes(row.public_key)) == first.kid

    settings.SECRET_KEY = "another" * 10
    other = signer()
    assert other.kid != first.kid
    assert signer() == other
    told = {one["kid"]: one for one in told_keys(database_now())}
    assert "signed_by" not in told[other.kid]
    assert ServerKey.objects.count() == 2


def test_a_following_key_of_the_server_is_vouched_for() -> None:
    first = signer()

    assert rotate_server_key(actor=ANN, request_id="r") == signer().kid != first.kid

    new, old = told_keys(database_now())
    assert (new["kid"], old["kid"], new["signed_by"]) == (signer().kid, first.kid, first.kid)
    vouched = server_key_bytes(base64.b64decode(new["key"]))
    signature = base64.b64decode(new["signature"])
    assert verify(base64.b64decode(old["key"]), signature, vouched)
    ServerKey.objects.update(not_after=F("not_after") - timedelta(hours=25))
    assert [one["kid"] for one in told_keys(database_now())] == [new["kid"]]


def test_operators_rotate_the_servers_key() -> None:
    def command(*arguments: str) -> str:
        out = StringIO()
        call_command("host_agent", "server-key", *arguments, stdout=out)
        return out.getvalue()

    first = command("list").split()[0]
    second = command("rotate").strip()

    assert command("list") == f"{second}  active\n{first}  retiring\n"
