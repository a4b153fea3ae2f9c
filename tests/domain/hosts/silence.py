"""What a look at the clock makes of a lease, in plain words: the oracle of the sweep."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from hosts.domain.liveness import AgentLease, Liveness, Periods


def after_silence(lease: AgentLease, *, now: datetime, periods: Periods) -> AgentLease:
    """Return the lease after a look at the clock.

    A host is down no sooner than a lease's length after it became suspect: when nobody looked for
    long, such as after an outage of ours, agents have that time to come back.
    """
    if lease.expires_at is None or lease.expires_at > now:
        return lease
    if lease.liveness == Liveness.UP:
        return replace(lease, liveness=Liveness.SUSPECT, since=now)
    is_long = lease.expires_at + periods.down_after <= now and lease.since + periods.lease <= now
    if lease.liveness == Liveness.SUSPECT and is_long:
        return replace(lease, liveness=Liveness.DOWN, since=now)
    return lease
