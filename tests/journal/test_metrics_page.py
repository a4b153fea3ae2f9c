from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.core import GaugeMetricFamily, Metric
from pydantic import SecretStr

from commitments import metrics
from journal.conf import AccessToken
from journal.kept_sums import keep_sums
from journal.metrics import (
    PageBusy,
    ScrapeCollector,
    SharedPage,
    _collectors,
    at_scrape,
    facts_page,
    scrape_cursor,
)
from journal.models import KeptSums
from tests.factories import make_host

pytestmark = pytest.mark.django_db

SECRET = "metrics-secret"  # noqa: S105 - made up here


def page() -> str:
    response = Client().get("/metrics", headers={"Authorization": f"Bearer {SECRET}"})
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain")
    return response.content.decode()


def change(settings: Any, **fields: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update=fields)


@pytest.fixture(autouse=True)
def secret(settings: Any) -> None:
    fresh = settings.HEADROOM.metrics.model_copy(update={"keep_seconds": 0})
    change(settings, metrics_token=SecretStr(SECRET), metrics=fresh)


def test_every_series_of_the_endpoints_exists_from_the_start() -> None:
    text = page()
    for name, codes in {
        "info": (200, 405, 500, 503),
        "capacity": (200, 500, 503),
        "usage": (200, 400, 405, 500, 503),
        "quota": (204, 400, 405, 500, 503),
    }.items():
        for code in codes:
            series = f'cortex_committed_resource_{name}_api_requests_total{{status_code="{code}"}}'
            assert series in text
    stem = "cortex_committed_resource_change_api"
    for code in (200, 400, 405, 409, 500, 503):
        for dry_run in ("true", "false"):
            for result in ("accepted", "rejected", "error"):
                labels = f'dry_run="{dry_run}",result="{result}",status_code="{code}"'
                assert f"{stem}_requests_total{{{labels}}}" in text
    assert f'{stem}_timeouts_total{{dry_run="true"}}' in text
    assert f'{stem}_commitment_changes_total{{az="",dry_run="false",result="error"}}' in text
    assert (
        'cortex_committed_resource_usage_reconcile_duration_seconds_count{result="error"}' in text
    )


@pytest.mark.parametrize("header", ["", "Bearer wrong", f"Basic {SECRET}", SECRET])
def test_page_asks_for_its_token(header: str) -> None:
    headers = {"Authorization": header} if header else {}
    response = Client().get("/metrics", headers=headers)
    assert (response.status_code, response["WWW-Authenticate"]) == (401, "Bearer")
    assert b"cortex" not in response.content


@pytest.mark.parametrize("token", [None, SecretStr(""), SecretStr(" ")])
@pytest.mark.parametrize(("is_debug", "status"), [(False, 401), (True, 200)])
def test_without_a_token_in_the_settings_only_debug_opens_the_page(
    settings: Any, token: SecretStr | None, is_debug: bool, status: int
) -> None:
    change(settings, metrics_token=token)
    settings.DEBUG = is_debug
    for header in ("", "Bearer ", "Bearer None"):
        answer = Client().get("/metrics", headers={"Authorization": header})
        assert answer.status_code == status


def test_page_opens_for_its_token() -> None:
    assert "cortex_committed_resource" in page()


@pytest.mark.parametrize("auth", ["token", "keystone"])
def test_static_tokens_with_the_role_open_the_page(settings: Any, auth: str) -> None:
    def status(token: str) -> int:
        return Client().get("/metrics", headers={"Authorization": f"Bearer {token}"}).status_code

    def token(name: str, role: str) -> AccessToken:
        digest = sha256(f"{name}-token".encode()).hexdigest()
        return AccessToken(token_sha256=digest, name=name, roles=(role,))

    tokens = token("old", "metrics"), token("new", "metrics"), token("other", "admin")
    change(settings, auth=auth, tokens=tokens)
    assert [status(f"{name}-token") for name in ("old", "new", "other")] == [200, 200, 401]
    assert status(SECRET) == 200

    change(settings, metrics_token=None)
    settings.DEBUG = True
    assert (status("new-token"), status(SECRET), status("")) == (200, 401, 401)


