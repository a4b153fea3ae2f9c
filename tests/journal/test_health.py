from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.utils import timezone

from journal import health
from journal.models import Heartbeat
from journal.services import record_heartbeat


@pytest.fixture(autouse=True)
def fresh_migrations_check() -> None:
    health._migrations_applied.clear()


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


def statusz() -> dict[str, Any]:
    response = Client(raise_request_exception=False).get("/statusz")
    assert response.status_code == 200  # it tells, and decides nothing
    page: dict[str, Any] = response.json()
    return page


@pytest.mark.django_db
def test_database_and_migrations_make_ready_and_nothing_else(settings: Any) -> None:
    settings.REDIS_URL = "nonsense"
    status, page = readyz()
    assert (status, page["ready"], failing(page)) == (200, True, set())
    assert set(page["checks"]) == {"database", "migrations"}


@pytest.mark.django_db
def test_status_tells_of_broker_and_beat_as_well() -> None:
    record_heartbeat("beat")
    page = statusz()
    assert (page["ok"], failing(page)) == (True, set())
    names = {"database", "migrations", "broker", "beat", "feed", "hypervisors", "limes"}
    assert set(page["checks"]) == names


def test_database_down_is_503_and_not_500(monkeypatch: pytest.MonkeyPatch) -> None:
    break_database(monkeypatch)
    status, page = readyz()
    assert status == 503
    assert failing(page) == {"database", "migrations"}
    assert "10.0.0.1" not in str(page)
    assert {"database", "migrations", "beat"} <= failing(statusz())


@pytest.mark.django_db
@pytest.mark.parametrize(
    "url", ["unix:///nonexistent/redis.sock", "redis://127.0.0.1:1/0", "nonsense"]
)
def test_broker_down_is_told(settings: Any, url: str) -> None:
    record_heartbeat("beat")
    settings.REDIS_URL = url
    assert failing(statusz()) == {"broker"}


@pytest.mark.django_db
def test_no_beat_ever_is_told() -> None:
    assert failing(statusz()) == {"beat"}


@pytest.mark.django_db
@pytest.mark.parametrize(("age_seconds", "is_well"), [(100, True), (200, False)])
def test_old_beat_is_told(age_seconds: int, is_well: bool) -> None:
    Heartbeat.objects.create(name="beat", beaten_at=timezone.now() - timedelta(seconds=age_seconds))
    page = statusz()
    assert (page["ok"], page["checks"]["beat"]["ok"]) == (is_well, is_well)


@pytest.mark.django_db
def test_migration_that_only_the_database_knows_leaves_us_ready() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_migrations (app, name, applied)"
            " VALUES ('capacity', '9999_of_the_next_version', now())"
        )
    assert readyz()[0] == 200


@pytest.mark.django_db
def test_missing_migrations_are_not_ready_until_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [["0007_later"], []]

    def plan(self: Any, targets: Any) -> Any:
        return plans.pop(0)

    monkeypatch.setattr("django.db.migrations.executor.MigrationExecutor.migration_plan", plan)
    assert failing(readyz()[1]) == {"migrations"}
    assert readyz()[0] == 200
    assert readyz()[0] == 200  # applied once is applied: the files are not read again


@pytest.mark.parametrize("path", ["/livez", "/healthz", "/readyz", "/statusz", "/metrics"])
def test_health_pages_refuse_to_be_posted_to(path: str) -> None:
    assert Client().post(path).status_code == 405


def test_home_leads_to_the_admin() -> None:
    response = Client().get("/")
    assert (response.status_code, response["Location"]) == (302, "/admin/")
