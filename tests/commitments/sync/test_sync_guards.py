"""Answers that the syncer does not believe, and what an operator accepts (spec liquid, 15.4)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from capacity.models import Reservation
from commitments.models import Commitment, SyncRun
from commitments.services.repair import repair_due_commitments
from commitments.services.sync_runs import accept_shrink
from hosts.models import Host
from journal.actors import Actor
from journal.errors import InvalidInput
from journal.models import AuditEntry
from scheduling.resources import GIB
from tests.factories import make_host, make_hosts
from tests.ledger import assert_ledger_holds
from tests.peers.fake_cloud import FakeCloud, limes_commitment

from .world import (
    LIMES,
    NOW,
    SYNCER,
    UUID,
    empty,
    keystone_down,
    live_row,
    many,
    metric,
    sync,
    tuples,
    uuid_of,
)

pytestmark = pytest.mark.django_db(transaction=True)


def held(cloud: FakeCloud, count: int = 12) -> list[tuple[object, ...]]:
    """Let a good run take in commitments, hold them, and return every row's version."""
    many(cloud, count)
    make_hosts(2, memory_gib=64, vcpus=64)
    assert sync(cloud).outcome == "success"
    repair_due_commitments(actor=SYNCER, request_id="repair", now=timezone.now())
    assert Reservation.objects.count() == 2 * count
    return tuples()


def cut_lists(cloud: FakeCloud) -> None:
    for commitments in cloud.commitments.values():
        del commitments[1:]


def unknown_projects(cloud: FakeCloud) -> None:
    cloud.always = {LIMES: 404}


def half_the_projects(cloud: FakeCloud) -> None:
    del cloud.projects["p0"], cloud.projects["p1"]


def cut_answers(cloud: FakeCloud) -> None:
    cloud.always = {LIMES: "cut"}


def one_project_down(cloud: FakeCloud) -> None:
    del cloud.commitments["p2"]
    cloud.always = {f"{LIMES}domains/domain-1/projects/p2/": 500}


def limes_down(cloud: FakeCloud) -> None:
    cloud.always = {LIMES: 503}


def no_projects(cloud: FakeCloud) -> None:
    cloud.projects.clear()


@pytest.mark.parametrize(
    ("breaks", "outcome", "error_code"),
    [
        (empty, "guarded", "commitments_shrank"),
        (cut_lists, "guarded", "commitments_shrank"),
        (unknown_projects, "guarded", "commitments_shrank"),
        (half_the_projects, "guarded", "commitments_shrank"),
        (cut_answers, "failed", "limes_unavailable"),
        (one_project_down, "incomplete", "sync_incomplete"),
        (limes_down, "failed", "limes_unavailable"),
        (keystone_down, "failed", "keystone_unavailable"),
        (no_projects, "failed", "no_projects"),
    ],
    ids=lambda value: value.__name__ if callable(value) else value,
)
def test_a_broken_answer_releases_nothing_however_often_it_comes(
    cloud: FakeCloud, breaks: Any, outcome: str, error_code: str
) -> None:
    before = held(cloud)
    breaks(cloud)
    errors, runs = metric("errors_total"), metric("runs_total", outcome=outcome)
    for number in range(1, 6):
        report = sync(cloud, now=NOW + timedelta(hours=6 * number))
        assert (report.outcome, report.error_code) == (outcome, error_code)
        run = SyncRun.objects.latest("pk")
        assert (run.outcome, run.error_code) == (outcome, error_code)
        assert run.message
        assert run.finished_at is not None
    assert metric("errors_total") == errors + 5
    assert metric("runs_total", outcome=outcome) == runs + 5
    assert tuples() == before
    assert_ledger_holds()


def test_what_an_incomplete_run_could_read_is_repaired(cloud: FakeCloud) -> None:
    held(cloud)
    one_project_down(cloud)
    cloud.commitments["p1"][0]["amount"] = 3
    assert sync(cloud).counts["updated"] == 1
    assert Commitment.objects.filter(requested_amount=3 * GIB).count() == 1


def test_the_first_run_of_all_is_compared_with_the_rows_there_are(cloud: FakeCloud) -> None:
    for number in range(8):
        live_row(uuid_of(number))
    report = sync(cloud)
    assert (report.outcome, report.error_code) == ("guarded", "commitments_shrank")


def test_projects_that_vanish_are_not_believed_even_when_they_had_no_commitments(
    cloud: FakeCloud,
) -> None:
    live_row()
    cloud.add("p1", [limes_commitment(UUID)])
    for number in range(20):
        cloud.add(f"empty-{number}")
    sync(cloud)
    cloud.projects = {"p1": "domain-1"}
    assert sync(cloud).error_code == "projects_shrank"


