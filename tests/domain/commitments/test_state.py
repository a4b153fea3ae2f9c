from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from commitments.domain.changeset import CommitmentChange
from commitments.domain.names import InvalidResourceName
from commitments.domain.state import (
    CommitmentFormatError,
    CommitmentRecord,
    CommitmentState,
    LimesCommitment,
    from_change_commitment_target_state,
    from_commitment,
    from_committed_resource,
)
from commitments.domain.statuses import CommitmentStatus, ResourceType
from scheduling.resources import GIB

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PAST = NOW - timedelta(minutes=1)
S = CommitmentStatus

LIMES = LimesCommitment(
    uuid="550e8400-e29b-41d4-a716-446655440000",
    project_id="p",
    domain_id="d",
    resource_name="hw_version_hana_1_ram",
    zone="az-a",
    amount_units=5,
    status="confirmed",
    created_at=1000,
    confirmed_at=2000,
    confirm_by=3000,
    expires_at=4000,
)


def change(
    status: CommitmentStatus | None,
    amount_units: int,
    *,
    expires_at: datetime | None = None,
    confirm_by: datetime | None = None,
    uuid: str = "abc123",
) -> CommitmentChange:
    return CommitmentChange(
        uuid=uuid,
        old_status=S.CONFIRMED,
        new_status=status,
        amount_units=amount_units,
        expires_at=expires_at,
        confirm_by=confirm_by,
    )


def target(
    given_change: CommitmentChange,
    *,
    unit_mib: int = 1024,
    kind: ResourceType = ResourceType.MEMORY,
) -> CommitmentState:
    return from_change_commitment_target_state(
        given_change,
        project_id="p",
        domain_id="d",
        flavor_group_name="hana_1",
        resource_type=kind,
        zone="az-a",
        ram_unit_mib=unit_mib,
        now=NOW,
    )


@pytest.mark.parametrize(
    ("status", "expected"),
    [(s, s in (S.CONFIRMED, S.GUARANTEED)) for s in S],
)
def test_only_guaranteed_and_confirmed_are_active(status: CommitmentStatus, expected: bool) -> None:
    assert status.is_active == expected


@pytest.mark.parametrize(("unit_mib", "gib"), [(1024, 5), (8192, 40)])
def test_a_limes_commitment_converts_with_its_groups_unit(unit_mib: int, gib: int) -> None:
    state = from_commitment(LIMES, unit_mib)

    assert state.requested_amount == gib * GIB
    assert state.resource_type is ResourceType.MEMORY
    assert state.flavor_group_name == "hana_1"
    assert (state.project_id, state.domain_id, state.zone) == ("p", "d", "az-a")
    assert state.status is S.CONFIRMED


def test_a_limes_cores_commitment_converts_to_cores() -> None:
    state = from_commitment(replace(LIMES, resource_name="hw_version_hana_1_cores"), 8192)

    assert state.resource_type is ResourceType.CORES
    assert state.requested_amount == 5


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        pytest.param({}, 2000, id="confirmed_at"),
        pytest.param({"confirmed_at": None}, 1000, id="created_at"),
        pytest.param({"confirmed_at": 0}, 1000, id="confirmed_at zero"),
        pytest.param({"status": "guaranteed", "confirmed_at": None}, 3000, id="guaranteed"),
        pytest.param(
            {"status": "guaranteed", "confirmed_at": None, "confirm_by": None},
            1000,
            id="guaranteed without confirm_by",
        ),
        pytest.param({"status": "planned", "confirmed_at": None}, 1000, id="planned"),
    ],
)
def test_the_start_of_a_limes_commitment(changes: dict[str, object], start: int) -> None:
    state = from_commitment(replace(LIMES, **changes), 1024)  # type: ignore[arg-type]

    assert state.start_time == datetime.fromtimestamp(start, tz=UTC)


@pytest.mark.parametrize(
    ("expires_at", "end"), [(4000, datetime.fromtimestamp(4000, tz=UTC)), (0, None), (None, None)]
)
def test_the_end_of_a_limes_commitment(expires_at: int | None, end: datetime | None) -> None:
    assert from_commitment(replace(LIMES, expires_at=expires_at), 1024).end_time == end


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"uuid": "x"}, "unexpected commitment format"),
        ({"status": "gone"}, "unknown status"),
        ({"amount_units": -1}, "out of range"),
        ({"amount_units": 1 << 60}, "out of range"),
        ({"resource_name": "hw_version_x_cores", "amount_units": 1 << 63}, "out of range"),
        ({"expires_at": 1 << 62}, "time out of range"),
    ],
)
def test_a_malformed_limes_commitment_is_an_error(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CommitmentFormatError, match=message):
        from_commitment(replace(LIMES, **changes), 1024)  # type: ignore[arg-type]


