"""Leases of agents (spec hosts, D.3, D.9)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hosts.domain.liveness import (
    AgentLease,
    Beat,
    Liveness,
    Periods,
    RunSupersededError,
    after_beat,
    is_believable,
)
from tests.domain.hosts.silence import after_silence

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PERIODS = Periods(lease=timedelta(seconds=30), down_after=timedelta(seconds=90))
BEAT = Beat(run_id="a", boot_id="b", is_resynced=True)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def beaten(
    lease: AgentLease, seconds: float, beat: Beat = BEAT, *, has_reported: bool = True
) -> AgentLease:
    return after_beat(lease, beat, now=at(seconds), has_reported=has_reported, periods=PERIODS)


def looked(lease: AgentLease, first: int, last: int) -> AgentLease:
    """Return a lease after a look every 5 s."""
    for seconds in range(first, last + 1, 5):
        lease = after_silence(lease, now=at(seconds), periods=PERIODS)
    return lease


def new() -> AgentLease:
    return AgentLease(liveness=Liveness.ENROLLED, since=START)


def test_the_specifications_timeline() -> None:
    lease = beaten(new(), 0)
    assert (lease.liveness, lease.expires_at) == (Liveness.UP, at(30))
    assert looked(lease, 1, 29).liveness == Liveness.UP
    lease = looked(lease, 31, 36)
    assert (lease.liveness, lease.since) == (Liveness.SUSPECT, at(31))
    lease = beaten(lease, 40)
    assert (lease.liveness, lease.since) == (Liveness.UP, at(40))
    lease = looked(lease, 41, 66)
    assert lease.liveness == Liveness.UP
    lease = looked(lease, 71, 156)
    assert (lease.liveness, lease.since) == (Liveness.SUSPECT, at(71))
    lease = looked(lease, 161, 161)
    assert (lease.liveness, lease.since) == (Liveness.DOWN, at(161))
    assert beaten(lease, 170, Beat(run_id="a")).liveness == Liveness.DOWN
    assert beaten(lease, 176).liveness == Liveness.UP


def test_an_agent_is_up_with_its_first_report() -> None:
    lease = beaten(new(), 0, has_reported=False)
    assert (lease.liveness, lease.expires_at) == (Liveness.ENROLLED, at(30))

    assert looked(lease, 5, 500) == lease
    assert beaten(lease, 600).liveness == Liveness.UP


def test_after_an_outage_of_ours_agents_have_a_leases_time_to_come_back() -> None:
    lease = beaten(new(), 0)

    lease = looked(lease, 1000, 1025)
    assert lease.liveness == Liveness.SUSPECT
    assert looked(lease, 1030, 1030).liveness == Liveness.DOWN
    assert beaten(lease, 1029).liveness == Liveness.UP


@pytest.mark.parametrize(
    ("beat", "seconds", "is_taken"),
    [
        (Beat(run_id="a", boot_id="other"), 1, True),  # itself
        (Beat(run_id="z", boot_id="b"), 1, True),  # started anew under the same kernel
        (Beat(run_id="z", boot_id="other"), 29, False),  # a clone, while the lease runs
        (Beat(run_id="z", boot_id="other"), 30, True),  # after a reboot
        (Beat(run_id="z", boot_id=""), 1, False),
        (Beat(run_id="z", boot_id="other", takes_over=True), 1, True),
    ],
)
def test_one_run_has_the_lease(beat: Beat, seconds: int, *, is_taken: bool) -> None:
    lease = beaten(new(), 0)

    if is_taken:
        assert beaten(lease, seconds, beat).run_id == beat.run_id
    else:
        with pytest.raises(RunSupersededError):
            beaten(lease, seconds, beat)


def test_two_runs_without_a_known_kernel_are_two() -> None:
    lease = beaten(new(), 0, Beat(run_id="a"))

    with pytest.raises(RunSupersededError):
        beaten(lease, 1, Beat(run_id="z"))


@pytest.mark.parametrize(
    ("silent", "known", "is_believed"),
    [(0, 0, True), (1, 1, True), (2, 2, True), (3, 3, False), (3, 6, True), (4, 7, False)],
)
def test_the_silence_of_most_is_not_believed(silent: int, known: int, *, is_believed: bool) -> None:
    assert is_believable(silent=silent, known=known, share=0.5) == is_believed
