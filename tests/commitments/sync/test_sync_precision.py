"""Times of LIQUID are finer than those of Limes' list, which has whole seconds (spec liquid, 15.2).

What a change request wrote and Limes lists is right: the next sync must not write it anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from capacity.figures.group_capacity import ensure_totals
from commitments.models import Commitment, CommitmentEvent
from journal.models import Outbox
from tests.commitments.change_requests import NOW as DECIDED
from tests.commitments.change_requests import change, decide
from tests.factories import make_host
from tests.peers.fake_cloud import FakeCloud, limes_commitment

from .world import GROUP, NOW, UUID, live_row, metric, sync, tuples

pytestmark = pytest.mark.django_db(transaction=True)

RAM = f"hw_version_{GROUP}_ram"
CLOCK = DECIDED + timedelta(microseconds=734_511)
END = CLOCK + timedelta(days=400, microseconds=1)
WANTED_FROM = CLOCK + timedelta(days=3, microseconds=17)


def floored(moment: datetime) -> int:
    return math.floor(moment.timestamp())


def rounded(moment: datetime) -> int:
    """Return the second when the database of Limes rounded up what the request did not."""
    return math.ceil(moment.timestamp())


def asked(status: str, confirm_by: datetime | None) -> None:
    """Let Limes ask for a commitment, with times as fine as Go's clock gives them."""
    make_host("h1", memory_gib=64, vcpus=64)
    ensure_totals("az-a")
    wanted = change(UUID, 2, status, expires_at=END, confirm_by=confirm_by)
    assert decide({"p1": {RAM: [wanted]}}, now=CLOCK).status == 200


def listing(
    status: str, confirm_by: datetime | None, as_second: Callable[[datetime], int]
) -> dict[str, Any]:
    """Return what Limes lists of it; it was made a moment before we were asked."""
    made = floored(CLOCK - timedelta(seconds=2))
    times: dict[str, Any] = {"created_at": made, "expires_at": as_second(END)}
    times["confirmed_at"] = made if status == "confirmed" else None
    times["confirm_by"] = as_second(confirm_by) if confirm_by else None
    shown = {key: seconds for key, seconds in times.items() if seconds is not None}
    record = limes_commitment(UUID, status=status) | shown
    return record if status == "confirmed" else _without(record, "confirmed_at")


def _without(record: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: entry for name, entry in record.items() if name != key}


@pytest.mark.parametrize("as_second", [floored, rounded])
@pytest.mark.parametrize(
    ("status", "confirm_by"),
    [
        ("confirmed", None),
        ("guaranteed", WANTED_FROM),
        ("planned", WANTED_FROM),
        ("pending", CLOCK - timedelta(days=1)),
        ("confirmed", CLOCK - timedelta(days=1)),
    ],
)
def test_what_limes_asked_for_is_not_written_anew_by_the_next_sync(
    cloud: FakeCloud,
    status: str,
    confirm_by: datetime | None,
    as_second: Callable[[datetime], int],
) -> None:
    asked(status, confirm_by)
    before = Commitment.objects.values().get()
    told = CommitmentEvent.objects.count(), Outbox.objects.count(), metric("cr_updates_total")
    cloud.add("p1", [listing(status, confirm_by, as_second)])
    report = sync(cloud)
    assert (report.counts["updated"], report.counts.get("described")) == (0, 1)
    now = CommitmentEvent.objects.count(), Outbox.objects.count(), metric("cr_updates_total")
    assert now == told
    after = Commitment.objects.values().get()
    for name in ("start_time", "end_time", "confirm_by", "generation", "next_reconcile_at"):
        assert after[name] == before[name], name
    assert after["limes_id"] == 17
    assert after["limes_record"] is not None
    versions = tuples()
    assert sync(cloud, now=NOW + timedelta(hours=1)).counts["unchanged"] == 1
    assert tuples() == versions


def test_what_limes_says_besides_is_kept_without_an_event(cloud: FakeCloud) -> None:
    """A day after its creation a commitment cannot be deleted any more, by its creator."""
    cloud.add("p1", [limes_commitment(UUID, can_be_deleted=True)])
    sync(cloud)
    told, updates = CommitmentEvent.objects.count(), metric("cr_updates_total")
    del cloud.commitments["p1"][0]["can_be_deleted"]
    assert sync(cloud).counts["described"] == 1
    assert "can_be_deleted" not in (Commitment.objects.get().limes_record or {})
    assert (CommitmentEvent.objects.count(), metric("cr_updates_total")) == (told, updates)


@pytest.mark.parametrize("seconds", [-1, 1, 3600])
def test_another_second_is_a_change_that_was_lost(cloud: FakeCloud, seconds: int) -> None:
    listed = limes_commitment(UUID)
    cloud.add("p1", [listed])
    sync(cloud)
    updates = metric("cr_updates_total")
    cloud.commitments["p1"][0]["expires_at"] += seconds
    assert sync(cloud).counts["updated"] == 1
    assert metric("cr_updates_total") == updates + 1
    row = Commitment.objects.get()
    assert row.end_time is not None
    assert row.end_time.timestamp() == listed["expires_at"] + seconds
    assert row.generation == 2


def test_a_start_that_nobody_knows_is_taken_from_limes(cloud: FakeCloud) -> None:
    live_row(start_time=None)
    listed = limes_commitment(UUID)
    cloud.add("p1", [listed])
    assert sync(cloud).counts["updated"] == 1
    row = Commitment.objects.get()
    assert row.start_time is not None
    assert row.start_time.timestamp() == listed["confirmed_at"]