@pytest.mark.django_db
def test_token_of_the_metrics_page_opens_nothing_else(settings: Any) -> None:
    token = AccessToken(token=SecretStr("metrics-token-0123"), name="p", roles=("metrics",))
    change(settings, auth="token", tokens=(token,))
    headers = {"X-Auth-Token": "metrics-token-0123"}
    for path in (
        "/commitments/v1/info",
        "/placement/resource_providers",
        "/api/v1/flavor-groups",
        "/scheduler/nova/external",
    ):
        assert Client().get(path, headers=headers).status_code in {403, 404, 405}, path


class CountedPage:
    """A page whose computation waits until it may go on, and a clock that counts its readers."""

    def __init__(self) -> None:
        self.computed = 0
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.asked = threading.Semaphore(0)

    def compute(self) -> bytes:
        self.computed += 1
        self.begun.set()
        assert self.may_end.wait(30)
        return b"page %d" % self.computed

    def clock(self) -> float:
        self.asked.release()
        return time.monotonic()


def test_scrapes_at_the_same_time_share_one_computation_and_a_later_one_sees_news() -> None:
    counted = CountedPage()
    shared = SharedPage(counted.compute, clock=counted.clock)
    with ThreadPoolExecutor(8) as pool:
        scrapes = [pool.submit(shared.get, keep_seconds=0) for _ in range(8)]
        assert all(counted.asked.acquire(timeout=30) for _ in scrapes)
        counted.may_end.set()
        assert {scrape.result() for scrape in scrapes} == {b"page 1"}
    assert shared.get(keep_seconds=3600) == b"page 1"
    assert shared.get(keep_seconds=0) == b"page 2"


def test_a_scrape_does_not_wait_for_ever() -> None:
    counted = CountedPage()
    shared = SharedPage(counted.compute)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(shared.get, keep_seconds=0)
        assert counted.begun.wait(30)
        with pytest.raises(PageBusy):
            shared.get(keep_seconds=0, patience_seconds=0)
        counted.may_end.set()
        assert slow.result() == b"page 1"


def test_a_page_that_failed_is_computed_again() -> None:
    answers: list[bytes] = []

    def compute() -> bytes:
        if not answers:
            answers.append(b"page")
            raise OperationalError
        return answers[0]

    shared = SharedPage(compute)
    with pytest.raises(OperationalError):
        shared.get(keep_seconds=0)
    assert shared.get(keep_seconds=0) == b"page"


