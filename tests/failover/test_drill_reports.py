from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import pytest
from django.utils import timezone

from failover.choices import Unsaved, reason_words
from failover.domain.drill import UnprotectedReason, simulate
from failover.domain.drill_report import DrillReport, drill_pairs
from failover.domain.zone_columns import ZoneSnapshot
from failover.drill_models import CoverageAccount, FailureDrill
from failover.metrics import COVERAGE
from failover.selectors.coverage import coverage_by_flavor, coverage_by_zone
from failover.selectors.drills import drill_state
from failover.services import drills
from failover.services.coverage import LONGEST_STEP, account_coverage
from failover.services.drills import KEPT, drill_zone, drill_zones
from hosts.models import HostState, Instance
from journal.clock import TOLERANCE, database_now
from journal.metrics import metric_name
from scheduling.resources import GIB
from tests.factories import make_reservation
from tests.failover.drill_rows import make_zone

pytestmark = pytest.mark.django_db(transaction=True)
NOW = timezone.now()
S3 = "rA@3{a@1,b@2} rB@4{a@1} rC@5{b@2}"


def shown(suffix: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for family in COVERAGE.collect()
        for sample in family.samples
        if sample.name == metric_name(f"failover_{suffix}")
    }


@pytest.mark.parametrize(
    ("slots", "failed", "expected", "unprotected"),
    [
        pytest.param("rA@3{a@1,b@2}", "1", {"a": "rA"}, [], id="S1"),
        pytest.param(S3, "1 2", {"a": "rB", "b": "rC"}, [], id="S3"),
        pytest.param(S3, "1 3", {"a": "rB"}, [], id="S4"),
        pytest.param(S3, "1 3 4", {}, ["a"], id="S6"),
    ],
)
def test_drills_of_rows_give_the_results_of_the_specification(
    slots: str, failed: str, expected: Mapping[str, str], unprotected: list[str]
) -> None:
    rows = make_zone(slots)

    result = simulate(drill_state(["az-a"], now=NOW), [f"h{number}" for number in failed.split()])

    assert {row.vm: row.slot for row in result.assignments} == {
        rows.uuid(name): slot for name, slot in expected.items()
    }
    assert [row.vm for row in result.unprotected] == [rows.uuid(name) for name in unprotected]


def test_slot_on_a_host_that_is_down_does_not_count() -> None:
    rows = make_zone("r@3{a@1}")
    rows.hosts["3"].state = HostState.DOWN
    rows.hosts["3"].save()

    result = simulate(drill_state(["az-a"], now=NOW), ["h1"])

    assert [row.reason for row in result.unprotected] == ["all_slot_hosts_failed"]


def test_stopped_vm_is_never_unprotected() -> None:
    rows = make_zone("", vms={"a": "1"})
    Instance.objects.filter(pk=rows.vms["a"].pk).update(status="SHUTOFF")

    result = simulate(drill_state(["az-a"], now=NOW), ["h1"])

    assert result.unprotected == ()


def test_nightly_report_stores_a_row_per_zone_and_scope() -> None:
    rows = make_zone("r@3{a@1,b@2}", racks={"1": "bb1", "2": "bb2", "3": "bb1"}, vms={"c": "2"})
    make_zone("", vms={"d": "9"}, zone="az-b")

    run = drill_zones(request_id="nightly", now=timezone.now())

    assert run.unprotected == {
        ("az-a", "host"): 1,
        ("az-a", "rack"): 2,
        ("az-a", "pair"): 3,
        ("az-b", "host"): 1,
        ("az-b", "rack"): 0,
        ("az-b", "pair"): 1,
    }
    hosts = FailureDrill.objects.get(zone="az-a", scope="host")
    assert (hosts.cases, hosts.vms, hosts.request_id) == (3, 3, "nightly")
    assert hosts.worst == [
        {
            "name": "h2",
            "affected_vms": 2,
            "protected_vms": 1,
            "unprotected_vms": 1,
            "reasons": {"no_slots": 1},
            "vms": [rows.uuid("c")],
        }
    ]
    assert [row[0] for row in hosts.hosts] == ["h1", "h2", "h3"]
    assert hosts.hosts[2] == ["h3", "bb1", 0, 0, 1, 2]


def test_newest_report_is_shown_and_old_ones_are_forgotten() -> None:
    make_zone("r@3{a@1}")
    FailureDrill.objects.create(
        zone="az-a",
        scope="host",
        started_at=timezone.now() - KEPT - timedelta(days=1),
        finished_at=timezone.now() - KEPT - timedelta(days=1),
        cases=1,
        simulated=1,
        unprotected_vms=99,
    )

    drill_zones(request_id="nightly", now=timezone.now())

    assert FailureDrill.objects.filter(scope="host").count() == 1
    assert shown("simulation_unprotected_vms") == {
        ("az-a", "host"): 0,
        ("az-a", "pair"): 1,
        ("az-a", "rack"): 0,
    }
    assert shown("reserved_bytes") == {("az-a",): 4 * GIB}
    assert shown("reserved_lower_bound_bytes")[("az-a",)] >= 8 * GIB


