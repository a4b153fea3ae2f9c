"""Alert rules against the series that a real web server, worker and beat export.

A rule on a metric that nobody exports, or on a label that it does not have, never fires, and no
test of the rule with made-up series finds out.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pytest
import yaml
from django.db import connection, transaction
from django.utils import timezone

from bridge.models import MirrorState
from capacity.models import HostCapacity, ReservationKind
from commitments.models import CompactionRun, SlotCheck, SyncOutcome, SyncRun
from commitments.services import import_runs, sync_runs
from config.launcher.demo import ADDRESS, choose_port
from config.launcher.processes import wait_until
from core.doctor.findings import fine
from core.doctor.kept import keep_findings
from failover.choices import RunOutcome
from failover.drill_models import CoverageAccount, EvacuationMove, EvacuationPlan, FailureDrill
from failover.models import FailoverReservation, FailoverRun
from hosts.models import FeedPass
from journal.metrics import facts_page
from journal.models import Heartbeat, LogConsumer
from tests.e2e.processes import (
    ADMIN,
    ALONE,
    PATIENCE_SECONDS,
    TOKENS,
    Process,
    WebServer,
    Worker,
)
from tests.factories import (
    make_commitment,
    make_group,
    make_group_capacity,
    make_host,
    make_reservation,
    make_slot,
)
from webhooks.models import Endpoint

OPERATOR = "e2e-operator-token-0123456789"
ROOT = Path(__file__).resolve().parents[2]
RULES = sorted((ROOT / "deploy" / "prometheus").glob("*.rules.yaml"))
TESTS = sorted((ROOT / "deploy" / "prometheus").glob("*.test.yaml"))
OURS = re.compile(r"\b((?:cortex|placement)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\bby \(([^)]*)\)")
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? \S+$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
#: Put there by Prometheus.
OF_TARGET = {"instance", "job"}
#: Counters of work that workers do, by alert. Web processes have them too, at zero for ever.
OF_WORKERS = (
    "cortex_committed_resource_syncer_errors_total",
    "cortex_committed_resource_syncer_runs_total",
    "cortex_committed_resource_syncer_duration_seconds_count",
    "cortex_committed_resource_host_oversubscribed_evicted_reservations_total",
    "cortex_quota_reconcile_total",
    "placement_usage_drift_total",
)

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What each role answered to a scrape."""

    web: str
    worker: str
    beat: str

    def series(self) -> Mapping[str, set[Labels]]:
        """Return the sets of labels that each name comes with."""
        return series_of("\n".join((self.web, self.worker, self.beat)))


def series_of(page: str) -> Mapping[str, set[Labels]]:
    found: dict[str, set[Labels]] = {}
    for name, labels in SAMPLE.findall(page):
        found.setdefault(name, set()).add(frozenset(LABEL.findall(labels)))
    return found


def value(page: str, series: str) -> float | None:
    found = re.search(rf"^{re.escape(series)} (\S+)$", page, re.MULTILINE)
    return None if found is None else float(found[1])


def ask_exporter(port: int) -> tuple[int, str]:
    link = http.client.HTTPConnection(ADDRESS, port, timeout=30)
    try:
        link.request("GET", "/metrics", headers={"Authorization": f"Bearer {ADMIN}"})
        answer = link.getresponse()
        return answer.status, answer.read().decode()
    except OSError:
        return 0, ""
    finally:
        link.close()


