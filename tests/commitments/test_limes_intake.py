from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.durations import parse_term
from commitments.domain.limes_intake import (
    Converted,
    LimesRecord,
    Skipped,
    StoredCommitment,
    is_terminal,
    limes_record_of,
    take_in,
)
from commitments.domain.state import LimesCommitment
from commitments.domain.statuses import CommitmentStatus, ResourceType
from scheduling.resources import GIB

NOW = datetime(2026, 11, 21, tzinfo=UTC)
UUID = "6a1d3c52-0d1c-4a7a-9d7e-1a2b3c4d5e6f"
KNOWN = {"test": 1024, "big": 8192}
COMMITMENT = LimesCommitment(
    uuid=UUID,
    project_id="p1",
    domain_id="d1",
    resource_name="hw_version_test_ram",
    zone="az-a",
    amount_units=5,
    status="confirmed",
    created_at=1_793_000_000,
    confirmed_at=1_793_000_060,
    expires_at=1_900_000_000,
)
RECORD = LimesRecord(limes_id=17, service_type="compute", unit="GiB", commitment=COMMITMENT)


def record(*, unit: str = "GiB", service_type: str = "compute", **changes: Any) -> LimesRecord:
    return replace(
        RECORD,
        unit=unit,
        service_type=service_type,
        commitment=replace(COMMITMENT, **changes),
    )


@pytest.mark.parametrize(
    ("given_record", "reason"),
    [
        pytest.param(record(service_type="volumev2"), "non_compute", id="1 service"),
        pytest.param(record(status=""), "unknown_status", id="2 no status"),
        pytest.param(record(status="Confirmed"), "unknown_status", id="2 status"),
        pytest.param(
            record(resource_name="hw_version_test_instances"), "invalid_resource_name", id="3 name"
        ),
        pytest.param(
            record(resource_name="hw_version_no_ram"), "unknown_flavor_group", id="4 group"
        ),
        pytest.param(record(unit="2048 MiB"), "unit_mismatch", id="5 unit"),
        pytest.param(record(unit="apples"), "unit_mismatch", id="5 no unit"),
        pytest.param(
            record(resource_name="hw_version_test_cores"), "unit_mismatch", id="5 cores in GiB"
        ),
        pytest.param(record(uuid=""), "empty_uuid", id="6 uuid"),
        pytest.param(record(uuid="x"), "invalid_commitment", id="7 uuid"),
        pytest.param(record(amount_units=2**60), "invalid_commitment", id="7 amount"),
        pytest.param(record(zone=""), "invalid_commitment", id="7 zone"),
        pytest.param(
            record(service_type="x", status="x", uuid=""), "non_compute", id="first check wins"
        ),
        pytest.param(record(uuid="", unit="TiB"), "unit_mismatch", id="unit before uuid"),
    ],
)
def test_a_commitment_is_skipped_with_the_first_reason(
    given_record: LimesRecord, reason: str
) -> None:
    outcome = take_in(given_record, KNOWN)
    assert isinstance(outcome, Skipped)
    assert (outcome.reason, outcome.uuid) == (reason, given_record.commitment.uuid)
    assert outcome.detail


@pytest.mark.parametrize(
    ("given_record", "resource_type", "amount"),
    [
        pytest.param(RECORD, ResourceType.MEMORY, 5 * GIB, id="unit 1 GiB"),
        pytest.param(
            record(resource_name="hw_version_big_ram", unit="8 GiB"),
            ResourceType.MEMORY,
            40 * GIB,
            id="unit 8 GiB",
        ),
        pytest.param(record(unit=""), ResourceType.MEMORY, 5 * GIB, id="no unit"),
        pytest.param(record(unit="1024 MiB"), ResourceType.MEMORY, 5 * GIB, id="same unit"),
        pytest.param(
            record(resource_name="hw_version_test_cores", unit=""),
            ResourceType.CORES,
            5,
            id="cores",
        ),
    ],
)
def test_a_commitment_is_converted(
    given_record: LimesRecord, resource_type: ResourceType, amount: int
) -> None:
    outcome = take_in(given_record, KNOWN)
    assert isinstance(outcome, Converted)
    assert outcome.state.resource_type is resource_type
    assert outcome.state.requested_amount == amount
    assert outcome.state.start_time == datetime.fromtimestamp(1_793_000_060, tz=UTC)


def test_the_service_type_is_a_setting() -> None:
    assert isinstance(take_in(RECORD, KNOWN, service_type="nova"), Skipped)


@pytest.mark.parametrize(
    ("status", "expires_at", "ended"),
    [
        ("confirmed", 1_900_000_000, False),
        ("planned", None, False),
        ("superseded", 1_900_000_000, True),
        ("expired", 1_900_000_000, True),
        ("confirmed", 1, True),
        ("confirmed", int(NOW.timestamp()), True),
        ("confirmed", int(NOW.timestamp()) + 1, False),
    ],
)
def test_terminal(status: str, expires_at: int | None, ended: bool) -> None:
    outcome = take_in(record(status=status, expires_at=expires_at), KNOWN)
    assert isinstance(outcome, Converted)
    assert is_terminal(outcome.state, NOW) is ended


def limes_record(fields: dict[str, Any]) -> LimesRecord:
    return LimesRecord(
        limes_id=fields.get("id"),
        service_type=fields["service_type"],
        unit=fields["unit"],
        commitment=LimesCommitment(
            uuid=fields["uuid"],
            project_id=fields["project_id"],
            domain_id=fields["domain_id"],
            resource_name=fields["resource_name"],
            zone=fields["availability_zone"],
            amount_units=fields["amount"],
            status=fields["status"],
            created_at=fields["created_at"],
            confirmed_at=fields.get("confirmed_at"),
            confirm_by=fields.get("confirm_by"),
            expires_at=fields["expires_at"],
        ),
    )


@given(
    amount=st.integers(0, 2**20),
    status=st.sampled_from(list(CommitmentStatus)),
    resource=st.sampled_from(["hw_version_big_ram", "hw_version_test_cores"]),
    days=st.integers(1, 5000),
)
def test_what_is_written_for_limes_reads_back_as_the_same_commitment(
    amount: int, status: CommitmentStatus, resource: str, days: int
) -> None:
    changed = record(
        amount_units=amount,
        status=status.value,
        resource_name=resource,
        unit="",
        expires_at=int((NOW + timedelta(days=days)).timestamp()),
    )
    outcome = take_in(changed, KNOWN)
    assert isinstance(outcome, Converted)
    stored = StoredCommitment(
        state=outcome.state, created_at=NOW, confirmed_at=outcome.state.start_time, limes_id=3
    )
    unit = KNOWN[outcome.state.flavor_group_name]
    written = limes_record_of(stored, None, unit)
    if "duration" in written:
        assert parse_term(written["duration"])
    again = take_in(limes_record(written), KNOWN)
    assert isinstance(again, Converted)
    assert again.state == outcome.state
    assert limes_record_of(replace(stored, record=written), again, unit) == written
