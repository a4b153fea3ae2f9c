from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from prometheus_client import REGISTRY

from commitments.api.parsing import parse_change_request
from commitments.domain.changeset import (
    ChangeRequest,
    CommitmentChange,
    ProjectChanges,
    ResourceChangeset,
)
from commitments.domain.statuses import CommitmentStatus
from commitments.models import Commitment
from commitments.services.change import ChangeOutcome
from journal.actors import Actor
from journal.errors import Busy, InvalidInput
from tests.api.conftest import Configure
from tests.api.liquid_client import PROJECT, LiquidClient, assert_text
from tests.factories import make_group, make_group_capacity, make_host

pytestmark = pytest.mark.django_db

RAM = "hw_version_hana_1_ram"
UUID = "6a1d3c52-0d1c-4a7a-9d7e-1a2b3c4d5e6f"
EXPIRES_AT = "2099-03-01T12:00:00Z"


def body(version: int = 1, *, is_dry_run: bool = False, **commitment: Any) -> dict[str, Any]:
    changed = {
        "uuid": UUID,
        "oldStatus": None,
        "newStatus": "confirmed",
        "amount": 4,
        "expiresAt": EXPIRES_AT,
        **commitment,
    }
    changeset = {
        "totalConfirmedBefore": 10,
        "totalConfirmedAfter": 14,
        "totalGuaranteedBefore": 0,
        "totalGuaranteedAfter": 0,
        "commitments": [changed],
    }
    return {
        "az": "az-a",
        "dryRun": is_dry_run,
        "infoVersion": version,
        "byProject": {PROJECT: {"byResource": {RAM: changeset}}},
    }


