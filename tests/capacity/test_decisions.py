from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import numpy as np
import pytest
from django.db import connections, transaction
from django.utils import timezone

from capacity.metrics import DECISIONS_LOST
from capacity.models import HostListing, SchedulingDecision
from capacity.nova import decisions
from capacity.nova.decisions import (
    KeptStep,
    prune_decisions,
    record_decision,
)
from capacity.nova.refusals import refusals_by_group
from capacity.nova.stored_decisions import (
    Fate,
    decisions_about_host,
    decode_decision,
    history_of_vm,
)
from scheduling.record import PackedMask
from tests.capacity.decision_records import HOSTS, VM, make_decision, make_record, mask

pytestmark = pytest.mark.django_db(transaction=True)


def lost() -> float:
    return float(DECISIONS_LOST._value.get())


@pytest.mark.parametrize(
    ("host", "fate", "step"),
    [
        pytest.param("h1", Fate.REMOVED, "filter_status", id="removed by the first step"),
        pytest.param("h2", Fate.REMOVED, "filter_capacity", id="removed by a later step"),
        pytest.param("h3", Fate.CHOSEN, "", id="chosen"),
        pytest.param("h4", Fate.PASSED, "", id="beaten"),
        pytest.param("h5", Fate.NOT_CONSIDERED, "", id="no candidate"),
        pytest.param("h9", Fate.UNKNOWN, "", id="not there then"),
    ],
)
def test_a_stored_decision_knows_the_fate_of_every_host(host: str, fate: Fate, step: str) -> None:
    decoded = decode_decision(make_decision())

    assert decoded is not None
    found = decoded.fate_of(host)
    assert (found.fate, found.step) == (fate, step)


def test_a_stored_decision_has_the_numbers_and_the_ranking() -> None:
    row = make_decision()

    assert (row.hosts_in, row.hosts_out, row.target_host_name) == (4, 2, "h3")
    assert row.removals == [
        {"step": "filter_status", "removed": 1, "remaining": 3},
        {"step": "filter_quota", "removed": 0, "remaining": 3, "note": "no quota record"},
        {"step": "filter_capacity", "removed": 1, "remaining": 2},
    ]
    assert row.top_hosts[1] == {
        "host": "h4",
        "score": 0.4,
        "start": 0.0,
        "contributions": {"kvm_binpack": 0.5, "kvm_prefer_smaller_hosts": -0.1},
    }
    assert row.top_hosts[0]["start"] == 0.1
    assert (row.vm_uuid, row.project_id, row.zone) == (VM, "project-1", "az-a")
    assert (row.flavor_name, row.flavor_group_name, row.intent) == ("medium", "hana_1", "create")
    assert (row.pipeline_version, row.outcome_class, row.request_id) == (3, "no_cr", "req-1")
    decoded = decode_decision(row)
    assert decoded is not None
    fates = {name: decoded.fate_of(name).fate for name in ("h1", "h2", "h3", "h4", "h5")}
    assert fates == {
        "h1": Fate.REMOVED,
        "h2": Fate.REMOVED,
        "h3": Fate.CHOSEN,
        "h4": Fate.PASSED,
        "h5": Fate.NOT_CONSIDERED,
    }
    assert decoded.hosts_removed_by("filter_capacity") == ("h2",)
    assert decoded.hosts_removed_by("filter_quota") == ()
    assert (decoded.fate_of("h4").position, decoded.fate_of("h4").score) == (2, 0.4)


def test_nothing_is_cut_to_the_first_few_hosts() -> None:
    names = tuple(f"host-{number:05}" for number in range(10_000))
    removed = np.arange(10_000) % 3 == 0
    row = make_decision(
        host_names=names,
        candidates=None,
        steps=(KeptStep(step="filter_traits", removed=PackedMask.pack(removed), remaining=6666),),
        top=(),
    )

    decoded = decode_decision(row)

    assert decoded is not None
    assert decoded.hosts_removed_by("filter_traits") == tuple(
        name for name, gone in zip(names, removed.tolist(), strict=True) if gone
    )
    assert row.hosts_in == 10_000


@pytest.mark.sql("capacity_record_decision")
def test_decisions_over_the_same_hosts_share_one_listing() -> None:
    record_decision(make_record())
    record_decision(make_record())
    record_decision(make_record(host_names=tuple("".join(name) for name in HOSTS)))
    other = ("x1", *HOSTS)
    record_decision(make_record(host_names=other, candidates=mask("x1", of=other), steps=()))

    assert HostListing.objects.count() == 2
    assert SchedulingDecision.objects.count() == 4


def test_a_decision_without_hosts_keeps_its_message() -> None:
    row = make_decision(
        host_names=(), candidates=None, steps=(), top=(), message="Pipeline run failed: x."
    )

    assert row.listing_id is None
    assert decode_decision(row) is None
    assert row.message == "Pipeline run failed: x."


