from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from commitments.domain.limes_intake import Converted, LimesRecord, Skipped, take_in
from commitments.domain.limes_wire import V1, kept_record, read_record
from commitments.domain.state import CommitmentState
from commitments.domain.statuses import CommitmentStatus, ResourceType
from scheduling.resources import GIB
from tests.peers.fake_cloud import CONFIRMED_AT, limes_commitment

UUID = "6a1d3c52-0d1c-4a7a-9d7e-1a2b3c4d5e6f"
IDENTITY = {"project_id": "p1", "domain_id": "d1"}


def test_a_listed_commitment_is_read_with_the_project_that_was_asked_about() -> None:
    record = read_record(limes_commitment(UUID, confirm_by=5), **IDENTITY)
    assert isinstance(record, LimesRecord)
    assert (record.limes_id, record.service_type, record.unit) == (17, "compute", "GiB")
    commitment = record.commitment
    assert (commitment.uuid, commitment.project_id, commitment.domain_id) == (UUID, "p1", "d1")
    assert (commitment.amount_units, commitment.zone, commitment.status) == (2, "az-a", "confirmed")
    assert (commitment.confirmed_at, commitment.confirm_by) == (CONFIRMED_AT, 5)


def test_the_example_of_the_specification_is_taken_in() -> None:
    """Spec liquid, 15.2 and 15.3: start is ``confirmed_at``, memory amount x declared unit."""
    raw = {
        "id": 17,
        "uuid": UUID,
        "service_type": "compute",
        "resource_name": "hw_version_hana_fixed_ram",
        "availability_zone": "az-a",
        "amount": 4,
        "unit": "16 GiB",
        "duration": "1 year",
        "created_at": 1772366400,
        "confirmed_at": 1772366400,
        "expires_at": 1803902400,
        "status": "confirmed",
    }
    record = read_record(raw, **IDENTITY)
    assert isinstance(record, LimesRecord)
    converted = take_in(record, {"hana_fixed": 16384})
    assert isinstance(converted, Converted)
    assert converted.limes_id == 17
    assert converted.state == CommitmentState(
        commitment_uuid=UUID,
        project_id="p1",
        domain_id="d1",
        flavor_group_name="hana_fixed",
        zone="az-a",
        resource_type=ResourceType.MEMORY,
        requested_amount=64 * GIB,
        status=CommitmentStatus.CONFIRMED,
        start_time=datetime(2026, 3, 1, 12, tzinfo=UTC),
        end_time=datetime(2027, 3, 1, 12, tzinfo=UTC),
    )


@pytest.mark.parametrize(
    ("fields", "start", "end"),
    [
        pytest.param({}, 60, 900, id="confirmed_at, expires_at"),
        pytest.param({"confirmed_at": None}, 30, 900, id="created_at when never confirmed"),
        pytest.param({"confirmed_at": 0}, 30, 900, id="created_at when confirmed_at is 0"),
        pytest.param({"expires_at": 0}, 60, None, id="no end when expires_at is 0"),
    ],
)
def test_start_and_end_of_a_listed_commitment(
    fields: dict[str, Any], start: int, end: int | None
) -> None:
    times = {"created_at": 30, "confirmed_at": 60, "expires_at": 900}
    raw = limes_commitment(UUID, resource_name="hw_version_g_ram", **(times | fields))
    record = read_record(raw, **IDENTITY)
    assert isinstance(record, LimesRecord)
    converted = take_in(record, {"g": 1024})
    assert isinstance(converted, Converted)
    wanted = datetime.fromtimestamp(end, tz=UTC) if end else None
    assert converted.state.start_time == datetime.fromtimestamp(start, tz=UTC)
    assert converted.state.end_time == wanted


def test_what_limes_may_leave_out_may_be_missing() -> None:
    raw = limes_commitment(UUID)
    for key in ("unit", "confirmed_at", "id", "status"):
        del raw[key]
    record = read_record(raw, **IDENTITY)
    assert isinstance(record, LimesRecord)
    assert (record.limes_id, record.unit, record.commitment.confirmed_at) == (None, "", None)
    assert record.commitment.status == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"amount": -1},
        {"amount": 1.5},
        {"amount": True},
        {"amount": "2"},
        {"amount": 2**64},
        {"amount": None},
        {"id": -1},
        {"id": 2**63},
        {"status": 7},
        {"availability_zone": "a" * 256},
        {"availability_zone": "a\x00"},
        {"resource_name": ["x"]},
        {"expires_at": "tomorrow"},
        {"expires_at": 10**18},
        {"confirm_by": -5},
    ],
)
def test_a_malformed_commitment_is_skipped_and_its_uuid_is_known(fields: dict[str, Any]) -> None:
    outcome = read_record(limes_commitment(UUID, **fields), **IDENTITY)
    assert isinstance(outcome, Skipped)
    assert (outcome.uuid, outcome.reason) == (UUID, "invalid_commitment")
    assert outcome.detail.startswith(next(iter(fields)))


@pytest.mark.parametrize("uuid", [7, None, ["x"]])
def test_a_uuid_that_is_no_text_is_not_known(uuid: Any) -> None:
    raw = limes_commitment(UUID, uuid=uuid)
    outcome = read_record(raw, **IDENTITY)
    known = outcome.uuid if isinstance(outcome, Skipped) else outcome.commitment.uuid
    assert known == ""


def test_what_is_kept_is_everything_but_secrets() -> None:
    raw = limes_commitment(UUID, transfer_status="public", transfer_token="secret", new_field=1)
    kept = kept_record(raw, **IDENTITY)
    assert "transfer_token" not in kept
    del raw["transfer_token"]
    assert kept == raw | IDENTITY


@pytest.mark.parametrize("duration", ["3 blobs", "", 7, None, ["x"]])
def test_a_term_that_is_not_understood_decides_nothing(duration: Any) -> None:
    """Limes sends the end besides; spec liquid, 15.3 knows no such reason to skip."""
    assert isinstance(
        read_record(limes_commitment(UUID, duration=duration), **IDENTITY), LimesRecord
    )


def test_version_one_lists_commitments_below_domain_and_project() -> None:
    assert (V1.catalog_type, V1.version) == ("resources", "v1")
    assert V1.commitments_path(**IDENTITY) == "domains/d1/projects/p1/commitments"
    assert V1.listed({"commitments": [{"id": 1}]}) == [{"id": 1}]
    documents: list[Any] = [{}, [], {"commitments": None}, {"commitments": [7]}, "x"]
    for document in documents:
        assert V1.listed(document) is None
