"""Signed results of agents against the database (spec hosts, D.8)."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection
from django.http import HttpResponse
from headroom_host_agent.provision.signing.keys import sign
from headroom_host_agent.provision.signing.v2 import result_bytes, seal
from headroom_host_agent.server.identity import Identity

from hosts.agents.leases import fence
from hosts.agents.models import HostAgent
from hosts.agents.workload_models import Workload, WorkloadResult
from hosts.agents.workloads import delete_workloads, retry_workloads
from journal.models import AuditEntry
from tests.hosts.agents.agents import signed
from tests.hosts.agents.test_enrolment import code_of
from tests.hosts.agents.test_leases import in_epoch
from tests.hosts.agents.workloads import ANN, enforcing, get, make_workload


def result(identity: Identity, row: Workload, **changes: Any) -> dict[str, Any]:
    """Return a sealed result; ``changes`` are fields of what is signed."""
    document = {
        "reservation_id": row.gwid,
        "host_id": identity.host_id,
        "attempt": 1,
        "fence_epoch": identity.fence_epoch,
        "type": "accounting",
        "state": "ok",
        "error": "",
        "data": None,
        "finished_at": "2026-01-02T03:04:05Z",
        **changes,
    }
    signature = sign(identity.seed_bytes, result_bytes(document))
    return seal(document, kid=identity.kid, signature=signature)


def send(
    identity: Identity, row: Workload, sent: object, *, part: str = "result", method: str = "PUT"
) -> HttpResponse:
    path = f"/hosts/v1/{identity.host_id}/reservations/{row.gwid}"
    full = f"{path}/{part}" if part else path
    return signed(identity, sent, method=method, path=full).send()


def tell(identity: Identity, row: Workload, **changes: Any) -> HttpResponse:
    part = "deleted" if changes.get("state") == "deleted" else "result"
    return send(identity, row, result(identity, row, **changes), part=part)


def state(row: Workload) -> str:
    row.refresh_from_db()
    return row.state


@pytest.mark.django_db
def test_a_result_deploys_once_and_is_kept_with_its_signature() -> None:
    identity = enforcing()
    row = make_workload()

    assert tell(identity, row).status_code == 201

    assert state(row) == "deployed"
    kept = WorkloadResult.objects.get()
    assert (kept.kind, kept.state, kept.kid) == ("result", "ok", identity.kid)
    assert bytes(kept.signature) == sign(identity.seed_bytes, result_bytes(kept.document))
    again = tell(identity, row, finished_at="2026-01-03T00:00:00Z")
    assert (again.status_code, json.loads(again.content)) == (200, {"state": "deployed"})
    assert WorkloadResult.objects.count() == 1
    changed = tell(identity, row, error="changed")
    assert code_of(changed) == (409, "result_conflict")
    assert state(row) == "deployed"
    actions = AuditEntry.objects.filter(object_id=row.gwid).order_by("id")
    assert list(actions.values_list("action", flat=True)) == [
        "host_workload_created",
        "host_workload_deployed",
        "host_result_conflict",
    ]


@pytest.mark.django_db
def test_an_error_is_tried_again_as_another_attempt() -> None:
    identity = enforcing()
    row = make_workload()
    assert tell(identity, row, state="error", error="no room").status_code == 201
    assert (state(row), row.error) == ("failed", "no room")

    retry_workloads(row.agent_id, [row.pk], actor=ANN, request_id="r")

    assert tell(identity, row, state="error", error="no room").status_code == 200
    assert code_of(tell(identity, row)) == (409, "attempt_superseded")
    assert state(row) == "pending"
    assert tell(identity, row, attempt=2).status_code == 201
    assert state(row) == "deployed"
    died = tell(identity, row, attempt=2, state="error", error="it is gone")
    assert (died.status_code, state(row)) == (201, "failed")
    assert tell(identity, row, attempt=2).status_code == 200
    assert state(row) == "failed"


@pytest.mark.django_db
def test_a_deletion_leaves_a_tombstone_whichever_way_it_is_told() -> None:
    identity = enforcing()
    rows = [make_workload(number) for number in (1, 2)]
    for row, (part, method) in zip(rows, (("deleted", "PUT"), ("", "DELETE")), strict=True):
        delete_workloads(row.agent_id, [row.pk], reason="x", actor=ANN, request_id="r")
        assert tell(identity, row).status_code == 201
        assert state(row) == "deleting"
        sent = result(identity, row, state="deleted")
        assert send(identity, row, sent, part=part, method=method).status_code == 200
        assert state(row) == "deleted"
        later = result(identity, row, state="deleted", error="it was gone already")
        assert send(identity, row, later, part=part, method=method).status_code == 200
        assert code_of(get(identity, f"reservations/{row.gwid}")) == (410, "reservation_deleted")
    assert WorkloadResult.objects.filter(kind="deleted").count() == 2
    unasked = make_workload(3)
    assert tell(identity, unasked, state="deleted").status_code == 200
    assert (state(unasked), unasked.to_delete) == ("deleted", True)


@pytest.mark.django_db
def test_an_epoch_that_ended_tells_nothing_more_and_loses_what_it_was_asked() -> None:
    identity = enforcing()
    open_row, made = make_workload(1), make_workload(2)
    tell(identity, made)
    old = result(identity, open_row)

    fence("h1", actor=ANN, request_id="r", reason="test")

    assert (state(open_row), state(made)) == ("lost", "deployed")
    assert code_of(tell(identity, open_row)) == (409, "stale_epoch")
    identity = in_epoch(identity, 2)
    late = send(identity, open_row, old)
    assert code_of(late) == (409, "stale_epoch")
    assert json.loads(late.content)["error"]["details"] == {"fence_epoch": 2}
    assert tell(identity, made, fence_epoch=1).status_code == 200
    assert tell(identity, open_row).status_code == 201
    assert state(open_row) == "deployed"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"attempt": 0}, (400, "invalid_result")),
        ({"attempt": 2**31}, (400, "invalid_result")),
        ({"attempt": True}, (400, "invalid_result")),
        ({"fence_epoch": "1"}, (400, "invalid_result")),
        ({"state": "done"}, (400, "invalid_result")),
        ({"state": ["ok"]}, (400, "invalid_result")),
        ({"type": "other"}, (400, "invalid_result")),
        ({"error": None}, (400, "invalid_result")),
        ({"finished_at": "yesterday"}, (400, "invalid_result")),
        ({"reservation_id": "1-1"}, (400, "invalid_result")),
        ({"host_id": "4b6c8a4e-5a4f-4a53-9d0e-0f5b3c1d2e3f"}, (400, "invalid_result")),
    ],
)
def test_a_wrong_result_changes_nothing(changes: dict[str, Any], expected: tuple[int, str]) -> None:
    identity = enforcing()
    row = make_workload()
    assert code_of(send(identity, row, result(identity, row, **changes))) == expected
    assert (state(row), WorkloadResult.objects.count()) == ("pending", 0)


@pytest.mark.django_db
def test_a_result_of_another_key_or_host_is_refused() -> None:
    identity, other = enforcing(), enforcing("h2")
    row = make_workload()
    forged = result(identity, row) | {"error": "forged"}
    assert code_of(send(identity, row, forged)) == (401, "bad_signature")
    theirs = result(other, row, host_id=identity.host_id)
    assert code_of(send(identity, row, theirs)) == (401, "bad_signature")
    assert code_of(send(other, row, result(other, row))) == (404, "no_such_reservation")
    assert code_of(send(identity, row, [1])) == (400, "invalid_result")
    gone = result(identity, row, state="deleted")
    assert code_of(send(identity, row, gone)) == (400, "invalid_result")
    assert code_of(send(identity, row, result(identity, row), part="deleted")) == (
        400, "invalid_result",
    )  # fmt: skip
    assert (state(row), WorkloadResult.objects.count()) == ("pending", 0)


@dataclass(frozen=True)
class Rivalry:
    """What another does at the same time."""

    rival: str
    identity: Identity
    row: Workload
    sent: object
    barrier: threading.Barrier
    codes: list[int]

    def run(self) -> None:
        self.barrier.wait(10)
        try:
            if self.rival == "fence":
                fence("h1", actor=ANN, request_id="r", reason="test")
            elif self.rival == "delete":
                pks = [self.row.pk]
                delete_workloads(self.row.agent_id, pks, reason="x", actor=ANN, request_id="r")
            else:
                self.codes.append(send(self.identity, self.row, self.sent).status_code)
        finally:
            connection.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("rival", ["fence", "delete", "same"])
def test_a_result_races(rival: str) -> None:
    """Whoever is first: nothing of an epoch that ended is stored, and each thing once."""
    identity = enforcing()
    for number in range(5):
        row = make_workload(number)
        epoch = identity.fence_epoch
        sent = result(identity, row)
        codes: list[int] = []
        barrier = threading.Barrier(2)

        rivalry = Rivalry(rival, identity, row, sent, barrier, codes)
        thread = threading.Thread(target=rivalry.run)
        thread.start()
        barrier.wait(10)
        codes.append(send(identity, row, sent).status_code)
        thread.join(30)
        kept = WorkloadResult.objects.filter(workload=row).count()
        outcome = (state(row), sorted(codes), kept)
        allowed: dict[str, list[Any]] = {
            "fence": [("deployed", [201], 1), ("lost", [409], 0)],
            "delete": [("deleting", [201], 1)],
            "same": [("deployed", [200, 201], 1)],
        }
        assert outcome in allowed[rival]
        assert HostAgent.objects.get().fence_epoch == epoch + (rival == "fence")
        identity = in_epoch(identity, HostAgent.objects.get().fence_epoch)