def test_a_failure_to_write_is_counted_and_does_not_reach_the_caller() -> None:
    before = lost()

    record_decision(make_record(pipeline_name="x" * 300))

    assert lost() == before + 1
    assert not SchedulingDecision.objects.exists()


def test_a_decision_made_in_a_transaction_is_written_after_it() -> None:
    with transaction.atomic():
        record_decision(make_record())
        assert not SchedulingDecision.objects.exists()

    assert SchedulingDecision.objects.count() == 1


def test_a_rolled_back_placement_leaves_no_decision() -> None:
    with transaction.atomic():
        record_decision(make_record())
        transaction.set_rollback(True)

    assert not SchedulingDecision.objects.exists()


def test_the_history_of_a_vm_is_the_current_run_and_ten_before() -> None:
    rows = [make_decision(request_id=f"req-{number}") for number in range(13)]
    make_decision(vm_uuid="other")

    assert [row.pk for row in history_of_vm(VM)] == [row.pk for row in reversed(rows[2:])]


def test_runs_are_found_by_a_host_that_was_not_chosen() -> None:
    considered = make_decision()
    make_decision(candidates=mask("h3"), steps=())

    mentions = decisions_about_host("h2")

    assert [(mention.row.pk, mention.fate.step) for mention in mentions] == [
        (considered.pk, "filter_capacity")
    ]


def test_a_decision_with_damaged_masks_does_not_hide_the_others() -> None:
    good = make_decision()
    bad = make_decision()
    SchedulingDecision.objects.filter(pk=bad.pk).update(masks=b"damaged")

    assert [mention.row.pk for mention in decisions_about_host("h2")] == [good.pk]


class TestRefusals:
    def test_each_group_has_its_classes_and_last_filters_most_first(self) -> None:
        nobody = KeptStep(step="filter_traits", removed=mask("h1"), remaining=0)
        for outcome_class, steps in (
            ("cr_exhausted", (nobody,)),
            ("slot_blocked", (nobody,)),
            ("slot_blocked", ()),
        ):
            make_decision(outcome_class=outcome_class, steps=steps, is_successful=False)
        make_decision()

        (found,) = refusals_by_group()

        assert (found.group, found.refused) == ("hana_1", 3)
        assert found.classes == (("slot_blocked", 2), ("cr_exhausted", 1))
        assert found.filters == (("filter_traits", 2), ("", 1))

    def test_only_the_newest_decisions_are_looked_at(self) -> None:
        make_decision(is_successful=False)
        make_decision()

        assert refusals_by_group(scanned=1) == ()
        assert [one.refused for one in refusals_by_group(scanned=2)] == [1]


class TestRetention:
    @pytest.fixture(autouse=True)
    def _small_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(decisions, "PRUNE_CHUNK_ROWS", 2)
        monkeypatch.setattr(decisions, "LISTING_CHUNK_ROWS", 1)

    def test_old_decisions_go_in_chunks_and_young_ones_stay(self) -> None:
        now = timezone.now()
        old = [make_decision() for _ in range(5)]
        young = make_decision()
        SchedulingDecision.objects.filter(pk__in=[row.pk for row in old]).update(
            created_at=now - timedelta(days=31)
        )

        report = prune_decisions(now=now)

        assert (report.decisions, report.listings) == (5, 0)
        assert list(SchedulingDecision.objects.all()) == [young]

    def test_a_listing_goes_with_its_last_decision_but_not_at_once(self) -> None:
        make_decision()
        make_decision(host_names=("z1",), candidates=None, steps=())
        SchedulingDecision.objects.all().delete()
        now = timezone.now()

        assert prune_decisions(now=now).listings == 0
        assert prune_decisions(now=now + timedelta(hours=2)).listings == 2
        assert not HostListing.objects.exists()

    def test_the_retention_is_a_setting(self) -> None:
        now = timezone.now()
        make_decision()
        SchedulingDecision.objects.update(created_at=now - timedelta(days=2))

        assert prune_decisions(now=now).decisions == 0
        assert prune_decisions(now=now, retention=timedelta(days=1)).decisions == 1

    def test_recording_while_listings_are_pruned_never_loses_a_decision(self) -> None:
        before = lost()
        rounds = 40

        def record(number: int) -> None:
            try:
                record_decision(make_record(vm_uuid=f"vm-{number}"))
                SchedulingDecision.objects.filter(vm_uuid=f"vm-{number}").delete()
            finally:
                connections.close_all()

        def prune(_number: int) -> None:
            try:
                prune_decisions(now=timezone.now() + timedelta(hours=2))
            finally:
                connections.close_all()

        with ThreadPoolExecutor(6) as pool:
            tasks = [pool.submit(record, number) for number in range(rounds)]
            tasks += [pool.submit(prune, number) for number in range(rounds)]
            for task in tasks:
                task.result()

        assert lost() == before
