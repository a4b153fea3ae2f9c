"""When a standby may be read from (ADR 36)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from config.environment import ConfigurationError, load_environment
from journal.history import read_moment
from journal.standby.reads import StandbyReadsMiddleware
from journal.standby.watch import Known, Primary, StandbyWatch, Standing, judge

SYSTEM = "7300000000000000001"


def sample(at: float, written_bytes: int, timeline: int = 1) -> Primary:
    history = f"{timeline:08X} {SYSTEM} 1700000000.1 base/16384"
    return Primary(at=at, written_bytes=written_bytes, history=history)


def standing(replayed_bytes: int, *, timeline: int = 1, system: str = SYSTEM) -> Standing:
    replayed = f"0/{replayed_bytes:X}"
    return Standing(is_in_recovery=True, system=system, timeline=timeline, replayed=replayed)


IDLE = (sample(1.0, 100), sample(2.0, 100))
BUSY = (sample(1.0, 100), sample(2.0, 200), sample(3.0, 300))


@pytest.mark.parametrize(
    ("there", "samples", "expected"),
    [
        (standing(100), IDLE, (2.0, "")),
        (standing(300), BUSY, (3.0, "")),
        (standing(299), BUSY, (2.0, "")),
        (standing(100), BUSY, (1.0, "")),
        (standing(99), BUSY, (None, "behind")),
        (standing(900, timeline=2), BUSY, (None, "other_timeline")),
        (standing(900, system="7"), BUSY, (None, "other_system")),
        # The primary was another one: what it had written says nothing of this timeline.
        (standing(150, timeline=2), (sample(1.0, 100), sample(2.0, 200, 2)), (None, "behind")),
    ],
)
def test_a_standby_is_as_fresh_as_the_primary_was_that_it_caught_up_with(
    there: Standing, samples: Sequence[Primary], expected: tuple[float | None, str]
) -> None:
    assert judge(there, samples) == expected


def test_a_server_that_was_promoted_is_none() -> None:
    promoted = Standing(is_in_recovery=False, system=SYSTEM, timeline=1, replayed="0/900")
    assert judge(promoted, BUSY) == (None, "not_a_standby")


def test_a_standby_that_had_more_than_the_primary_is_of_another_past() -> None:
    assert judge(standing(400), BUSY, before_bytes=300) == (3.0, "")
    assert judge(standing(400), BUSY, before_bytes=301) == (None, "ahead_of_primary")


def test_fresh_standbys_are_chosen_in_turn_and_for_what_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = StandbyWatch(["one", "two"], most_lag_seconds=5, look_seconds=1, clock=lambda: 10.0)
    monkeypatch.setattr(StandbyWatch, "_ensure_thread", lambda self: None)
    assert watch.choose() is None
    watch._known = {
        "one": Known(fresh_as_of=5.0, replayed_bytes=100, reason=""),
        "two": Known(fresh_as_of=9.0, replayed_bytes=200, reason=""),
    }
    assert {watch.choose(), watch.choose()} == {"one", "two"}
    assert {watch.choose(written_bytes=150) for _ in range(3)} == {"two"}
    assert watch.choose(written_bytes=201) is None
    watch._known["one"] = Known(fresh_as_of=4.9, replayed_bytes=100, reason="")
    assert {watch.choose() for _ in range(3)} == {"two"}
    watch.leave_out("two")
    assert watch.choose() is None


def test_looks_come_more_often_than_what_they_tell_grows_too_old() -> None:
    given = {
        "HEADROOM_DEBUG": "true",
        "HEADROOM_REPLICAS__MOST_LAG_SECONDS": "1",
        "HEADROOM_REPLICAS__LOOK_SECONDS": "0.6",
    }
    with pytest.raises(ConfigurationError, match="half of most_lag_seconds"):
        load_environment(given)


def ask_projects(_request: HttpRequest) -> HttpResponse:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return HttpResponse("of a standby")


@pytest.mark.parametrize("catches", [False, True])
def test_a_standby_that_died_is_left_out_and_the_view_keeps_its_standbys(
    monkeypatch: pytest.MonkeyPatch, django_db_blocker: Any, catches: bool
) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        try:
            return ask_projects(request)
        except Exception:
            if not catches:
                raise
            return HttpResponse(status=503)

    here = connections.settings["default"]
    monkeypatch.setitem(connections.settings, "gone", {**here, "HOST": "127.0.0.1", "PORT": "1"})
    watch = StandbyWatch(["gone"], most_lag_seconds=5, look_seconds=1, clock=lambda: 10.0)
    monkeypatch.setattr(StandbyWatch, "_ensure_thread", lambda self: None)
    watch._known = {"gone": Known(fresh_as_of=9.0, reason="")}
    middleware = StandbyReadsMiddleware(view)
    middleware.watch = watch
    request = RequestFactory().get("/api/v1/projects")

    with django_db_blocker.unblock():  # no test's database: the only one asked is gone
        assert middleware.process_view(request, view, (), {}) is None
    assert watch.choose() is None
    assert not middleware._primary_until


@pytest.mark.django_db
def test_a_view_that_follows_changes_is_the_primarys_and_the_standby_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = StandbyWatch(["default"], most_lag_seconds=5, look_seconds=1, clock=lambda: 10.0)
    monkeypatch.setattr(StandbyWatch, "_ensure_thread", lambda self: None)
    watch._known = {"default": Known(fresh_as_of=9.0, reason="")}  # as if it were one

    def view(request: HttpRequest) -> HttpResponse:
        read_moment()
        return ask_projects(request)

    middleware = StandbyReadsMiddleware(view)
    middleware.watch = watch
    request = RequestFactory().get("/api/v1/hosts")
    assert middleware.process_view(request, view, (), {}) is None
    assert watch.choose() == "default", "others are answered there"
    assert list(middleware._primary_until) == ["GET /api/v1/hosts"]
    assert view(request).status_code == 200
