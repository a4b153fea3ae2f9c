from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from core.doctor import own
from core.doctor.findings import (
    Check,
    Finding,
    Severity,
    broken,
    doubtful,
    fine,
    offered_checks,
    run_checks,
    worst,
)
from core.doctor.kept import keep_findings
from core.tasks import DOCTOR, doctor
from journal import health
from journal.clock import database_now
from journal.errors import HeadroomError
from journal.gauges import DOCTOR as DOCTOR_GAUGES
from journal.leases import held_lease
from journal.models import CheckFinding, Heartbeat, ProcessClock
from journal.services import queue_heartbeat, record_heartbeat
from tests.factories import make_group, make_host

SEVERITIES = st.sampled_from(list(Severity))


def found(checks: Mapping[str, Check], **options: Any) -> list[tuple[str, str, str]]:
    return [(one.check, one.severity, one.found) for one in run_checks(checks, **options)]


def raises(error: Exception) -> Check:
    def check() -> Iterator[Finding]:
        yield fine("half of it")
        raise error

    return check


def test_one_that_fails_or_hangs_hides_no_other() -> None:
    released = threading.Event()

    def hangs() -> Iterator[Finding]:
        released.wait()
        yield fine("too late")

    checks = {
        "first": lambda: [fine("well")],
        "fails": raises(KeyError("secret")),
        "refused": raises(HeadroomError("no such cloud")),
        "hangs": hangs,
        "last": lambda: [doubtful("odd", "look"), broken("gone", "mend")],
    }
    try:
        assert found(checks, deadline_seconds=0.2) == [
            ("first", "ok", "well"),
            ("fails", "error", "KeyError"),
            ("refused", "error", "no such cloud"),
            ("hangs", "error", "no answer within 0.2 s"),
            ("last", "warning", "odd"),
            ("last", "error", "gone"),
        ]
    finally:
        released.set()


def test_logins_in_addresses_are_left_out() -> None:
    address = "postgresql://me:pass@db/x and https://user:word@host:5/v3"
    (one,) = run_checks({"one": lambda: [broken(address, address)]})
    assert one.found == one.todo == "postgresql://db/x and https://host:5/v3"


@given(st.lists(SEVERITIES))
def test_the_worst_is_an_error_before_a_warning(severities: list[Severity]) -> None:
    findings = [Finding(severity=one, found="") for one in severities]
    order = ["ok", "warning", "error"]
    assert worst(findings) == max(severities, key=order.index, default="ok")
    assert worst(findings).exit_status == order.index(worst(findings))


def of(name: str) -> list[tuple[str, str]]:
    return [(one.severity, one.found) for one in run_checks({name: offered_checks()[name]})]


def test_checks_of_all_apps_are_offered() -> None:
    names = list(offered_checks())
    assert names[:4] == ["database", "migrations", "broker", "beat"]
    assert {"workers", "clocks", "settings", "hosts", "drift", "placement", "failover"} < set(names)


@pytest.mark.django_db(transaction=True)
class TestOwn:
    def test_what_works_is_fine(self) -> None:
        for name in ("database", "migrations", "broker"):
            assert of(name) == [("ok", "ok")]

    def test_workers_are_seen_by_the_heartbeats_of_their_queues(self) -> None:
        record_heartbeat(queue_heartbeat("steady"))
        Heartbeat.objects.create(
            name="queue:long", beaten_at=database_now() - timedelta(seconds=7300)
        )
        assert [severity for severity, _ in of("workers")] == ["ok", "error"]
        Heartbeat.objects.all().delete()
        assert [told for _, told in of("workers")] == [
            "queue steady: no worker was ever seen",
            "queue long: no worker was ever seen",
        ]

    def test_clocks_of_this_machine_the_broker_and_others_are_compared(self) -> None:
        ProcessClock.objects.create(
            process="worker@elsewhere", deviation_seconds=-95.0, looked_at=database_now()
        )
        ProcessClock.objects.create(
            process="old", deviation_seconds=95.0, looked_at=database_now() - timedelta(days=1)
        )
        *right, (severity, told) = of("clocks")
        assert [one for one, _ in right] == ["ok", "ok"]
        assert (severity, told) == (
            "error",
            "worker@elsewhere: -95.0 s from the database's clock",
        )

    def test_a_broker_that_is_away_is_told_by_its_own_check(self, settings: Any) -> None:
        settings.REDIS_URL = "redis://127.0.0.1:1"
        assert of("broker")[0][0] == "error"
        assert of("clocks")[1] == ("warning", "the broker does not tell its time")

    def test_hosts_without_a_zone_and_no_groups_are_told(self) -> None:
        assert of("hosts") == [("warning", "there are no hosts")]
        assert of("flavor groups")[0][0] == "error"
        make_host("h1", zone="az-a")
        make_host("h2", zone="")
        make_group("hana", flavors=[("hana-s", 2048, 1)])
        assert of("hosts") == [("warning", "1 host without a zone: h2, ..."), ("ok", "2 hosts")]
        assert of("flavor groups") == [("ok", "hana")]

    def test_nothing_drifts_and_no_brake_is_on_in_an_empty_region(self) -> None:
        assert {severity for severity, _ in of("drift")} == {"ok"}
        assert of("placement") == [("ok", "nothing is wrong in its tables")]
        assert of("failover") == [("ok", "no brake is on")]

    def test_migrations_that_are_missing_are_an_error(self) -> None:
        health._migrations_applied.clear()
        with connection.cursor() as cursor:
            cursor.execute("UPDATE django_migrations SET name = name || '~' WHERE app = 'journal'")
        try:
            assert of("migrations")[0][0] == "error"
        finally:
            with connection.cursor() as cursor:
                cursor.execute("UPDATE django_migrations SET name = rtrim(name, '~')")
            health._migrations_applied.clear()


