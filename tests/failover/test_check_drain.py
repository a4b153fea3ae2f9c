from __future__ import annotations

import json
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone
from pydantic import SecretStr

from capacity.models import Reservation
from capacity.nova.pipelines import ensure_shipped_pipelines
from failover.selectors.drain import check_drain
from hosts.models import Host, PlannedHostChange, ServerGroup
from journal.conf import AccessToken
from journal.errors import InvalidInput
from scheduling.resources import GIB
from tests.factories import (
    make_commitment,
    make_domain,
    make_group,
    make_host,
    make_project,
    make_slot,
    make_vm,
)
from tests.failover.drill_rows import make_zone

pytestmark = pytest.mark.django_db(transaction=True)
NOW = timezone.now()
S3 = "rA@3{a@1,b@2} rB@4{a@1} rC@5{b@2}"


@pytest.fixture(autouse=True)
def _open_region(settings: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"auth": "noauth"})
    ensure_shipped_pipelines(request_id="test")
    make_domain()
    make_project()


def moved(*hosts: str) -> dict[str, str]:
    return {move.key: move.to_host for move in check_drain(hosts, now=NOW).report.moves}


def test_empty_host_is_safe_now() -> None:
    make_host("h1")

    answer = check_drain(["h1"], now=NOW)

    assert answer.report.is_safe
    assert answer.window is not None
    assert (answer.window.starts_at, answer.window.ends_at) == (NOW, None)


def test_vms_and_failover_slots_find_new_hosts() -> None:
    rows = make_zone(S3, vms={"c": "3"}, hosts=("6", "7"))

    answer = check_drain(["h3"], now=NOW)

    where = {move.key: move.to_host for move in answer.report.moves}
    assert answer.report.is_safe
    assert set(where) == {rows.uuid("c"), "rA"}
    # Every other host has a role for a or b already.
    assert where["rA"] in {"h6", "h7"}
    assert where[rows.uuid("c")] != "h3"


def test_vm_that_fits_nowhere_is_stuck_with_the_reason() -> None:
    host = make_host("h1", memory_gib=64)
    make_host("h2", memory_gib=4)
    vm = make_vm("a", host, memory_gib=8)

    answer = check_drain(["h1"], now=NOW)

    assert [blocker.value for blocker in answer.report.blockers] == ["vm_stuck"]
    assert answer.report.stuck[0].key == vm.openstack_id
    assert "filter_has_enough_capacity" in answer.report.stuck[0].reason
    assert answer.window is None


def test_host_that_is_not_ready_takes_nothing() -> None:
    make_vm("a", make_host("h1"))
    make_host("h2", status="disabled")

    assert not check_drain(["h1"], now=NOW).report.is_safe


def test_members_of_an_anti_affinity_group_do_not_meet() -> None:
    first = make_vm("a", make_host("h1"))
    other = make_vm("b", make_host("h2"))
    make_host("h3", memory_gib=8)
    ServerGroup.objects.create(
        openstack_id="group",
        policy="anti-affinity",
        members=[first.openstack_id, other.openstack_id],
    )

    assert moved("h1") == {first.openstack_id: "h3"}


def test_slot_travels_with_its_vm() -> None:
    make_group()
    host = make_host("h1")
    make_host("h2", memory_gib=16)
    slot = make_slot(make_commitment("commitment-1"), host, memory_gib=16, vcpus=4)
    vm = make_vm("a", host, slot=slot)

    assert moved("h1") == {"commitment-1/0": "h2", vm.openstack_id: "h2"}


def test_slot_without_a_place_strands_its_commitment_until_another_ends() -> None:
    make_group()
    host, other = make_host("h1", memory_gib=16), make_host("h2", memory_gib=16)
    make_slot(make_commitment("commitment-1"), host, memory_gib=16, vcpus=4)
    ends = NOW + timedelta(days=30)
    make_slot(make_commitment("commitment-2"), other, memory_gib=16, vcpus=4, end_time=ends)

    answer = check_drain(["h1"], now=NOW)

    assert list(answer.report.stranded_commitments) == ["commitment-1"]
    assert answer.window is not None
    assert (answer.window.starts_at, answer.window.ends_at) == (ends, None)