def fill_region() -> None:
    """Make a row for every fact that an alert looks at."""
    now = timezone.now()
    group = make_group("hana_1", flavors=[("small", 4096, 4)])
    host = make_host("h1", zone="az-a", memory_gib=8, vcpus=8)
    make_group_capacity(group)
    commitment = make_commitment(is_accepted=False, ready_reason="Reserving", allow_rejection=False)
    make_slot(commitment, host)
    for source in (sync_runs.SOURCE, import_runs.SOURCE):
        SyncRun.objects.create(
            source=source,
            started_at=now,
            finished_at=now,
            outcome=SyncOutcome.SUCCESS,
            counts={"understood": 1, "missing": 0},
        )
    SlotCheck.objects.create(zone="az-a", listed_vms=0, checked_at=now)
    CompactionRun.objects.create(zone="az-a", started_at=now, finished_at=now, outcome="done")
    FailoverRun.objects.create(
        zone="az-a",
        started_at=now,
        finished_at=now,
        outcome=RunOutcome.DONE,
        counts={"total_vms": 1, "total_reservations": 1, "vms_missing_failover": 1},
    )
    held = make_reservation(host, kind=ReservationKind.FAILOVER)
    FailoverReservation.objects.create(reservation=held, name="f1")
    CoverageAccount.objects.create(zone="az-a", accounted_at=now)
    for name in ("beat", "queue:steady", "queue:long", "listener"):
        Heartbeat.objects.update_or_create(name=name, defaults={"beaten_at": now})
    for kind in ("changes", "hosts"):
        FeedPass.objects.create(kind=kind, listed_at=now)
    MirrorState.objects.create(kind="CommittedResource", source_id=commitment.pk)
    LogConsumer.objects.create(name="bridge", moved_at=now)
    Endpoint.objects.create(name="one", url="https://one.example/", secret_name="one")
    keep_findings([replace(fine("all is well"), check="broker")])
    FailureDrill.objects.create(
        zone="az-a",
        scope="host",
        started_at=now,
        finished_at=now,
        cases=1,
        simulated=1,
        unprotected_vms=0,
    )
    plan = EvacuationPlan.objects.create(zone="az-a", state="open", started_at=now, changed_at=now)
    EvacuationMove.objects.create(
        plan=plan, vm_uuid="vm-1", state="unprotected", from_host=host, changed_at=now
    )
    recount = HostCapacity.objects.filter(host=host)
    recount.update(oversubscribed_since=now, allocated_memory_bytes=9 << 30)


@pytest.fixture
def web(transactional_db: None, tmp_path: Path) -> Iterator[WebServer]:
    """A web server that waits briefly for locks, with a caller who may write to Placement."""
    del transactional_db
    operator = {"token": OPERATOR, "name": "nova", "roles": ["admin"]}
    overrides = {
        "HEADROOM_TOKENS": json.dumps([*TOKENS, operator]),
        "HEADROOM_LOCK_TIMEOUT_SECONDS": "0.2",
    }
    with WebServer(directory=tmp_path, overrides=overrides) as server:
        yield server


@pytest.fixture
def beat(tmp_path: Path) -> Iterator[tuple[Process, int]]:
    directory, port = tmp_path / "beat", choose_port(0)
    directory.mkdir()
    process = Process(
        role="beat",
        directory=directory,
        arguments=["--schedule", str(directory / "schedule")],
        overrides={"HEADROOM_METRICS__BEAT_PORT": str(port)},
    )
    process.start()
    yield process, port
    process.kill()


@pytest.fixture
def worker(transactional_db: None, tmp_path: Path) -> Iterator[tuple[Worker, int]]:
    del transactional_db
    directory, port = tmp_path / "worker", choose_port(0)
    directory.mkdir()
    process = Worker(
        directory=directory,
        processes=2,
        overrides={"HEADROOM_METRICS__WORKER_PORT": str(port)},
    )
    process.start()
    yield process, port
    process.forget()


def provoke(web: WebServer, worker: Worker, worker_port: int) -> None:
    """Let happen once what makes the series that are not there before."""
    assert web.send("GET", "/placement/resource_providers").status == 403  # counted as well
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE placement_provider IN ACCESS EXCLUSIVE MODE")
        provider = {"name": "h1", "uuid": str(UUID(int=1))}
        failed = web.send("POST", "/placement/resource_providers", provider, token=OPERATOR)
    assert failed.status == 503, failed.body
    report = web.send("POST", "/commitments/v1/report-capacity", {"allAZs": ["az-a"]})
    assert report.status == 200, report.body
    for task in ("commitments.reconcile_quota", "capacity.check_oversubscription"):
        worker.send(task)
    counted = 'cortex_quota_reconcile_total{result="success"}'
    evicted = 'cortex_committed_resource_host_oversubscribed_evicted_reservations_total{az="az-a"}'
    assert wait_until(
        lambda: (
            value(ask_exporter(worker_port)[1], counted) == 1
            and value(ask_exporter(worker_port)[1], evicted) == 0
        ),
        PATIENCE_SECONDS,
    ), worker.log()


