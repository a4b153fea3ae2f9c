from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.summary import (
    BINARY_SUFFIXES,
    SummaryInput,
    quantity_text,
    remaining_text,
    status_summary,
)
from scheduling.resources import GIB

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
WAITING = "waiting for reservation placement"
NO_HOSTS = "no hosts ... (2/4 slots failed)"
BASE = SummaryInput(
    ready_reason="Accepted",
    ready_message="commitment successfully reserved",
    amount=2 * GIB,
    flavor_group_name="fg1",
    zone="az1",
    resource_type="memory",
    accepted_amount=2 * GIB,
    accepted_flavor_group_name="fg1",
    accepted_zone="az1",
    accepted_resource_type="memory",
    assigned_vm_count=3,
    end_time=None,
)
NEVER_ACCEPTED = replace(
    BASE,
    accepted_amount=None,
    accepted_flavor_group_name="",
    accepted_zone="",
    accepted_resource_type="",
    end_time=NOW + timedelta(hours=1),
)


@pytest.mark.parametrize(
    ("summary_input", "summary"),
    [
        pytest.param(
            replace(BASE, end_time=NOW + timedelta(hours=4, minutes=30)),
            "Accepted · 3 VMs · exp in 4h 30m",
            id="Accepted, 3 VMs, ends in 4h30m",
        ),
        pytest.param(
            replace(BASE, amount=5 * GIB, end_time=NOW + timedelta(days=3, hours=2)),
            "Accepted (amount 2Gi→5Gi) · 3 VMs · exp in 3d 2h",
            id="2Gi accepted, spec 5Gi",
        ),
        pytest.param(
            replace(BASE, flavor_group_name="fg2", zone="az2", assigned_vm_count=1),
            "Accepted (fg fg1→fg2; az az1→az2) · 1 VM · no expiry",
            id="fg1/az1 accepted, spec fg2/az2",
        ),
        pytest.param(
            replace(NEVER_ACCEPTED, ready_reason="Reserving", ready_message=WAITING),
            "Reserving · exp in 1h 0m",
            id="Reserving, waiting text",
        ),
        pytest.param(
            replace(NEVER_ACCEPTED, ready_reason="Reserving", ready_message=NO_HOSTS),
            "Reserving · no hosts ... (2/4 slots failed) · exp in 1h 0m",
            id="Reserving, no hosts",
        ),
        pytest.param(
            replace(NEVER_ACCEPTED, ready_reason="Rejected", ready_message=""),
            "Rejected",
            id="Rejected, no message",
        ),
        pytest.param(
            replace(BASE, assigned_vm_count=1, end_time=NOW),
            "Accepted · 1 VM · expired",
            id="Accepted, 1 VM, ended",
        ),
        pytest.param(
            replace(NEVER_ACCEPTED, ready_reason="Rejected", ready_message="x" * 80),
            "Rejected · " + "x" * 80,
            id="message of 80 characters stays",
        ),
        pytest.param(
            replace(NEVER_ACCEPTED, ready_reason="Rejected", ready_message="x" * 81),
            "Rejected · " + "x" * 77 + "...",
            id="message of 81 characters is cut",
        ),
        pytest.param(
            replace(BASE, amount=4, resource_type="cores", assigned_vm_count=0),
            "Accepted (amount 2Gi→4; type memory→cores) · 0 VMs · no expiry",
            id="type changed",
        ),
        pytest.param(
            replace(NEVER_ACCEPTED, ready_reason="Planned", ready_message="not yet active"),
            "Planned · exp in 1h 0m",
            id="Planned shows no message",
        ),
        pytest.param(
            replace(NEVER_ACCEPTED, ready_reason="expired", end_time=NOW - timedelta(days=1)),
            "expired · expired",
            id="released",
        ),
        pytest.param(replace(BASE, ready_reason=""), "", id="condition not set"),
    ],
)
def test_the_summary_tells_the_status(summary_input: SummaryInput, summary: str) -> None:
    assert status_summary(summary_input, NOW) == summary


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(seconds=18), "18s"),
        (timedelta(seconds=59), "59s"),
        (timedelta(seconds=60), "1m 0s"),
        (timedelta(minutes=23, seconds=5), "23m 5s"),
        (timedelta(minutes=59, seconds=59), "59m 59s"),
        (timedelta(minutes=60), "1h 0m"),
        (timedelta(hours=24), "1d 0h"),
        (timedelta(milliseconds=300), "0s"),
    ],
)
def test_a_duration_has_two_units(duration: timedelta, text: str) -> None:
    assert remaining_text(duration) == text


@pytest.mark.parametrize(
    ("amount", "resource_type", "text"),
    [
        (4294967296, "memory", "4Gi"),
        (1536 << 20, "memory", "1536Mi"),
        (1000, "memory", "1000"),
        (1024, "memory", "1Ki"),
        (0, "memory", "0"),
        (2 << 60, "memory", "2Ei"),
        (2048 << 60, "memory", "2048Ei"),
        (2048, "cores", "2048"),
    ],
)
def test_quantities_use_the_largest_exact_suffix(
    amount: int, resource_type: str, text: str
) -> None:
    assert quantity_text(amount, resource_type) == text


@given(st.integers(0, 2**63 - 1))
def test_a_memory_quantity_reads_back_exactly(amount: int) -> None:
    text = quantity_text(amount, "memory")
    digits = text.rstrip("KMGTPEi")
    assert int(digits) * 1024 ** BINARY_SUFFIXES.index(text[len(digits) :]) == amount