def test_slot_that_ends_itself_opens_the_window() -> None:
    make_group()
    ends = NOW + timedelta(days=3)
    make_slot(
        make_commitment("commitment-1"), make_host("h1"), memory_gib=16, vcpus=4, end_time=ends
    )

    answer = check_drain(["h1"], now=NOW)

    assert not answer.report.is_safe
    assert answer.window is not None
    assert answer.window.starts_at == ends


def planned(edit: str, host: str, days: int, count: int = 1) -> datetime:
    at = NOW + timedelta(days=days)
    PlannedHostChange.objects.create(
        edit=edit, host=Host.objects.get(name=host), at=at, host_count=count
    )
    return at


def window_of(*hosts: str) -> tuple[datetime | None, datetime | None]:
    window = check_drain(hosts, now=NOW).window
    return (None, None) if window is None else (window.starts_at, window.ends_at)


def test_planned_hosts_open_the_window() -> None:
    make_vm("a", make_host("h1"), memory_gib=8)
    make_host("h2", memory_gib=4)
    planned("add", "h2", 2)
    assert window_of("h1") == (None, None)

    at = planned("add", "h1", 5)

    assert window_of("h1") == (at, None)


@pytest.mark.parametrize("read", [1, 2])
def test_window_ends_where_planned_changes_are_not_read_any_more(
    monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    monkeypatch.setattr("failover.selectors.drain.MOST_PLANNED", read)
    make_vm("a", make_host("h1"), memory_gib=8)
    for name in ("h2", "h3", "h4"):
        make_host(name)
    planned("drain", "h2", 1)
    at = planned("drain", "h3", 2)
    planned("drain", "h4", 2)

    assert window_of("h1") == (NOW, at)


def test_planned_hosts_come_empty_whatever_their_model_holds() -> None:
    make_vm("a", make_host("h1", memory_gib=16), memory_gib=16)
    make_vm("b", make_host("h2", memory_gib=16), memory_gib=16)
    at = planned("add", "h2", 1)

    assert window_of("h1") == (at, None)
    assert window_of("h1", "h2") == (None, None)


def test_several_planned_hosts_count_each() -> None:
    make_vm("a", make_host("h1", memory_gib=16), memory_gib=16)
    make_vm("b", make_host("h2", memory_gib=16), memory_gib=16)
    at = planned("add", "h2", 1, count=2)

    assert window_of("h1", "h2") == (at, None)


def test_drain_of_another_host_closes_the_window() -> None:
    make_vm("a", make_host("h1", memory_gib=16), memory_gib=16)
    make_vm("b", make_host("h2", memory_gib=16), memory_gib=8)
    make_host("h3", memory_gib=16)
    assert window_of("h1") == (NOW, None)

    at = planned("drain", "h2", 3)

    assert window_of("h1") == (NOW, at)
    assert window_of("h2") == (NOW, None)


def test_drained_host_takes_nothing_afterwards() -> None:
    make_vm("a", make_host("h1", memory_gib=16), memory_gib=16)
    make_host("h2", memory_gib=16)
    at = planned("drain", "h2", 3)

    assert window_of("h1") == (NOW, at)


def test_planned_drain_of_the_host_itself_is_no_event() -> None:
    make_vm("a", make_host("h1", memory_gib=16), memory_gib=16)
    make_host("h2", memory_gib=16)
    planned("drain", "h1", 3)

    assert window_of("h1") == (NOW, None)


def test_hosts_that_come_after_a_drain_open_the_window_again() -> None:
    make_vm("a", make_host("h1", memory_gib=16), memory_gib=16)
    make_vm("b", make_host("h2", memory_gib=16), memory_gib=16)
    planned("drain", "h2", 1)
    planned("add", "h1", 2)
    at = planned("add", "h2", 4)

    # The first new host takes what h2 held, the second what h1 holds.
    assert window_of("h1") == (at, None)


def test_window_ends_of_commitments_and_planned_hosts_together() -> None:
    make_group()
    host, other = make_host("h1", memory_gib=16), make_host("h2", memory_gib=16)
    make_slot(make_commitment("commitment-1"), host, memory_gib=16, vcpus=4)
    ends = NOW + timedelta(days=30)
    make_slot(make_commitment("commitment-2"), other, memory_gib=16, vcpus=4, end_time=ends)
    at = planned("drain", "h2", 40)

    assert window_of("h1") == (ends, at)


def test_vm_that_would_lose_its_only_slot_blocks_the_drain() -> None:
    rows = make_zone("r@3{a@1}", required=1)

    answer = check_drain(["h3"], now=NOW)

    assert [blocker.value for blocker in answer.report.blockers] == ["coverage_lost"]
    assert answer.report.bare_vms == (rows.uuid("a"),)


def test_checking_writes_nothing() -> None:
    make_zone(S3)
    before = list(Reservation.objects.order_by("pk").values_list("pk", "changed_xid"))

    check_drain(["h1", "h3"], now=NOW)

    assert list(Reservation.objects.order_by("pk").values_list("pk", "changed_xid")) == before


@pytest.mark.parametrize(
    ("names", "code", "words"),
    [
        pytest.param([], "invalid_input", "got 0", id="no host"),
        pytest.param(["h1", "h8", "h9"], "unknown_host", "h8, h9", id="unknown hosts"),
        pytest.param(
            [f"x{number}" for number in range(201)], "invalid_input", "got 201", id="too many"
        ),
    ],
)
def test_impossible_questions_are_refused(names: list[str], code: str, words: str) -> None:
    make_host("h1")

    with pytest.raises(InvalidInput, match=words) as caught:
        check_drain(names, now=NOW)

    assert caught.value.code == code


def post(path: str, body: Any, **headers: str) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    client = Client(raise_request_exception=False, enforce_csrf_checks=True)
    return client.generic(
        "POST", f"/api/v1/failover/{path}", content, "application/json", headers=headers
    )


def test_drain_check_is_answered_as_a_document() -> None:
    make_group()
    host = make_host("h1", memory_gib=32)
    make_host("h2", memory_gib=8)
    make_slot(make_commitment("commitment-1"), host, memory_gib=16, vcpus=4)
    vm = make_vm("a", host)

    response = post("drain-check", {"hosts": ["h1"]})

    assert response.status_code == 200
    answer = response.json()
    stuck = answer.pop("stuck")
    assert answer == {
        "hosts": ["h1"],
        "safe": False,
        "blockers": ["commitment_stranded"],
        "stranded_commitments": [
            {"commitment": "commitment-1", "slots": 1, "memory_bytes": 16 * GIB}
        ],
        "weakened_vms": [],
        "moves": [{"kind": "vm", "key": vm.openstack_id, "from": "h1", "to": "h2"}],
        "next_safe_window": None,
    }
    assert [(row["kind"], row["key"]) for row in stuck] == [("committed_slot", "commitment-1/0")]


PATHS = ("/api/v1/failover/simulations", "/failover/v1/simulations")


def test_simulation_has_the_published_path_too() -> None:
    make_zone("r@3{a@1}")
    body = json.dumps({"failed": {"hosts": ["h1"]}})

    answers = [Client().post(path, body, "application/json").json() for path in PATHS]

    assert answers[0] == answers[1]


def test_simulation_is_answered_as_the_specification_has_it() -> None:
    rows = make_zone("rA@3{a@1,b@2}")

    response = post("simulations", {"failed": {"hosts": ["h1", "h2"]}, "explain": True})

    assert response.status_code == 200
    answer = response.json()
    assert (answer["failed_hosts"], answer["affected_vms"]) == (2, 2)
    saved = answer["assignments"][0]
    lost = rows.uuid("b" if saved["vm"] == rows.uuid("a") else "a")
    assert (saved["reservation"], saved["to"], saved["private"]) == ("rA", "h3", False)
    assert answer["unprotected"] == [
        {"vm": lost, "required": 2, "slots": 1, "reason": "outnumbered"}
    ]
    assert answer["conflicts"] == [
        {"reservation": "rA", "vms": sorted([rows.uuid("a"), rows.uuid("b")])}
    ]
    assert answer["hosts_after"] == [
        {"host": "h3", "memory_used": 4 * GIB, "memory_capacity": 64 * GIB}
    ]
    assert answer["explanation"][0]["slots"] == [
        {
            "reservation": "rA",
            "host": "h3",
            "host_failed": False,
            "usable": True,
            "fits": True,
            "taken_by": saved["vm"],
        }
    ]


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        pytest.param({"racks": ["bb1"]}, 2, id="a rack"),
        pytest.param({"azs": ["az-a"]}, 3, id="a zone"),
        pytest.param({"hosts": ["h2"], "racks": ["bb1"]}, 3, id="a rack and a host"),
        pytest.param({}, 0, id="nothing"),
    ],
)
def test_racks_and_zones_are_expanded(failed: dict[str, list[str]], expected: int) -> None:
    make_zone("", vms={"a": "1", "b": "2"}, hosts=("3",), racks={"1": "bb1", "3": "bb1"})

    assert post("simulations", {"failed": failed}).json()["failed_hosts"] == expected


