from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from commitments.domain.statuses import CommitmentStatus, ResourceType
from commitments.models import Commitment, Condition
from console.commitments.presentation import (
    change_lines,
    condition_tone,
    differences,
    term_text,
    why_text,
)
from scheduling.resources import GIB

NOW = datetime(2026, 11, 21, 11, 0, tzinfo=UTC)


def commitment(**fields: Any) -> Commitment:
    defaults = {
        "commitment_uuid": "abc123",
        "flavor_group_name": "hana_1",
        "zone": "az-a",
        "resource_type": ResourceType.MEMORY,
        "requested_amount": 16 * GIB,
        "state": CommitmentStatus.PENDING,
    }
    return Commitment(**{**defaults, **fields})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {"state": "confirmed", "ready_reason": Condition.ACCEPTED},
            "16 GiB of hana_1 in az-a is promised and held. It has no end.",
            id="accepted",
        ),
        pytest.param(
            {"ready_reason": Condition.RESERVING, "next_reconcile_at": NOW + timedelta(minutes=7)},
            "The next try is at 2026-11-21 11:07 UTC (in 7 min)",
            id="reserving",
        ),
        pytest.param(
            {"ready_reason": Condition.RESERVING, "next_reconcile_at": NOW},
            "due now",
            id="retry due",
        ),
        pytest.param(
            {"ready_reason": Condition.REJECTED}, "a new request from Limes", id="rejected"
        ),
        pytest.param({}, "waits for its first decision. No retry is scheduled.", id="undecided"),
        pytest.param(
            {"state": "planned", "confirm_by": NOW + timedelta(days=2)},
            "It is to start at 2026-11-23 11:00 UTC (in 2 d)",
            id="planned",
        ),
        pytest.param({"state": "superseded"}, "Another commitment took its place", id="superseded"),
        pytest.param({"state": "expired"}, "Its term ended.", id="expired"),
        pytest.param(
            {"state": "confirmed", "end_time": NOW - timedelta(minutes=1)},
            "Its term ended at 2026-11-21 10:59 UTC (1 min ago).",
            id="confirmed, ended a minute ago",
        ),
        pytest.param(
            {
                "state": "guaranteed",
                "resource_type": "cores",
                "requested_amount": 8,
                "ready_reason": Condition.ACCEPTED,
            },
            "8 vCPUs of hana_1",
            id="cores",
        ),
    ],
)
def test_a_state_is_explained_with_what_would_change_it(
    fields: dict[str, Any], expected: str
) -> None:
    assert expected in why_text(commitment(**fields), NOW)


@pytest.mark.parametrize("reason", Condition.values)
def test_every_condition_has_a_tone(reason: str) -> None:
    assert condition_tone(commitment(ready_reason=reason)) in {"ok", "warn", "bad", "idle"}


def test_a_change_shows_only_what_differs_with_units() -> None:
    before = {"amount": 8 * GIB, "availabilityZone": "az-a", "resourceType": "memory"}

    changed = differences(before, {**before, "amount": 16 * GIB})

    assert changed == (("amount", "8 GiB", "16 GiB"),)


def test_a_new_commitment_takes_one_line() -> None:
    after = {"amount": 4, "resourceType": "cores", "startTime": None, "allowRejection": False}

    assert change_lines(None, after) == ("amount 4 vCPUs, resource cores, may be rejected no",)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        pytest.param(None, "", id="never listed"),
        pytest.param({}, "", id="no term"),
        pytest.param({"duration": "1year"}, "1 year", id="no start"),
        pytest.param(
            {"duration": "1 year", "created_at": 1763722800, "confirmed_at": 1763722801},
            "1 year from its creation",
            id="from its creation",
        ),
        pytest.param(
            {"duration": "365 days", "created_at": 1, "confirmed_at": 1763722800},
            "365 days from its confirmation",
            id="from its confirmation",
        ),
        pytest.param(
            {"duration": "1 year", "created_at": 1763722800, "confirm_by": 1763722800},
            "1 year from when it is wanted",
            id="from when it is wanted",
        ),
        pytest.param({"duration": "2 years", "created_at": 1763722800}, "2 years", id="other end"),
        pytest.param({"duration": "9999 years", "created_at": 5}, "9999 years", id="endless"),
        pytest.param({"duration": "1 year", "created_at": 10**30}, "1 year", id="start is no time"),
        pytest.param({"duration": "1 year", "created_at": "x"}, "1 year", id="start is text"),
        pytest.param({"duration": "3 blobs"}, "'3 blobs', which is no duration", id="not a term"),
        pytest.param({"duration": 7}, "'7', which is no duration", id="a number"),
    ],
)
def test_term_is_told_with_where_it_begins(record: dict[str, Any] | None, text: str) -> None:
    assert term_text(record, NOW) == text
    if record and "duration" in record:
        assert term_text(record, None) == text.split(" from ", maxsplit=1)[0]
