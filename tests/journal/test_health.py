from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from journal import health
from journal.models import Heartbeat
from journal.services import record_heartbeat


@pytest.fixture(autouse=True)
def fresh_migrations_check() -> None:
    health.forget_applied_migrations()


def readyz() -> tuple[int, dict[str, Any]]:
    response = Client(raise_request_exception=False).get("/readyz")
    page: dict[str, Any] = response.json()
    return response.status_code, page


def failing(page: dict[str, Any]) -> set[str]:
    return {name for name, check in page["checks"].items() if not check["ok"]}


class BrokenConnection:
    """A database that does not answer."""

    def cursor(self) -> Any:
        message = "connection to server at 10.0.0.1 failed"
        raise OperationalError(message)


def break_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "connection", BrokenConnection())


def test_healthz_answers_without_database(monkeypatch: pytest.MonkeyPatch) -> None:
    break_database(monkeypatch)
    response = Client().get("/healthz")
    assert (response.status_code, response.content) == (200, b"ok")
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert "no-cache" in response["Cache-Control"]


@pytest.mark.django_db
def test_everything_working_is_ready() -> None:
    record_heartbeat("beat")
    status, page = readyz()
    assert (status, page["ready"], failing(page)) == (200, True, set())
    assert set(page["checks"]) == {"database", "broker", "migrations", "beat"}


def test_database_down_is_503_and_not_500(monkeypatch: pytest.MonkeyPatch) -> None:
    break_database(monkeypatch)
    status, page = readyz()
    assert status == 503
    assert failing(page) == {"database", "migrations", "beat"}
    assert "10.0.0.1" not in str(page)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "url", ["unix:///nonexistent/redis.sock", "redis://127.0.0.1:1/0", "nonsense"]
)
def test_broker_down_is_503_and_not_500(settings: Any, url: str) -> None:
    record_heartbeat("beat")
    settings.REDIS_URL = url
    status, page = readyz()
    assert (status, failing(page)) == (503, {"broker"})


@pytest.mark.django_db
def test_no_beat_ever_is_not_ready() -> None:
    status, page = readyz()
    assert (status, failing(page)) == (503, {"beat"})


@pytest.mark.django_db
@pytest.mark.parametrize(("age_seconds", "is_ready"), [(100, True), (200, False)])
def test_old_beat_is_not_ready(age_seconds: int, is_ready: bool) -> None:
    Heartbeat.objects.create(name="beat", beaten_at=timezone.now() - timedelta(seconds=age_seconds))
    status, page = readyz()
    assert page["ready"] is is_ready
    assert status == (200 if is_ready else 503)


@pytest.mark.django_db
def test_missing_migrations_are_not_ready_until_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    record_heartbeat("beat")
    plans = [["0007_later"], []]

    def plan(self: Any, targets: Any) -> Any:
        return plans.pop(0)

    monkeypatch.setattr("django.db.migrations.executor.MigrationExecutor.migration_plan", plan)
    assert failing(readyz()[1]) == {"migrations"}
    assert readyz()[0] == 200
    assert readyz()[0] == 200  # applied once is applied: the files are not read again


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_health_pages_refuse_to_be_posted_to(path: str) -> None:
    assert Client().post(path).status_code == 405


def test_home_leads_to_the_admin() -> None:
    response = Client().get("/")
    assert (response.status_code, response["Location"]) == (302, "/admin/")
