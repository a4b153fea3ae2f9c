"""What agents are asked to do, page by page (spec hosts, D.7)."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from hosts.agents.models import AgentMode, HostAgent
from hosts.agents.polls import PollQuery, read_page
from hosts.agents.workload_models import Workload
from hosts.agents.workloads import (
    NotEnforcing,
    create_workloads,
    delete_workloads,
    retry_workloads,
)
from journal.clock import database_now
from journal.errors import InvalidInput
from journal.models import AuditEntry
from tests.hosts.agents.test_enrolment import code_of
from tests.hosts.agents.workloads import (
    ANN,
    agent_named,
    asked,
    enforcing,
    get,
    make_workload,
    poll,
    verified,
)


def delete(*rows: Workload) -> None:
    agent_pk = rows[0].agent_id
    delete_workloads(agent_pk, [row.pk for row in rows], reason="gone", actor=ANN, request_id="r")


def seqs(page: dict[str, Any]) -> list[tuple[int, str, bool]]:
    return [(one["seq"], one["id"], one["to_delete"]) for one in page["reservations"]]


@pytest.mark.django_db
def test_a_workload_reaches_its_agent_signed_and_counts_as_dispatched() -> None:
    identity = enforcing()
    end = database_now() + timedelta(hours=1)
    row = make_workload(expires_at=end)

    page = poll(identity)

    (sent,) = page["reservations"]
    told = verified(sent)
    assert (told.id, told.node_id, told.user_id) == (row.gwid, identity.host_id, "9f2c")
    assert row.gwid.startswith("42-")
    assert told.resources == {"cpu": 8, "memory": 34359738368}
    assert (told.attempt, told.seq, told.fence_epoch, told.to_delete) == (1, 1, 1, False)
    assert told.expires_at == end
    assert (page["last_id"], page["caught_up"], page["fence_epoch"]) == (1, True, 1)
    assert page["timeline"] == str(agent_named().timeline)
    row.refresh_from_db()
    assert row.state == "dispatched"
    entry = AuditEntry.objects.get(action="host_workload_created")
    assert (entry.object_id, entry.actor) == (row.gwid, "ann")


@pytest.mark.django_db
def test_pages_of_the_specification() -> None:
    identity = enforcing()
    ten, eleven = make_workload(10), make_workload(11)
    page = poll(identity)
    assert seqs(page) == [(1, ten.gwid, False), (2, eleven.gwid, False)]
    assert (page["last_id"], page["caught_up"]) == (2, True)

    delete(ten)

    assert seqs(poll(identity, "from=2")) == [(3, ten.gwid, True)]
    assert seqs(poll(identity)) == [(2, eleven.gwid, False), (3, ten.gwid, True)]
    nothing = poll(identity, "from=3&wait=25")
    assert (seqs(nothing), nothing["last_id"], nothing["caught_up"]) == ([], 3, True)
    beyond = get(identity, "reservations", "from=9")
    assert code_of(beyond) == (400, "bad_cursor")
    assert json.loads(beyond.content)["error"]["details"] == {"change_seq": 3}


@pytest.mark.django_db
def test_more_than_a_page_is_not_caught_up() -> None:
    identity = enforcing()
    create_workloads(
        agent_named().pk, [asked(number) for number in range(450)], actor=ANN, request_id="r"
    )

    page = poll(identity)

    assert (len(page["reservations"]), page["last_id"], page["caught_up"]) == (200, 200, False)
    rest = poll(identity, "from=400&limit=500")
    assert (len(rest["reservations"]), rest["last_id"], rest["caught_up"]) == (50, 450, True)
    assert Workload.objects.filter(state="dispatched").count() == 250


@pytest.mark.django_db
def test_what_ended_is_not_listed_from_the_beginning() -> None:
    identity = enforcing()
    rows = {state: make_workload(n) for n, state in enumerate(("failed", "lost", "deployed"), 1)}
    for state, row in rows.items():
        Workload.objects.filter(pk=row.pk).update(state=state)

    assert [one["id"] for one in poll(identity)["reservations"]] == [rows["deployed"].gwid]
    assert poll(identity)["last_id"] == 3
    assert (
        retry_workloads(
            rows["lost"].agent_id, [row.pk for row in rows.values()], actor=ANN, request_id="r"
        )
        == 2
    )
    told = [verified(one) for one in poll(identity, "from=3")["reservations"]]
    assert [(one.id, one.attempt, one.seq) for one in told] == [
        (rows["failed"].gwid, 2, 4),
        (rows["lost"].gwid, 2, 5),
    ]
    Workload.objects.update(state="failed", attempt=3)
    assert retry_workloads(rows["lost"].agent_id, [rows["lost"].pk], actor=ANN, request_id="r") == 0


@pytest.mark.django_db
@pytest.mark.parametrize("query", ["from=x", "limit=0", "wait=-1", "from=9223372036854775808"])
def test_a_malformed_poll_is_refused(query: str) -> None:
    assert code_of(get(enforcing(), "reservations", query)) == (400, "invalid_poll")


@pytest.mark.django_db
def test_one_reservation_and_its_tombstone() -> None:
    identity, other = enforcing(), enforcing("h2")
    row = make_workload()
    path = f"reservations/{row.gwid}"
    answer = get(identity, path)
    assert answer.status_code == 200
    assert not verified(json.loads(answer.content)).to_delete
    delete(row)
    assert verified(json.loads(get(identity, path).content)).to_delete
    Workload.objects.update(state="deleted")

    gone = get(identity, path)

    assert code_of(gone) == (410, "reservation_deleted")
    tombstone = verified(json.loads(gone.content)["tombstone"])
    assert (tombstone.id, tombstone.to_delete) == (row.gwid, True)
    for name in ("1-1", "x", f"{row.gwid}0"):
        assert code_of(get(identity, f"reservations/{name}")) == (404, "no_such_reservation")
    assert code_of(get(other, path)) == (404, "no_such_reservation")


@pytest.mark.django_db
def test_only_an_agent_that_enforces_is_asked() -> None:
    identity = enforcing()
    HostAgent.objects.update(mode=AgentMode.OBSERVE)
    with pytest.raises(NotEnforcing):
        make_workload()
    HostAgent.objects.update(mode=AgentMode.ENFORCE, decommissioned_at=database_now())
    with pytest.raises(NotEnforcing):
        make_workload()
    ended = get(identity, "reservations")
    assert code_of(ended) == (410, "decommissioned")
    assert json.loads(ended.content)["error"]["details"] == {"end_of_stream": True}


@pytest.mark.django_db
@pytest.mark.parametrize("changes", [{"data": {"x": 1.5}}, {"cpus": -1}, {"memory_bytes": 2**63}])
def test_what_cannot_be_signed_is_not_asked(changes: dict[str, Any]) -> None:
    enforcing()
    with pytest.raises(InvalidInput):
        make_workload(**changes)
    assert agent_named().change_seq == 0


@pytest.mark.django_db(transaction=True)
def test_a_reader_that_follows_the_numbers_misses_no_change() -> None:
    """Six writers create and delete while one reads: it sees every number's row in the end."""
    enforcing()
    agent_pk = agent_named().pk
    left = threading.Barrier(7)
    errors: list[Exception] = []

    def write(writer: int) -> None:
        try:
            left.wait(30)
            for number in range(10):
                rows = create_workloads(
                    agent_pk, [asked(writer * 100 + number)], actor=ANN, request_id="r"
                )
                if number % 3 == 0:
                    delete(*rows)
        except Exception as error:  # noqa: BLE001 - told to the test
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    left.wait(30)
    seen: dict[str, tuple[int, bool]] = {}
    cursor, is_last = 0, False
    while True:
        is_over = not any(thread.is_alive() for thread in threads)
        page = read_page(agent_pk, PollQuery(after=cursor, limit=7))
        numbers = [int(str(one["seq"])) for one in page.reservations]
        assert numbers == sorted(numbers)
        for one in page.reservations:
            seen[str(one["id"])] = (int(str(one["seq"])), bool(one["to_delete"]))
        cursor = page.last_id
        if is_last and page.caught_up:
            break
        is_last = is_over
    for thread in threads:
        thread.join(30)
    assert not errors
    assert cursor == 6 * 14
    assert seen == {row.gwid: (row.seq, row.to_delete) for row in Workload.objects.all()}