@pytest.mark.parametrize(
    ("ahead", "stored"),
    [
        pytest.param(timedelta(0), 0, id="a run beside this one"),
        pytest.param(timedelta(days=1), 3, id="a clock a day ahead"),
    ],
)
def test_report_of_tomorrow_does_not_stop_the_one_of_tonight(
    ahead: timedelta, stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_zone("r@3{a@1}")

    def store_another(zone: ZoneSnapshot) -> DrillReport:
        moment = database_now() + ahead
        FailureDrill.objects.create(
            zone="az-a",
            scope="host",
            started_at=moment,
            finished_at=moment,
            cases=1,
            simulated=1,
            unprotected_vms=99,
        )
        return drill_pairs(zone)

    monkeypatch.setattr(drills, "drill_pairs", store_another)

    assert len(drill_zone("az-a", request_id="nightly", now=timezone.now())) == stored


@pytest.mark.sql("coverage_of_vms")
def test_coverage_is_counted_by_zone_and_flavor() -> None:
    rows = make_zone(S3, vms={"c": "6", "d": "7"})
    Instance.objects.filter(pk=rows.vms["c"].pk).update(status="SHUTOFF")

    flavors = coverage_by_flavor()
    zones = coverage_by_zone(flavors)

    assert [(row.zone, row.flavor_name, row.required) for row in flavors] == [("az-a", "small", 2)]
    assert (flavors[0].vms, flavors[0].covered_vms, flavors[0].bare_vms) == (3, 2, 1)
    assert (zones[0].uncovered_vms, zones[0].slots) == (1, 3)
    assert (zones[0].memory_bytes, zones[0].reserved_memory_bytes) == (12 * GIB, 12 * GIB)


@pytest.mark.parametrize(
    ("change", "covered"),
    [
        pytest.param({"is_ready": False}, 0, id="a slot that is not ready"),
        pytest.param({}, 1, id="a ready slot"),
    ],
)
def test_only_slots_that_would_help_count(change: dict[str, bool], covered: int) -> None:
    rows = make_zone("r@3{a@1}", required=1)
    for name, setting in change.items():
        setattr(rows.slots["r"], name, setting)
    rows.slots["r"].save()

    assert coverage_by_flavor()[0].covered_vms == covered


def test_consuming_slot_covers_nobody() -> None:
    rows = make_zone("r@3{a@1}", required=1)
    known = rows.slots["r"].failover
    known.state = "consuming"
    known.save()

    assert coverage_by_flavor()[0].covered_vms == 0


def test_account_grows_by_what_is_owed_and_what_is_uncovered() -> None:
    make_zone("r@3{a@1}", vms={"b": "2"}, required=1)
    start = timezone.now()

    account_coverage(now=start)
    account_coverage(now=start + timedelta(seconds=60))
    account_coverage(now=start + timedelta(seconds=90))

    row = CoverageAccount.objects.get(zone="az-a")
    assert (row.owed_vms, row.uncovered_vms) == (2, 1)
    assert (row.owed_vm_seconds, row.uncovered_vm_seconds) == (180, 90)
    assert shown("owed_vm_seconds_total") == {("az-a",): 180}
    assert shown("uncovered_vm_seconds_total") == {("az-a",): 90}


def test_account_does_not_make_up_a_gap_nor_run_backwards() -> None:
    make_zone("", vms={"a": "1"}, required=1)
    start = timezone.now()

    account_coverage(now=start)
    account_coverage(now=start + timedelta(hours=5))
    account_coverage(now=start + timedelta(hours=5) - TOLERANCE)

    row = CoverageAccount.objects.get()
    assert row.owed_vm_seconds == LONGEST_STEP.total_seconds()
    assert row.accounted_at == start + timedelta(hours=5)


def test_account_goes_on_from_now_after_a_look_that_a_fast_clock_dated() -> None:
    make_zone("", vms={"a": "1"}, required=1)
    start = timezone.now()
    account_coverage(now=start)
    CoverageAccount.objects.update(accounted_at=start + timedelta(days=1))

    account_coverage(now=start + timedelta(seconds=60))
    assert CoverageAccount.objects.get().owed_vm_seconds == 0
    account_coverage(now=start + timedelta(seconds=90))

    row = CoverageAccount.objects.get()
    assert (row.accounted_at, row.owed_vm_seconds) == (start + timedelta(seconds=90), 30)


def test_zone_that_owes_nothing_any_more_stops_growing() -> None:
    rows = make_zone("", vms={"a": "1"}, required=1)
    start = timezone.now()
    account_coverage(now=start)
    account_coverage(now=start + timedelta(seconds=60))
    rows.vms["a"].delete()

    account_coverage(now=start + timedelta(seconds=120))

    row = CoverageAccount.objects.get()
    assert (row.owed_vms, row.owed_vm_seconds) == (0, 60)


def test_users_of_slots_are_a_histogram() -> None:
    rows = make_zone("rA@3{a@1,b@2} rB@4{a@1}")
    make_reservation(rows.hosts["3"])

    buckets = {labels[1]: count for labels, count in shown("slots_users_bucket").items()}

    assert (buckets["0.0"], buckets["1.0"], buckets["2.0"], buckets["+Inf"]) == (1, 2, 3, 3)
    assert shown("slots_users_sum") == {("az-a",): 3}
    assert shown("slots_users_count") == {("az-a",): 3}


def test_oldest_unacknowledged_slot_is_shown() -> None:
    rows = make_zone("rA@3{a@1} rB@4{a@1}")
    waiting, agreed = rows.slots["rA"].failover, rows.slots["rB"].failover
    waiting.last_changed_at = timezone.now() - timedelta(seconds=500)
    waiting.save()
    agreed.last_changed_at = timezone.now() - timedelta(seconds=5000)
    agreed.acknowledged_at = timezone.now()
    agreed.save()

    assert shown("oldest_unacknowledged_seconds")[("az-a",)] == pytest.approx(500, abs=100)


def test_each_reason_has_words() -> None:
    assert set(Unsaved.values) == {reason.value for reason in UnprotectedReason}
    assert reason_words("outnumbered") == "others take their slots"
    assert reason_words("of a later release") == "of a later release"
