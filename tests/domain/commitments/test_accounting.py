from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.accounting import (
    CoresDecision,
    RejectedCommitment,
    cores_decision,
    cores_headroom_message,
    dry_run_reason,
    dry_run_timeout_reason,
    rejection_reason,
    retry_at,
    retry_delay_seconds,
    slots_message,
    timeout_reason,
)
from commitments.domain.statuses import Cause, Ruling

NOW = datetime(2026, 3, 1, 12, 0, 0, 987_654, tzinfo=UTC)
ACCEPTED, RESERVING, REJECTED = (
    Ruling.ACCEPTED,
    Ruling.RESERVING,
    Ruling.REJECTED,
)
MINUTE = timedelta(minutes=1)
SHORT = "insufficient CPU cores: 8 available, 10 requested"
WAITING = "waiting for CPU capacity data"


def test_messages_carry_the_words_that_operators_match_on() -> None:
    assert slots_message(1, 4) == "insufficient capacity: 1/4 reservation slots could be placed"
    assert cores_headroom_message(6, 8) == "insufficient CPU cores: 6 available, 8 requested"


def test_a_rejection_lists_every_commitment_in_write_order() -> None:
    rejected = (
        RejectedCommitment(commitment_uuid="7c21", message=cores_headroom_message(6, 8)),
        RejectedCommitment(commitment_uuid="0b6f", message=slots_message(1, 4)),
    )
    assert rejection_reason(rejected) == (
        "2 commitment(s) failed to apply:"
        "\n- commitment 7c21: insufficient CPU cores: 6 available, 8 requested"
        "\n- commitment 0b6f: insufficient capacity: 1/4 reservation slots could be placed"
    )


def test_a_dry_run_lists_its_probes_by_name() -> None:
    rejected = [RejectedCommitment(commitment_uuid="dryrun-0b6f1234-0", message="no")]
    assert dry_run_reason(rejected) == "dry run: 1 probe(s) rejected:\n- dryrun-0b6f1234-0: no"


def test_nothing_rejected_gives_no_reason() -> None:
    assert rejection_reason(()) == ""
    assert dry_run_reason(()) == ""


def test_a_timeout_joins_its_details() -> None:
    assert timeout_reason(["a", "b"]) == (
        "timeout reached while processing commitment changes: a; b"
    )
    assert dry_run_timeout_reason(["a", "b"]) == "dry run: timeout: a; b"


@pytest.mark.parametrize(
    ("causes", "minutes"),
    [
        pytest.param(["capacity"], 15, id="insufficient capacity or cores"),
        pytest.param(["transient"], 1, id="timeout, lock wait, data not ready"),
        pytest.param(["structural"], None, id="structural, slot limit"),
        pytest.param(["transient", "capacity"], 15, id="several causes"),
        pytest.param(["structural", "transient"], 1, id="structural beside transient"),
        pytest.param([], None, id="no cause"),
    ],
)
def test_retry_time_is_the_latest_of_the_causes(causes: list[str], minutes: int | None) -> None:
    expected = (
        None if minutes is None else datetime(2026, 3, 1, 12, 0, tzinfo=UTC) + minutes * MINUTE
    )
    answer = retry_at(causes, now=NOW, after_capacity_seconds=900, after_transient_seconds=60)
    assert answer == expected


def test_retry_time_is_told_in_utc() -> None:
    local = NOW.astimezone(timezone(timedelta(hours=2)))
    answer = retry_at(
        {"transient"}, now=local, after_capacity_seconds=900, after_transient_seconds=60
    )
    assert answer is not None
    assert answer.isoformat() == "2026-03-01T12:01:00+00:00"


def test_an_unknown_cause_is_a_bug() -> None:
    with pytest.raises(ValueError, match="unknown causes of a rejection: weather"):
        retry_at({"weather"}, now=NOW, after_capacity_seconds=1, after_transient_seconds=1)


@pytest.mark.parametrize(
    ("elapsed_seconds", "delay_seconds"),
    [
        (0, 30),
        (15, 30),
        (45, 60),
        (90, 120),
        (3 * 60, 4 * 60),
        (6 * 60, 8 * 60),
        (12 * 60, 16 * 60),
        (20 * 60, 30 * 60),
        (60 * 60, 30 * 60),
        (29, 30),
        (30, 60),
    ],
)
def test_retry_delay_doubles_with_the_time_spent(elapsed_seconds: int, delay_seconds: int) -> None:
    delay = retry_delay_seconds(
        elapsed_seconds=elapsed_seconds, base_seconds=30, cap_seconds=30 * 60
    )
    assert delay == delay_seconds


def test_retry_delay_without_cap_stops_after_six_doublings() -> None:
    assert retry_delay_seconds(elapsed_seconds=10**6, base_seconds=30, cap_seconds=0) == 30 * 64


def test_retry_delay_with_base_zero_is_at_once() -> None:
    assert retry_delay_seconds(elapsed_seconds=500, base_seconds=0, cap_seconds=1800) == 0


@given(
    elapsed=st.integers(0, 10**6),
    more=st.integers(0, 10**6),
    base=st.integers(0, 600),
    cap=st.integers(0, 10**4),
)
def test_retry_delay_follows_the_loop_of_the_specification(
    elapsed: int, more: int, base: int, cap: int
) -> None:
    exponent, step = 0, base
    while elapsed >= step and exponent < 6:
        step *= 2
        exponent += 1
    expected = base * 2**exponent
    if cap:
        expected = min(expected, cap)
    delay = retry_delay_seconds(elapsed_seconds=elapsed, base_seconds=base, cap_seconds=cap)
    later = retry_delay_seconds(elapsed_seconds=elapsed + more, base_seconds=base, cap_seconds=cap)
    assert delay == expected
    assert later >= delay


@pytest.mark.parametrize(
    ("total", "held", "requested", "may_reject", "expected"),
    [
        pytest.param(16, 0, 4, True, (ACCEPTED, "", None, None), id="16-0-4 any"),
        pytest.param(16, 0, 4, False, (ACCEPTED, "", None, None), id="16-0-4 any, waiting"),
        pytest.param(16, 8, 8, True, (ACCEPTED, "", None, None), id="exact fit"),
        pytest.param(16, 8, 8, False, (ACCEPTED, "", None, None), id="exact fit, waiting"),
        pytest.param(16, 8, 10, True, (REJECTED, SHORT, "capacity", None), id="16-8-10 true"),
        pytest.param(16, 8, 10, False, (RESERVING, SHORT, "capacity", None), id="16-8-10 false"),
        pytest.param(
            None, 0, 4, False, (RESERVING, WAITING, "transient", None), id="missing, backoff"
        ),
        pytest.param(None, 0, 4, True, (RESERVING, WAITING, "transient", 1), id="missing, 1 s"),
        pytest.param(
            0,
            0,
            4,
            True,
            (REJECTED, "insufficient CPU cores: 0 available, 4 requested", "capacity", None),
            id="key present, 0",
        ),
    ],
)
def test_cores_are_decided_by_the_headroom(
    total: int | None,
    held: int,
    requested: int,
    may_reject: bool,
    expected: tuple[Ruling, str, Cause | None, int | None],
) -> None:
    outcome, message, cause, retry_seconds = expected
    assert cores_decision(total, held, requested, may_reject=may_reject) == CoresDecision(
        outcome=outcome, message=message, cause=cause, retry_seconds=retry_seconds
    )


def test_cores_rejected_for_this_generation_stay_rejected() -> None:
    decision = cores_decision(16, 0, 4, is_rejected_already=True)
    assert decision == CoresDecision(outcome=REJECTED)