def scraped(web: WebServer, worker_port: int, beat_port: int) -> Pages:
    page = web.send("GET", "/metrics")
    assert page.status == 200
    return Pages(
        web=page.body.decode(), worker=ask_exporter(worker_port)[1], beat=ask_exporter(beat_port)[1]
    )


def test_every_rule_is_about_series_that_the_processes_export(
    web: WebServer, worker: tuple[Worker, int], beat: tuple[Process, int]
) -> None:
    fill_region()
    (worker_process, worker_port), (beat_process, beat_port) = worker, beat
    assert wait_until(lambda: ask_exporter(beat_port)[0] == 200, PATIENCE_SECONDS), (
        beat_process.log()
    )
    provoke(web, worker_process, worker_port)
    pages = scraped(web, worker_port, beat_port)

    check_selectors(pages.series())
    check_made_up_series(pages.series())
    check_roles(pages)


def rules() -> Iterator[tuple[str, str]]:
    """Return name and expression of each rule."""
    for path in RULES:
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                yield rule.get("alert") or rule["record"], rule["expr"]


def check_selectors(exported: Mapping[str, set[Labels]]) -> None:
    """Every metric of a rule is exported with the labels and values that the rule asks for."""
    wrong = []
    for rule, expression in rules():
        grouped = {
            label.strip()
            for labels in GROUPING.findall(expression)
            for label in labels.split(",")
            if label.strip()
        } - OF_TARGET
        for name, matchers in OURS.findall(expression):
            series = [dict(labels) for labels in exported.get(name, ())]
            if not any(grouped <= real.keys() and selects(matchers, real) for real in series):
                wrong.append((rule, name, matchers, sorted(grouped), series))
    assert wrong == []


def selects(matchers: str, real: Mapping[str, str]) -> bool:
    """Return whether a series has what the braces of an expression ask for."""
    return all(
        name in OF_TARGET
        or (
            name in real
            and (
                (re.fullmatch(wanted, real[name]) is not None)
                if "~" in operator
                else real[name] == wanted
            )
            != operator.startswith("!")
        )
        for name, operator, wanted in MATCHER.findall(matchers)
    )


def check_made_up_series(exported: Mapping[str, set[Labels]]) -> None:
    """The series that promtool feeds to the rules have the labels of real ones."""
    wrong = []
    for path in TESTS:
        for case in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]:
            for given in case["input_series"]:
                for name, labels in OURS.findall(given["series"]):
                    told = {label for label, _, _ in MATCHER.findall(labels)} - OF_TARGET
                    if not any(told <= dict(real).keys() for real in exported.get(name, ())):
                        wrong.append((case.get("name"), given["series"]))
    assert wrong == []


def check_roles(pages: Pages) -> None:
    """Facts are told by web alone, events by the process in which they happened."""
    for role, page in (("web", pages.web), ("worker", pages.worker), ("beat", pages.beat)):
        assert value(page, f'cortex_role{{role="{role}"}}') == 1
    assert value(pages.web, 'cortex_quota_reconcile_total{result="success"}') == 0
    assert set(OF_WORKERS) <= set(series_of(pages.worker))
    facts = series_of(facts_page().decode()).keys()
    assert "cortex_committed_resource_capacity_ready" in facts
    assert facts <= series_of(pages.web).keys()
    assert not facts & series_of(pages.worker).keys()
    assert not facts & series_of(pages.beat).keys()


def test_metrics_of_a_web_server_without_a_token_in_its_settings_stay_closed(
    transactional_db: None, tmp_path: Path
) -> None:
    del transactional_db
    server = WebServer(directory=tmp_path, overrides={"HEADROOM_METRICS_TOKEN": "", **ALONE})
    server.start()
    try:
        assert server.send("GET", "/metrics").status == 401
        assert server.send("GET", "/metrics", token=None).status == 401
    finally:
        server.end()