def test_an_operator_may_accept_that_the_set_shrank(cloud: FakeCloud) -> None:
    held(cloud)
    empty(cloud)
    sync(cloud)
    run = accept_shrink(
        SyncRun.objects.latest("pk").pk, actor=Actor(name="admin"), request_id="req"
    )
    assert run.shrink_accepted_by == "admin"
    assert AuditEntry.objects.latest("pk").action == "sync_shrink_accepted"
    for hours in (0, 3, 6):
        report = sync(cloud, now=NOW + timedelta(days=1, hours=hours))
        assert report.outcome == "success"
    assert report.counts["ended"] == 12


class TestZone:
    """A small zone that Limes stops listing while the others are listed as before."""

    def two_zones(self, cloud: FakeCloud, *, small: int = 3) -> None:
        many(cloud, 40)
        for number in range(40, 40 + small):
            cloud.add("p0", [limes_commitment(uuid_of(number), availability_zone="az-b")])
        make_hosts(2, memory_gib=640, vcpus=640)
        make_host("small", zone="az-b", memory_gib=64, vcpus=64)
        assert sync(cloud).outcome == "success"

    def drop(self, cloud: FakeCloud, keep: int = 0) -> None:
        listed = cloud.commitments["p0"]
        doomed = [one for one in listed if one["availability_zone"] == "az-b"][keep:]
        cloud.commitments["p0"] = [one for one in listed if one not in doomed]

    def missing(self) -> int:
        return Commitment.objects.filter(missed_syncs__gt=0).count()

    def test_it_is_not_believed_however_often_it_comes(self, cloud: FakeCloud) -> None:
        self.two_zones(cloud)
        self.drop(cloud)
        before = tuples()
        errors, runs = metric("errors_total"), metric("runs_total", outcome="guarded")
        for number in range(1, 5):
            report = sync(cloud, now=NOW + timedelta(hours=6 * number))
            assert (report.outcome, report.error_code) == ("guarded", "zone_vanished")
            assert report.message == "Limes lists no commitment of az-b, 3 in the last good run"
            assert SyncRun.objects.latest("pk").outcome == "guarded"
        assert metric("errors_total") == errors + 4
        assert metric("runs_total", outcome="guarded") == runs + 4
        assert tuples() == before

    def test_an_operator_may_accept_it(self, cloud: FakeCloud) -> None:
        self.two_zones(cloud)
        self.drop(cloud)
        sync(cloud)
        accept_shrink(SyncRun.objects.latest("pk").pk, actor=SYNCER, request_id="req")
        for hours in (0, 3, 6):
            report = sync(cloud, now=NOW + timedelta(days=1, hours=hours))
            assert report.outcome == "success"
        assert report.counts["ended"] == 3

    def test_what_is_left_of_a_zone_is_believed(self, cloud: FakeCloud) -> None:
        self.two_zones(cloud)
        self.drop(cloud, keep=1)
        assert sync(cloud, now=NOW + timedelta(hours=1)).outcome == "success"
        assert self.missing() == 2

    def test_a_single_commitment_is_believed_to_be_gone(self, cloud: FakeCloud) -> None:
        self.two_zones(cloud, small=1)
        self.drop(cloud)
        assert sync(cloud, now=NOW + timedelta(hours=1)).outcome == "success"
        assert self.missing() == 1

    def test_a_zone_without_hosts_is_believed_to_be_gone(self, cloud: FakeCloud) -> None:
        self.two_zones(cloud)
        self.drop(cloud)
        Host.objects.filter(zone="az-b").update(zone="az-a")
        assert sync(cloud, now=NOW + timedelta(hours=1)).outcome == "success"
        assert self.missing() == 3

    def test_commitments_that_are_over_do_not_vanish(self, cloud: FakeCloud) -> None:
        """Limes hides them, and they were bought together."""
        self.two_zones(cloud)
        self.drop(cloud)
        Commitment.objects.filter(zone="az-b").update(end_time=NOW + timedelta(minutes=30))
        assert sync(cloud, now=NOW + timedelta(hours=1)).outcome == "success"


def test_only_the_newest_guarded_run_can_be_accepted(cloud: FakeCloud) -> None:
    held(cloud)
    good = SyncRun.objects.latest("pk")
    with pytest.raises(InvalidInput, match="not stopped by the guard"):
        accept_shrink(good.pk, actor=SYNCER, request_id="req")
    listed = {key: list(commitments) for key, commitments in cloud.commitments.items()}
    empty(cloud)
    sync(cloud)
    guarded = SyncRun.objects.latest("pk")
    cloud.commitments.update(listed)
    sync(cloud)
    with pytest.raises(InvalidInput, match="was good already"):
        accept_shrink(guarded.pk, actor=SYNCER, request_id="req")


# How a run goes.