class RecordingService:
    """Stands in for the change service and answers what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[ChangeRequest, Actor, str]] = []
        self.answer: ChangeOutcome | Exception = ChangeOutcome()

    def __call__(self, request: ChangeRequest, *, actor: Actor, request_id: str) -> ChangeOutcome:
        self.calls.append((request, actor, request_id))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> RecordingService:
    recorder = RecordingService()
    monkeypatch.setattr("commitments.api.views.change_commitments", recorder)
    return recorder


def counted(name: str, **labels: str) -> float:
    full = f"cortex_committed_resource_change_api_{name}_total"
    return REGISTRY.get_sample_value(full, labels) or 0.0


def test_service_gets_the_request_the_actor_and_the_request_id(
    liquid: LiquidClient, service: RecordingService
) -> None:
    request = body(7, confirmBy="2026-03-01T12:00:00.123456789+02:00")
    request["byProject"][PROJECT]["projectMetadata"] = {"domain": {"uuid": "d1"}}
    response = liquid.send("POST", liquid.change, request, X_Request_ID="abc")
    assert (response.status_code, response.json()) == (200, {})
    ((asked, actor, request_id),) = service.calls
    assert (actor.name, request_id) == ("limes", "abc")
    assert asked == ChangeRequest(
        zone="az-a",
        info_version=7,
        by_project={
            PROJECT: ProjectChanges(
                domain_id="d1",
                by_resource={
                    RAM: ResourceChangeset(
                        total_confirmed_before=10,
                        total_confirmed_after=14,
                        commitments=(
                            CommitmentChange(
                                uuid=UUID,
                                old_status=None,
                                new_status=CommitmentStatus.CONFIRMED,
                                amount_units=4,
                                expires_at=datetime(2099, 3, 1, 12, tzinfo=UTC),
                                confirm_by=datetime(2026, 3, 1, 10, 0, 0, 123456, tzinfo=UTC),
                            ),
                        ),
                    )
                },
            )
        },
    )


def test_rejection_is_200_with_reason_and_retry_time_in_whole_seconds(
    liquid: LiquidClient, service: RecordingService
) -> None:
    service.answer = ChangeOutcome(
        rejection_reason="1 commitment(s) failed to apply:\n- commitment x: no",
        retry_at=datetime(2026, 3, 1, 14, 15, 0, 999999, tzinfo=timezone(timedelta(hours=2))),
    )
    response = liquid.send("POST", liquid.change, body())
    assert response.status_code == 200
    assert response["Content-Type"] == "application/json"
    assert response.json() == {
        "rejectionReason": "1 commitment(s) failed to apply:\n- commitment x: no",
        "retryAt": "2026-03-01T12:15:00Z",
    }


def test_unknown_retry_time_is_left_out(liquid: LiquidClient, service: RecordingService) -> None:
    service.answer = ChangeOutcome(rejection_reason="no")
    assert liquid.send("POST", liquid.change, body()).json() == {"rejectionReason": "no"}


def test_structural_problem_of_a_non_confirming_request_is_422(
    liquid: LiquidClient, service: RecordingService
) -> None:
    service.answer = ChangeOutcome(rejection_reason="flavor group not found: x", status=422)
    assert_text(liquid.send("POST", liquid.change, body()), 422, "flavor group not found: x")


def test_busy_is_503_with_retry_after(liquid: LiquidClient, service: RecordingService) -> None:
    service.answer = Busy("zone az-a is being changed", retry_after_seconds=3)
    response = liquid.send("POST", liquid.change, body())
    assert_text(response, 503, "az-a")
    assert response["Retry-After"] == "3"


def test_contradiction_is_400_on_one_line(liquid: LiquidClient, service: RecordingService) -> None:
    service.answer = InvalidInput("commitment x:\nbad\x07")
    assert_text(liquid.send("POST", liquid.change, body()), 400, "commitment x: bad")


PREFIX = f"byProject.{PROJECT}.byResource.{RAM}.commitments[0]"
BAD_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "amount 2^63": ({"amount": 2**63}, f"{PREFIX}.amount"),
    "amount 2^64": ({"amount": 2**64}, f"{PREFIX}.amount"),
    "amount 1e30": ({"amount": 1e30}, f"{PREFIX}.amount"),
    "negative amount": ({"amount": -1}, f"{PREFIX}.amount"),
    "fraction": ({"amount": 1.5}, f"{PREFIX}.amount"),
    "integral float": ({"amount": 4.0}, f"{PREFIX}.amount"),
    "boolean amount": ({"amount": True}, f"{PREFIX}.amount"),
    "text amount": ({"amount": "4"}, f"{PREFIX}.amount"),
    "amount object": ({"amount": {}}, f"{PREFIX}.amount"),
    "uuid number": ({"uuid": 7}, f"{PREFIX}.uuid"),
    "uuid with NUL": ({"uuid": "abc\x00def"}, f"{PREFIX}.uuid"),
    "unknown status": ({"newStatus": "Confirmed"}, f"{PREFIX}.newStatus"),
    "empty status": ({"oldStatus": ""}, f"{PREFIX}.oldStatus"),
    "status number": ({"oldStatus": 1}, f"{PREFIX}.oldStatus"),
    "time number": ({"expiresAt": 1793000000}, f"{PREFIX}.expiresAt"),
    "time without zone": ({"expiresAt": "2026-03-01T12:00:00"}, f"{PREFIX}.expiresAt"),
    "date": ({"confirmBy": "2026-03-01"}, f"{PREFIX}.confirmBy"),
    "empty time": ({"oldExpiresAt": ""}, f"{PREFIX}.oldExpiresAt"),
    "year 0": ({"expiresAt": "0000-01-01T00:00:00Z"}, f"{PREFIX}.expiresAt"),
    "year 10000": ({"expiresAt": "10000-01-01T00:00:00Z"}, f"{PREFIX}.expiresAt"),
    "before year 1 in UTC": ({"expiresAt": "0001-01-01T00:00:00+01:00"}, f"{PREFIX}.expiresAt"),
    "after year 9999 in UTC": ({"expiresAt": "9999-12-31T23:59:59-01:00"}, f"{PREFIX}.expiresAt"),
    "30 February": ({"expiresAt": "2026-02-30T00:00:00Z"}, f"{PREFIX}.expiresAt"),
    "leap second": ({"expiresAt": "2026-12-31T23:59:60Z"}, f"{PREFIX}.expiresAt"),
    "Arabic digits": ({"expiresAt": "٢٠٢٦-03-01T12:00:00Z"}, f"{PREFIX}.expiresAt"),
}


@pytest.mark.parametrize(("commitment", "field"), BAD_FIELDS.values(), ids=list(BAD_FIELDS))
def test_bad_field_of_a_commitment_is_400_and_named(
    liquid: LiquidClient, service: RecordingService, commitment: dict[str, Any], field: str
) -> None:
    assert_text(liquid.send("POST", liquid.change, body(**commitment)), 400, field)
    assert service.calls == []


BAD_REQUESTS: dict[str, dict[str, Any]] = {
    "long zone": {"az": "z" * 256},
    "zone with NUL": {"az": "a\x00"},
    "zone number": {"az": 7},
    "dryRun text": {"az": "a", "dryRun": "false"},
    "infoVersion text": {"az": "a", "infoVersion": "1"},
    "infoVersion too low": {"az": "a", "infoVersion": -(2**63) - 1},
    "byProject list": {"az": "a", "byProject": []},
    "project list": {"az": "a", "byProject": {"p": []}},
    "empty project id": {"az": "a", "byProject": {"": {}}},
    "long project id": {"az": "a", "byProject": {"p" * 65: {}}},
    "project id with NUL": {"az": "a", "byProject": {"p\x00": {}}},
    "long resource name": {"az": "a", "byProject": {"p": {"byResource": {"r" * 256: {}}}}},
    "commitments object": {
        "az": "a",
        "byProject": {"p": {"byResource": {"r": {"commitments": {}}}}},
    },
    "commitment null list": {
        "az": "a",
        "byProject": {"p": {"byResource": {"r": {"commitments": [[]]}}}},
    },
    "negative total": {
        "az": "a",
        "byProject": {"p": {"byResource": {"r": {"totalConfirmedAfter": -1}}}},
    },
    "metadata text": {"az": "a", "byProject": {"p": {"projectMetadata": "x"}}},
    "long domain": {
        "az": "a",
        "byProject": {"p": {"projectMetadata": {"domain": {"uuid": "d" * 65}}}},
    },
}


@pytest.mark.parametrize("request_body", BAD_REQUESTS.values(), ids=list(BAD_REQUESTS))
def test_bad_request_is_400(
    liquid: LiquidClient, service: RecordingService, request_body: dict[str, Any]
) -> None:
    assert_text(liquid.send("POST", liquid.change, request_body), 400)
    assert service.calls == []


def test_null_and_missing_fields_are_zero_values() -> None:
    asked = parse_change_request(
        b'{"az": "a", "dryRun": null, "infoVersion": null, "byProject": {"p": {"byResource":'
        b' {"r": {"commitments": [{}, null]}, "s": null, "t": {"commitments": null}}}, "q": null}}'
    )
    empty = CommitmentChange(uuid="", old_status=None, new_status=None, amount_units=0)
    assert asked == ChangeRequest(
        zone="a",
        by_project={
            "p": ProjectChanges(
                by_resource={
                    "r": ResourceChangeset(commitments=(empty, empty)),
                    "s": ResourceChangeset(),
                    "t": ResourceChangeset(),
                }
            ),
            "q": ProjectChanges(),
        },
    )


def test_go_zero_time_is_unset() -> None:
    asked = parse_change_request(
        b'{"az": "a", "byProject": {"p": {"byResource": {"r": {"commitments":'
        b' [{"expiresAt": "0001-01-01T00:00:00Z"}]}}}}}'
    )
    (entry,) = asked.entries()
    assert entry.change.expires_at is None


def test_of_a_repeated_key_the_last_one_counts() -> None:
    assert parse_change_request(b'{"az": "a", "az": "b"}').zone == "b"


def test_accepted_rejected_and_failed_requests_are_counted_with_their_commitments(
    liquid: LiquidClient, service: RecordingService
) -> None:
    outcomes: list[tuple[ChangeOutcome | Exception, str, str]] = [
        (ChangeOutcome(), "200", "accepted"),
        (ChangeOutcome(rejection_reason="no"), "200", "rejected"),
        (ChangeOutcome(rejection_reason="no", status=422), "422", "error"),
        (InvalidInput("bad"), "400", "error"),
    ]
    for answer, code, result in outcomes:
        labels = {"dry_run": "true", "result": result}
        requests = counted("requests", status_code=code, **labels)
        changes = counted("commitment_changes", az="az-a", **labels)
        service.answer = answer
        liquid.send("POST", liquid.change, body(is_dry_run=True))
        assert counted("requests", status_code=code, **labels) == requests + 1
        assert counted("commitment_changes", az="az-a", **labels) == changes + 1


def test_timeout_is_counted(liquid: LiquidClient, service: RecordingService) -> None:
    before = counted("timeouts", dry_run="false")
    service.answer = ChangeOutcome(rejection_reason="timeout reached", is_timeout=True)
    liquid.send("POST", liquid.change, body())
    assert counted("timeouts", dry_run="false") == before + 1


def test_unreadable_request_counts_as_no_dry_run_without_zone(liquid: LiquidClient) -> None:
    labels = {"dry_run": "false", "result": "error"}
    before = counted("requests", status_code="400", **labels)
    liquid.send("POST", liquid.change, b"{")
    assert counted("requests", status_code="400", **labels) == before + 1


class TestWholePath:
    """The real service behind the real endpoint."""

    @pytest.fixture(autouse=True)
    def cloud(self) -> None:
        make_group(flavors=[("small", 1024, 4)])
        make_host("h1", memory_gib=10, vcpus=40)
        make_group_capacity(total_vcpus=40)

    def test_commitment_is_accepted_and_its_slots_are_placed(self, liquid: LiquidClient) -> None:
        version = liquid.get_info()["version"]
        response = liquid.send("POST", liquid.change, body(version))
        assert (response.status_code, response.json()) == (200, {})
        assert Commitment.objects.get().slots.count() == 4

    def test_too_large_commitment_is_rejected_with_numbers_and_leaves_nothing(
        self, liquid: LiquidClient
    ) -> None:
        version = liquid.get_info()["version"]
        response = liquid.send("POST", liquid.change, body(version, amount=11))
        assert response.status_code == 200
        assert "insufficient capacity: 10/11" in response.json()["rejectionReason"]
        assert response.json()["retryAt"].endswith("Z")
        assert not Commitment.objects.exists()

    def test_request_that_is_never_decided_counts_as_a_timeout(
        self, liquid: LiquidClient, configure: Configure
    ) -> None:
        """Spec liquid, 11.9: timeout 0: a reason, no row, the counter one higher."""
        version = liquid.get_info()["version"]
        configure(liquid={"change_timeout_seconds": 0})
        for is_dry_run, words in (
            (False, "timeout reached while processing commitment changes: "),
            (True, "dry run: timeout: "),
        ):
            label = str(is_dry_run).lower()
            before = counted("timeouts", dry_run=label)
            response = liquid.send("POST", liquid.change, body(version, is_dry_run=is_dry_run))
            assert response.status_code == 200
            assert response.json()["rejectionReason"].startswith(words)
            assert counted("timeouts", dry_run=label) == before + 1
        assert not Commitment.objects.exists()

    @pytest.mark.parametrize("new", ["planned", None])
    def test_request_that_limes_does_not_ask_to_confirm_is_never_timed_out(
        self, liquid: LiquidClient, configure: Configure, new: str | None
    ) -> None:
        version = liquid.get_info()["version"]
        configure(liquid={"change_timeout_seconds": 0})
        asked = body(version, newStatus=new, oldStatus=None if new else "planned")
        changeset = asked["byProject"][PROJECT]["byResource"][RAM]
        changeset["totalConfirmedAfter"] = changeset["totalConfirmedBefore"]
        response = liquid.send("POST", liquid.change, asked)
        assert (response.status_code, response.json()) == (200, {})

    def test_amount_beyond_every_ledger_is_no_server_error(self, liquid: LiquidClient) -> None:
        version = liquid.get_info()["version"]
        for is_dry_run in (False, True):
            request = body(version, amount=2**63 - 1, is_dry_run=is_dry_run)
            changeset = request["byProject"][PROJECT]["byResource"][RAM]
            changeset["totalConfirmedAfter"] = 2**63 - 1
            assert liquid.send("POST", liquid.change, request).status_code < 500
        assert not Commitment.objects.exists()