def run_command(*arguments: str) -> tuple[int, str]:
    output = StringIO()
    try:
        call_command("doctor", *arguments, stdout=output)
    except SystemExit as stop:
        return int(stop.code or 0), output.getvalue()
    return 0, output.getvalue()


@pytest.mark.django_db(transaction=True)
class TestCommand:
    def test_exit_status_is_the_worst(self) -> None:
        assert run_command("--check", "database")[0] == 0
        assert run_command("--check", "database", "--check", "hosts")[0] == 1
        assert run_command("--check", "hosts", "--check", "flavor groups")[0] == 2

    def test_table_says_what_to_do(self) -> None:
        _, printed = run_command("--check", "hosts")
        (line,) = [line for line in printed.splitlines() if "hosts" in line and "WARNING" in line]
        assert "there are no hosts" in line
        assert "./run manage connect" in line

    def test_json_is_for_programs(self) -> None:
        status, printed = run_command("--check", "hosts", "--json")
        answer = json.loads(printed)
        assert (status, answer["worst"]) == (1, "warning")
        (one,) = answer["findings"]
        assert (one["check"], one["severity"]) == ("hosts", "warning")

    def test_all_checks_run_and_tell_no_secret(self, settings: Any) -> None:
        _, printed = run_command("--json")
        assert {one["check"] for one in json.loads(printed)["findings"]} == set(offered_checks())
        assert settings.SECRET_KEY not in printed

    def test_an_unknown_check_is_refused(self) -> None:
        with pytest.raises(CommandError, match="no check nonsense; there are database,"):
            call_command("doctor", "--check", "nonsense")


def told() -> dict[tuple[str, ...], float]:
    return {
        (sample.name.partition("_")[2], *sample.labels.values()): sample.value
        for family in DOCTOR_GAUGES.collect()
        for sample in family.samples
    }


@pytest.mark.django_db(transaction=True)
class TestJob:
    def test_findings_are_kept_and_told_at_scrapes(self) -> None:
        assert told() == {}
        keep_findings([fine("x"), broken("y", "z"), broken("y", "z"), doubtful("y", "z")])
        keep_findings(run_checks({"b": lambda: [broken("y", "z")], "a": lambda: [fine("x")]}))
        figures = told()
        assert figures.pop(("doctor_age_seconds",)) >= 0
        assert figures == {
            ("doctor_warnings", "a"): 0,
            ("doctor_errors", "a"): 0,
            ("doctor_warnings", "b"): 0,
            ("doctor_errors", "b"): 1,
        }

    def test_the_job_runs_every_check(self) -> None:
        kept = doctor()
        assert kept == {"findings": CheckFinding.objects.count()}
        names = set(CheckFinding.objects.values_list("check_name", flat=True))
        assert names == set(offered_checks())

    def test_two_at_once_are_one(self) -> None:
        with held_lease(DOCTOR) as is_alone:
            assert is_alone
            assert doctor() == {"skipped": 1}
        assert not CheckFinding.objects.exists()


@pytest.mark.django_db
def test_settings_for_development_are_told(settings: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"debug": True, "auth": "noauth"})
    texts = [one.found for one in own.check_settings() if one.severity != Severity.OK]
    assert texts[:2] == ["HEADROOM_DEBUG is on", "HEADROOM_AUTH=noauth: all may do all"]