class Gauges:
    """A collector that reads when a scrape comes."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.rows: dict[str, int] = {}
        self.is_broken = is_broken

    def collect(self) -> Iterator[Metric]:
        if self.is_broken:
            raise OperationalError
        family = GaugeMetricFamily("test_rows", "Rows.", labels=["name"])
        for name, count in self.rows.items():
            family.add_metric([name], count)
        yield family


@pytest.fixture
def gauges() -> Iterator[Gauges]:
    collector = Gauges()
    checked: ScrapeCollector = collector
    at_scrape(checked)
    yield collector
    _collectors.remove(checked)


def test_scrape_time_gauges_forget_rows_that_are_gone(gauges: Gauges) -> None:
    gauges.rows = {"a": 1}
    assert 'test_rows{name="a"} 1.0' in page()
    gauges.rows = {"b": 2}
    assert 'test_rows{name="a"}' not in page()


def test_scrape_survives_a_database_that_is_down(gauges: Gauges) -> None:
    gauges.rows = {"a": 1}
    gauges.is_broken = True
    text = page()
    assert "test_rows" not in text
    assert "cortex_committed_resource" in text


class Reader:
    """A collector that asks the database."""

    def __init__(self, name: str, statement: str) -> None:
        self.name = name
        self.statement = statement

    def collect(self) -> Iterator[Metric]:
        with scrape_cursor() as cursor:
            cursor.execute(self.statement)
            ((value,),) = cursor.fetchall()
        yield GaugeMetricFamily(self.name, "Read.", value=value)


def scraped(*collectors: ScrapeCollector) -> tuple[list[str], list[str]]:
    """Return the series told when some are the only collectors, and the statements of that."""
    kept = list(_collectors)
    _collectors[:] = collectors
    try:
        with CaptureQueriesContext(connection) as statements:
            lines = facts_page().decode().splitlines()
    finally:
        _collectors[:] = kept
    told = [line for line in lines if not line.startswith("#")]
    return told, [statement["sql"] for statement in statements]


def test_a_statement_that_fails_spoils_no_other_collector() -> None:
    good, bad = Reader("test_good", "SELECT 1"), Reader("test_bad", "SELECT 1 / 0")
    also, rest = Reader("test_also", "SELECT 2"), Reader("test_rest", "SELECT 3")
    told, _ = scraped(good, bad, also, Gauges(is_broken=True), bad, rest, bad)
    assert told == ["test_good 1.0", "test_also 2.0", "test_rest 3.0"]


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_breaks_at_a_scrape_spoils_no_other_collector() -> None:
    killer = Reader("test_bad", "SELECT pg_terminate_backend(pg_backend_pid())::int")
    told, _ = scraped(Reader("test_good", "SELECT 1"), killer, Reader("test_rest", "SELECT 2"))
    assert told == ["test_good 1.0", "test_rest 2.0"]


def test_all_collectors_read_in_one_transaction() -> None:
    _, statements = scraped(*_collectors)
    assert len(_collectors) > 15
    assert sum(one.startswith(("SAVEPOINT", "BEGIN")) for one in statements) == 1
    assert sum("set_config('statement_timeout'" in one for one in statements) == 1


def test_what_several_collectors_need_is_read_once() -> None:
    keep_sums()
    _, statements = scraped(*_collectors)
    assert sum("figures FROM journal_keptsums" in one for one in statements) == 1
    assert sum("FROM hosts_host LIMIT" in one for one in statements) == 1
    assert sum("FROM capacity_projectquota LIMIT" in one for one in statements) == 1
    assert len(statements) <= 34


def test_scrapes_remember_nothing_of_each_other(settings: Any) -> None:
    keep_sums()
    first, _ = scraped(*_collectors)
    change(settings, metrics=settings.HEADROOM.metrics.model_copy(update={"hosts_up_to": 1}))
    make_host("h1")
    make_host("h2")
    KeptSums.objects.all().delete()
    second, _ = scraped(*_collectors)
    usage = "cortex_kvm_host_capacity_total{"
    assert not any(line.startswith(usage) for line in first)
    (summed, _) = (line for line in second if line.startswith(usage))
    assert 'compute_host=""' in summed


def test_zone_labels_are_bounded() -> None:
    labels = metrics._BoundedLabels(2)
    assert [labels.label(zone) for zone in "abca"] == ["a", "b", "other", "a"]


MULTIPROCESS = """
import django, os
django.setup()
from commitments import metrics
from journal.metrics import metrics_page
def count():
    metrics.INFO.observe(status_code=200, seconds=0.1)
for _ in range(2):
    if (child := os.fork()) == 0:
        count()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
count()
print(metrics_page().decode())
"""


def test_without_a_database_the_counters_of_several_processes_add_up(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "DATABASE_URL": "postgresql:///none?host=/nonexistent",
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "DJANGO_SETTINGS_MODULE": "config.settings",
    }
    done = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", MULTIPROCESS],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    name = "cortex_committed_resource_info_api_requests_total"
    assert f'{name}{{status_code="200"}} 3.0' in done.stdout
    assert len(list(tmp_path.glob("counter_*.db"))) == 3
    assert 'cortex_role{role="web"} 1.0' in done.stdout
    assert "cortex_clock_deviation_seconds" not in done.stdout
