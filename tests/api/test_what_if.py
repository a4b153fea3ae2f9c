"""``POST /api/v1/commitments/what-if``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from capacity.models import Reservation
from commitments.models import Commitment
from hosts.models import Host, PlannedHostChange
from tests.api.liquid_client import ADMIN, MEMBER, VIEWER, LiquidClient
from tests.examples import few
from tests.factories import (
    make_domain,
    make_group,
    make_group_capacity,
    make_host,
    make_project,
    make_vm,
)
from tests.ledger import database_fingerprint

pytestmark = pytest.mark.django_db
URL = "/api/v1/commitments/what-if"
RAM, CORES = "hw_version_hana_1_ram", "hw_version_hana_1_cores"
A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"


@pytest.fixture
def cloud(liquid: LiquidClient) -> LiquidClient:
    """One group of a 1 GiB flavor, two hosts of 10 slots in az-a."""
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    for name in ("h1", "h2"):
        make_host(name, zone="az-a", memory_gib=10, vcpus=40)
    make_group_capacity("hana_1", "az-a", total_vcpus=80)
    return liquid


def batch(
    uuid: str, units: int, project: str = "alpha", zone: str = "az-a", resource: str = RAM
) -> dict[str, Any]:
    commitment = {
        "uuid": uuid,
        "oldStatus": None,
        "newStatus": "confirmed",
        "amount": units,
        "expiresAt": "2099-01-01T00:00:00Z",
    }
    changeset = {
        "totalConfirmedBefore": 0,
        "totalConfirmedAfter": units,
        "totalGuaranteedBefore": 0,
        "totalGuaranteedAfter": 0,
        "commitments": [commitment],
    }
    return {"az": zone, "byProject": {project: {"byResource": {resource: changeset}}}}


def ask(body: Any, token: str = VIEWER, method: str = "POST") -> Any:
    client = Client(raise_request_exception=False, enforce_csrf_checks=True)
    return client.generic(
        method,
        URL,
        body if isinstance(body, bytes) else json.dumps(body).encode(),
        "application/json",
        headers={"X-Auth-Token": token},
    )


def answer(body: Any) -> dict[str, Any]:
    response = ask(body)
    assert response.status_code == 200, response.content
    document: dict[str, Any] = response.json()
    return document


def commit(liquid: LiquidClient, uuid: str, units: int, expires_at: str) -> None:
    body = {**batch(uuid, units, project="beta"), "infoVersion": liquid.get_info()["version"]}
    changeset = body["byProject"]["beta"]["byResource"][RAM]
    changeset["commitments"][0]["expiresAt"] = expires_at
    response = liquid.send("POST", liquid.change, body)
    assert (response.status_code, response.json()) == (200, {})


def outcomes(document: dict[str, Any], part: str = "decisions") -> list[str]:
    return [decision["outcome"] for decision in document[part]]


class TestAnswers:
    def test_a_batch_that_fits_says_where_and_writes_nothing(self, cloud: LiquidClient) -> None:
        document = answer({"batch": batch(A, 12)})
        assert document["accepted"] is True
        (decision,) = document["decisions"]
        assert sum(decision["new_slots_by_host"].values()) == 12
        assert document["retry_at"] is None
        assert not Commitment.objects.exists()
        assert not Reservation.objects.exists()

    def test_a_refusal_names_cause_and_what_would_fit(self, cloud: LiquidClient) -> None:
        commit(cloud, B, 10, "2098-01-01T00:00:00Z")
        make_host("h3", zone="az-b", memory_gib=20, vcpus=80)
        document = answer({"batch": batch(A, 12)})
        (decision,) = document["decisions"]
        assert (document["accepted"], decision["outcome"]) == (False, "rejected")
        assert decision["message"].startswith("insufficient capacity: 10/12")
        assert decision["cause"].startswith("no host has room")
        assert decision["fits_now_units"] == 10
        assert decision["slots_without_host"] == 2
        assert document["fits_in_zones"] == ["az-b"]
        assert document["retry_at"] == "2098-01-01T00:00:00Z"

    def test_asked_for_later_the_known_changes_have_happened(self, cloud: LiquidClient) -> None:
        commit(cloud, B, 10, "2098-01-01T00:00:00Z")
        late = answer({"batch": batch(A, 12), "at": "2098-01-01T00:00:00Z"})
        assert late["accepted"] is True
        early = answer({"batch": batch(A, 12), "at": "2097-12-31T23:59:59Z"})
        assert early["accepted"] is False
        assert early["retry_at"] == "2098-01-01T00:00:00Z"

    @pytest.mark.parametrize(
        ("edit", "units", "fits"),
        [
            pytest.param({"hosts_added": [{"like": "h1"}]}, 30, True, id="one host more"),
            pytest.param({"hosts_added": [{"like": "h1"}]}, 31, False, id="one host too few"),
            pytest.param(
                {"hosts_added": [{"like": "h1", "count": 2}, {"like": "h2"}]}, 50, True, id="three"
            ),
            pytest.param({"hosts_drained": ["h1"]}, 10, True, id="one host drained"),
            pytest.param({"hosts_drained": ["h1"]}, 11, False, id="too much for what is left"),
            pytest.param({"hosts_failed": ["h1", "h2"]}, 1, False, id="both failed"),
            pytest.param({"commitments_added": batch(B, 15, "beta")}, 5, True, id="others first"),
            pytest.param(
                {"commitments_added": batch(B, 15, "beta")}, 6, False, id="others took it"
            ),
        ],
    )
    def test_edits_of_the_region(
        self, cloud: LiquidClient, edit: dict[str, Any], units: int, fits: bool
    ) -> None:
        document = answer({"batch": batch(A, units), "edit": edit})
        assert document["accepted"] is fits
        assert not Commitment.objects.exists()

    def test_a_commitment_that_is_over_gives_its_room_back(self, cloud: LiquidClient) -> None:
        commit(cloud, B, 15, "2099-01-01T00:00:00Z")
        assert answer({"batch": batch(A, 6)})["accepted"] is False
        edit = {"commitments_expired": [B]}
        assert answer({"batch": batch(A, 20), "edit": edit})["accepted"] is True
        assert Commitment.objects.get().commitment_uuid == B

    def test_others_that_do_not_fit_are_told_and_hold_nothing(self, cloud: LiquidClient) -> None:
        edit = {"commitments_added": batch(B, 21, "beta")}
        document = answer({"batch": batch(A, 20), "edit": edit})
        assert outcomes(document) == ["accepted"]
        assert outcomes(document, "commitments_added") == ["rejected"]

    def test_what_a_host_that_goes_held_moves_first(self, cloud: LiquidClient) -> None:
        commit(cloud, B, 4, "2099-01-01T00:00:00Z")
        slot = Reservation.objects.select_related("target_host").first()
        assert slot is not None
        assert slot.target_host is not None
        make_project()
        make_domain()
        for _ in range(7):
            make_vm(host=slot.target_host, flavor_name="small", memory_gib=1, vcpus=1)
        document = answer(
            {"batch": batch(A, 1), "edit": {"hosts_drained": [slot.target_host.name]}}
        )
        assert len(document["unplaced"]) == 1
        assert document["unplaced"][0]["what"].startswith("VM ")
        assert document["accepted"] is False


EVERY_EDIT: dict[str, Any] = {
    "hosts_added": [{"like": "h1", "count": 3}],
    "hosts_drained": ["h1"],
    "hosts_failed": ["h2"],
    "commitments_added": batch("cccccccc-0000-4000-8000-000000000003", 4, "gamma"),
    "commitments_expired": [B],
}
FAR = "2098-06-01T00:00:00Z"


class TestWritesNothing:
    """Every table and every sequence of the database, before and after."""

    @pytest.fixture(autouse=True)
    def _region(self, cloud: LiquidClient) -> None:
        commit(cloud, B, 10, "2098-01-01T00:00:00Z")
        slot = Reservation.objects.select_related("target_host").order_by("pk")[0]
        assert slot.target_host is not None
        make_vm(host=slot.target_host, slot=slot, flavor_name="small", memory_gib=1, vcpus=1)
        make_host("h3", zone="az-b", memory_gib=10, vcpus=40)
        host = Host.objects.get(name="h1")
        PlannedHostChange.objects.create(edit="drain", at="2098-02-01T00:00:00Z", host=host)
        PlannedHostChange.objects.create(edit="add", at="2098-03-01T00:00:00Z", host=host)

    @pytest.mark.parametrize(
        ("question", "status"),
        [
            pytest.param({"batch": batch(A, 5)}, 200, id="accepted"),
            pytest.param({"batch": batch(A, 15)}, 200, id="refused"),
            pytest.param({"batch": batch(A, 15), "at": FAR}, 200, id="later"),
            *[
                pytest.param({"batch": batch(A, 15), "edit": {name: edit}}, 200, id=name)
                for name, edit in EVERY_EDIT.items()
            ],
            pytest.param({"batch": batch(A, 15), "edit": EVERY_EDIT}, 200, id="every edit"),
            pytest.param(
                {"batch": batch(A, 15), "edit": EVERY_EDIT, "at": FAR}, 200, id="every edit later"
            ),
            pytest.param({"batch": batch(A, 5, resource=CORES)}, 200, id="cores"),
            pytest.param(
                {"batch": batch(A, 5, resource=CORES, zone="az-b")}, 200, id="cores never counted"
            ),
            pytest.param(
                {"batch": batch(A, 5, resource=CORES, zone="az-x")}, 200, id="cores of no zone"
            ),
            pytest.param({"batch": batch(B, 3)}, 200, id="a commitment that exists"),
            pytest.param({"batch": batch(A, 5), "at": "soon"}, 400, id="wrong question"),
            pytest.param(
                {"batch": batch(A, 5), "edit": {"hosts_failed": ["h9"]}}, 400, id="unknown host"
            ),
        ],
    )
    def test_the_database_is_as_before(self, question: dict[str, Any], status: int) -> None:
        before = database_fingerprint()
        response = ask(question)
        assert response.status_code == status, response.content
        assert database_fingerprint() == before

    def test_the_fingerprint_sees_a_write_anywhere(self) -> None:
        before = database_fingerprint()
        assert {"commitments_commitment", "capacity_groupcapacity", "journal_outbox"} <= set(before)
        Host.objects.filter(name="h3").update(zone="az-c")
        changed = {name for name, now in database_fingerprint().items() if before[name] != now}
        assert "hosts_host" in changed


class TestCoresThatNobodyCounted:
    def test_they_are_counted_for_the_answer_alone(self, cloud: LiquidClient) -> None:
        make_host("h3", zone="az-b", memory_gib=10, vcpus=40)
        fits = answer({"batch": batch(A, 40, resource=CORES, zone="az-b")})
        assert outcomes(fits) == ["accepted"]
        (decision,) = answer({"batch": batch(A, 41, resource=CORES, zone="az-b")})["decisions"]
        assert decision["message"] == "insufficient CPU cores: 40 available, 41 requested"
        assert decision["fits_now_units"] == 40


class TestHostsThatGo:
    def test_what_a_commitment_held_that_is_over_moves_nowhere(self, cloud: LiquidClient) -> None:
        commit(cloud, B, 10, "2099-01-01T00:00:00Z")
        edit = {"hosts_drained": ["h1"], "commitments_expired": [B]}
        document = answer({"batch": batch(A, 10), "edit": edit})
        assert (document["accepted"], document["unplaced"]) == (True, [])

    def test_what_moved_ends_where_it_went(self, cloud: LiquidClient) -> None:
        commit(cloud, B, 10, "2098-01-01T00:00:00Z")
        edit = {"hosts_drained": ["h1"]}
        document = answer({"batch": batch(A, 4), "edit": edit})
        assert (document["accepted"], document["unplaced"]) == (False, [])
        assert document["retry_at"] == "2098-01-01T00:00:00Z"
        later = {"batch": batch(A, 10), "edit": edit, "at": "2098-01-01T00:00:00Z"}
        assert answer(later)["accepted"] is True

    def test_a_planned_host_is_like_one_that_fails(self, cloud: LiquidClient) -> None:
        PlannedHostChange.objects.create(
            edit="add", at="2097-06-01T00:00:00Z", host=Host.objects.get(name="h1")
        )
        document = answer({"batch": batch(A, 20), "edit": {"hosts_failed": ["h1"]}})
        assert document["retry_at"] == "2097-06-01T00:00:00Z"


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "status", "words"),
        [
            pytest.param(b"{", 400, "", id="no JSON"),
            pytest.param({}, 400, "az", id="no batch"),
            pytest.param({"batch": batch(A, 1), "at": "soon"}, 400, "at", id="no time"),
            pytest.param(
                {"batch": batch(A, 1), "at": "2001-01-01T00:00:00Z"}, 400, "past", id="past"
            ),
            pytest.param(
                {"batch": batch(A, 1), "edit": {"hosts_drained": ["nowhere"]}},
                400,
                "edit.hosts_drained[0]: no host nowhere",
                id="unknown host",
            ),
            pytest.param(
                {"batch": batch(A, 1), "edit": {"hosts_added": [{"count": 2}]}},
                400,
                "like",
                id="host like none",
            ),
            pytest.param(
                {"batch": batch(A, 1), "edit": {"hosts_added": [{"like": "h1", "count": 1001}]}},
                400,
                "1 to 1000",
                id="too many hosts",
            ),
            pytest.param(
                {
                    "batch": batch(A, 1),
                    "edit": {
                        "hosts_added": [{"like": "h1", "count": 1000}] * 10 + [{"like": "h1"}]
                    },
                },
                400,
                "edit.hosts_added: 10001 new hosts in all, at most 10000",
                id="too many hosts together",
            ),
            pytest.param(
                {"batch": batch(A, 1), "edit": {"commitments_expired": [B]}},
                400,
                f"no commitment {B}",
                id="unknown commitment",
            ),
            pytest.param(
                {"batch": batch(A, 1), "edit": {"commitments_added": batch(A, 1)}},
                400,
                "occurs in another part",
                id="the same commitment twice",
            ),
            pytest.param(
                {
                    "batch": {
                        "az": "az-a",
                        "byProject": {
                            "p": {
                                "byResource": {
                                    "hw_version_nope_ram": {
                                        "commitments": [
                                            {"uuid": A, "amount": 1, "newStatus": "confirmed"}
                                        ]
                                    }
                                }
                            }
                        },
                    }
                },
                400,
                "flavor group not found: nope",
                id="unknown group",
            ),
        ],
    )
    def test_a_wrong_question_is_named(
        self, cloud: LiquidClient, body: Any, status: int, words: str
    ) -> None:
        response = ask(body)
        assert response.status_code == status, response.content
        assert response["Content-Type"] == "application/problem+json"
        assert words in response.json()["detail"]

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            pytest.param({"amount": -1}, "amount", id="amount"),
            pytest.param({"amount": 2**62}, "amount", id="amount out of range"),
            pytest.param({"uuid": "x" * 50}, "uuid", id="form of the uuid"),
            pytest.param({"uuid": "x\x00"}, "uuid", id="character of the uuid"),
            pytest.param({"expiresAt": "soon"}, "expiresAt", id="no time"),
            pytest.param({"expiresAt": None}, "expiresAt", id="no end"),
            pytest.param({"expiresAt": "2020-01-01T00:00:00Z"}, "expiresAt", id="past end"),
            pytest.param({"newStatus": None}, "newStatus", id="neither old nor new status"),
            pytest.param({"newStatus": "done"}, "newStatus", id="unknown status"),
        ],
    )
    @pytest.mark.parametrize("part", ["batch", "edit.commitments_added"])
    def test_the_field_of_a_commitment_that_is_wrong_is_named(
        self, cloud: LiquidClient, change: dict[str, Any], field: str, part: str
    ) -> None:
        wrong = batch(B, 1, project="beta")
        wrong["byProject"]["beta"]["byResource"][RAM]["commitments"][0] |= change
        body = {"batch": wrong}
        if part != "batch":
            body = {"batch": batch(A, 1), "edit": {"commitments_added": wrong}}
        problem = ask(body).json()
        assert problem["status"] == 400
        assert problem["field"] == f"{part}.byProject.beta.byResource.{RAM}.commitments[0].{field}"
        assert problem["detail"].startswith(f"{problem['field']}: ")

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({}, "batch.az"),
            ({"batch": {"az": "az-a", "byProject": []}}, "batch.byProject"),
            (
                {"batch": batch(A, 1, resource="bogus")},
                "batch.byProject.alpha.byResource.bogus",
            ),
            (
                {"batch": batch(A, 1, resource="hw_version_no_ram")},
                "batch.byProject.alpha.byResource.hw_version_no_ram",
            ),
            ({"batch": batch(A, 1), "at": "2001-01-01T00:00:00Z"}, "at"),
            (
                {"batch": batch(A, 1), "edit": {"hosts_failed": ["h1", "h9"]}},
                "edit.hosts_failed[1]",
            ),
            (
                {"batch": batch(A, 1), "edit": {"hosts_added": [{"like": "h9"}]}},
                "edit.hosts_added[0].like",
            ),
            (
                {"batch": batch(A, 1), "edit": {"commitments_expired": [B]}},
                "edit.commitments_expired[0]",
            ),
            (
                {"batch": batch(A, 1), "edit": {"commitments_added": batch(A, 1)}},
                f"edit.commitments_added.byProject.alpha.byResource.{RAM}.commitments[0].uuid",
            ),
        ],
    )
    def test_every_part_of_the_question_that_is_wrong_is_named(
        self, cloud: LiquidClient, body: dict[str, Any], field: str
    ) -> None:
        problem = ask(body).json()
        assert (problem["status"], problem["field"]) == (400, field)
        assert problem["detail"].startswith(f"{field}: ")

    @pytest.mark.parametrize(
        ("token", "status"),
        [(ADMIN, 200), (VIEWER, 200), (MEMBER, 403), ("nobody-knows-this-one", 401)],
    )
    def test_who_may_ask(self, cloud: LiquidClient, token: str, status: int) -> None:
        assert ask({"batch": batch(A, 1)}, token=token).status_code == status

    def test_only_posts_are_answered(self, cloud: LiquidClient) -> None:
        assert ask({}, method="GET").status_code == 405


words = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.floats(allow_nan=False)
)
json_values = st.recursive(
    words,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    edit=st.dictionaries(
        st.sampled_from(
            [
                "hosts_added",
                "hosts_drained",
                "hosts_failed",
                "commitments_added",
                "commitments_expired",
            ]
        ),
        json_values,
    ),
    at=json_values,
    zone=st.sampled_from(["az-a", "az-b", "", "any"]),
    units=st.sampled_from([0, 1, 21, 10**9, 2**70]),
)
@few(20)
def test_no_question_breaks_the_server(
    cloud: LiquidClient, edit: dict[str, Any], at: Any, zone: str, units: int
) -> None:
    response = ask({"batch": batch(A, units, zone=zone), "edit": edit, "at": at})
    assert response.status_code in {200, 400}, response.content


def test_planned_hosts_are_part_of_the_timeline(cloud: LiquidClient) -> None:
    PlannedHostChange.objects.create(
        edit="add", at="2097-06-01T00:00:00Z", host=Host.objects.get(name="h1"), host_count=3
    )
    document = answer({"batch": batch(A, 45)})
    assert document["retry_at"] == "2097-06-01T00:00:00Z"