@pytest.mark.parametrize(
    ("path", "body", "code", "words"),
    [
        pytest.param("simulations", b"{", "invalid_input", "", id="no JSON"),
        pytest.param(
            "simulations",
            {"failed": {"hosts": ["h77"]}},
            "unknown_failure_domain",
            "host h77",
            id="unknown host",
        ),
        pytest.param(
            "simulations",
            {"policy": "luck"},
            "invalid_input",
            "private, matching",
            id="unknown policy",
        ),
        pytest.param(
            "simulations", {"failed": {"hosts": "h1"}}, "invalid_input", "hosts", id="no list"
        ),
        pytest.param("drain-check", {}, "invalid_input", "hosts", id="no hosts"),
        pytest.param("drain-check", {"hosts": ["h77"]}, "unknown_host", "h77", id="unknown"),
    ],
)
def test_wrong_requests_get_problem_details(path: str, body: Any, code: str, words: str) -> None:
    response = post(path, body)

    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["code"] == code
    assert words in response.json()["detail"]


@pytest.mark.parametrize("path", ["simulations", "drain-check"])
@pytest.mark.parametrize(
    ("token", "status"),
    [
        pytest.param("", 401, id="nobody"),
        pytest.param("viewer-token-0123456789", 400, id="a viewer may ask"),
        pytest.param("member-token-0123456789", 403, id="a member may not"),
    ],
)
def test_only_operators_may_ask(settings: Any, path: str, token: str, status: int) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(
        update={
            "auth": "token",
            "tokens": tuple(
                AccessToken(token=SecretStr(f"{name}-token-0123456789"), name=name, roles=(role,))
                for name, role in (("viewer", "cloud_resource_viewer"), ("member", "member"))
            ),
        }
    )

    headers = {"X-Auth-Token": token} if token else {}
    assert post(path, b"{", **headers).status_code == status


def run_command(*arguments: str) -> str:
    out = StringIO()
    call_command("check_drain", *arguments, stdout=out)
    return out.getvalue()


def test_command_says_what_moves() -> None:
    rows = make_zone(S3, vms={"c": "3"}, hosts=("6",))

    text = run_command("h3", "--moves")

    assert "h3: safe to drain" in text
    assert "moves: 1 failover_slot, 1 vm" in text
    assert rows.uuid("c") in text


def test_command_says_what_is_in_the_way() -> None:
    make_vm("a", make_host("h1"))

    with pytest.raises(CommandError, match="vm_stuck") as caught:
        run_command("h1")

    assert caught.value.returncode == 1


def test_command_prints_json_and_refuses_unknown_hosts() -> None:
    make_host("h1")

    assert json.loads(run_command("h1", "--json"))["safe"] is True
    with pytest.raises(CommandError, match="unknown hosts: h9"):
        run_command("h9")