def test_a_limes_commitment_of_another_resource_is_an_error() -> None:
    with pytest.raises(InvalidResourceName):
        from_commitment(replace(LIMES, resource_name="invalid_resource_name"), 1024)


def test_a_confirmed_change_without_start_begins_now() -> None:
    state = target(change(S.CONFIRMED, 3))

    assert state.effective_memory_bytes(NOW) == 3 * GIB
    assert state.start_time == NOW
    assert state.end_time is None


def test_a_change_with_a_wanted_start_begins_then() -> None:
    assert target(change(S.PENDING, 3, confirm_by=PAST)).start_time == PAST


def test_an_expired_change_claims_nothing_but_keeps_its_end() -> None:
    state = target(change(S.CONFIRMED, 3, expires_at=PAST))

    assert state.effective_memory_bytes(NOW) == 0
    assert state.requested_amount == 3 * GIB
    assert state.end_time == PAST


def test_a_planned_change_claims_nothing_and_has_no_start() -> None:
    state = target(change(S.PLANNED, 3))

    assert state.effective_memory_bytes(NOW) == 0
    assert state.requested_amount == 3 * GIB
    assert state.start_time is None


def test_a_cores_change_claims_cores_and_no_memory() -> None:
    state = target(change(S.CONFIRMED, 8), kind=ResourceType.CORES, unit_mib=8192)

    assert state.effective_cores(NOW) == 8
    assert state.effective_memory_bytes(NOW) == 0
    assert target(change(S.CONFIRMED, 8)).effective_cores(NOW) == 0


def test_a_change_with_a_malformed_uuid_is_an_error() -> None:
    with pytest.raises(CommitmentFormatError, match="unexpected commitment format"):
        target(change(S.CONFIRMED, 1, uuid="a" * 50))


@pytest.mark.parametrize(
    ("status", "amount_units", "expires_at", "unit_gib", "gib"),
    [
        pytest.param(S.CONFIRMED, 2, None, 1, 2, id="confirmed 2"),
        pytest.param(S.PENDING, 2, None, 1, 2, id="pending 2"),
        pytest.param(S.GUARANTEED, 2, NOW + timedelta(days=1), 1, 2, id="guaranteed 2"),
        pytest.param(S.PLANNED, 2, None, 1, 0, id="planned 2"),
        pytest.param(S.EXPIRED, 1, None, 1, 0, id="expired 1"),
        pytest.param(S.SUPERSEDED, 1, None, 1, 0, id="superseded 1"),
        pytest.param(None, 1, None, 1, 0, id="deleted"),
        pytest.param(S.CONFIRMED, 2, PAST, 1, 0, id="confirmed 2, ended a minute ago"),
        pytest.param(S.CONFIRMED, 2, NOW, 1, 0, id="confirmed 2, ends now"),
        pytest.param(S.CONFIRMED, 5, None, 8, 40, id="confirmed 5, unit 8 GiB"),
    ],
)
def test_the_effective_amount_follows_status_and_end(
    status: CommitmentStatus | None,
    amount_units: int,
    expires_at: datetime | None,
    unit_gib: int,
    gib: int,
) -> None:
    state = target(change(status, amount_units, expires_at=expires_at), unit_mib=unit_gib * 1024)

    assert state.effective_amount(NOW) == gib * GIB


RECORD = CommitmentRecord(
    commitment_uuid="abc123",
    project_id="p",
    domain_id="d",
    flavor_group_name="hana_1",
    zone="az-a",
    resource_type="cores",
    requested_amount=8,
    state="confirmed",
    start_time=PAST,
    end_time=None,
)


def test_a_stored_cores_commitment_converts_to_cores() -> None:
    state = from_committed_resource(RECORD)

    assert state.effective_cores(NOW) == 8
    assert state.effective_memory_bytes(NOW) == 0
    assert state.start_time == PAST
    assert (state.name_prefix, state.parent_generation, state.creator_request_id) == ("", 0, "")
    assert state.slot_prefix == "commitment-abc123-"
    assert replace(state, name_prefix="other-").slot_prefix == "other-"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resource_type": "disk"}, "unsupported resource type"),
        ({"state": "odd"}, "unknown status"),
        ({"commitment_uuid": "x"}, "unexpected commitment format"),
    ],
)
def test_a_malformed_stored_commitment_is_an_error(changes: dict[str, str], message: str) -> None:
    with pytest.raises(CommitmentFormatError, match=message):
        from_committed_resource(replace(RECORD, **changes))  # type: ignore[arg-type]
