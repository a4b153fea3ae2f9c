"""When a commitment must end: liquid 4.5, 11.2; the clock is the database's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from capacity.models import Reservation
from commitments.models import Commitment
from journal.clock import database_now
from tests.api.liquid_client import LiquidClient, assert_text
from tests.factories import make_group, make_group_capacity, make_host

pytestmark = pytest.mark.django_db

RAM, CORES = "hw_version_hana_1_ram", "hw_version_hana_1_cores"
A = "aaaaaaaa-0000-4000-8000-000000000001"
LATER = "2099-01-01T00:00:00Z"
PAST = "2020-01-01T00:00:00Z"
CREATES = ("planned", "pending", "guaranteed", "confirmed")


@pytest.fixture
def cloud(liquid: LiquidClient) -> LiquidClient:
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    make_host("h1", zone="az-a", memory_gib=10, vcpus=40)
    make_group_capacity("hana_1", "az-a", total_vcpus=40)
    return liquid


def entry(old: str | None, new: str | None, expires_at: str | None) -> dict[str, Any]:
    return {"uuid": A, "oldStatus": old, "newStatus": new, "amount": 2, "expiresAt": expires_at}


def send(
    cloud: LiquidClient,
    entries: dict[str, dict[str, Any]],
    *,
    resource: str = RAM,
    is_dry_run: bool = False,
) -> Any:
    by_project = {}
    for project, one in entries.items():
        totals = {
            f"total{status.title()}{when}": one["amount"] * (one[side] == status)
            for status in ("confirmed", "guaranteed")
            for side, when in (("oldStatus", "Before"), ("newStatus", "After"))
        }
        by_project[project] = {"byResource": {resource: {**totals, "commitments": [one]}}}
    body = {
        "az": "az-a",
        "infoVersion": cloud.get_info()["version"],
        "dryRun": is_dry_run,
        "byProject": by_project,
    }
    return cloud.send("POST", cloud.change, body)


@pytest.mark.parametrize("resource", [RAM, CORES])
@pytest.mark.parametrize("new", CREATES)
@pytest.mark.parametrize(
    ("expires_at", "words"),
    [
        pytest.param(None, "expiresAt is missing", id="missing"),
        pytest.param("0001-01-01T00:00:00Z", "expiresAt is missing", id="zero time"),
        pytest.param(PAST, f"expiresAt {PAST} has passed: it is 20", id="past"),
    ],
)
def test_a_create_that_does_not_end_later_is_refused(
    cloud: LiquidClient, resource: str, new: str, expires_at: str | None, words: str
) -> None:
    answer = send(cloud, {"alpha": entry(None, new, expires_at)}, resource=resource)
    if new in {"guaranteed", "confirmed"}:
        assert answer.status_code == 200
        assert answer.json()["rejectionReason"].startswith(f"commitment {A}: {words}")
    else:
        assert_text(answer, 422, f"commitment {A}: {words}")
    assert not Commitment.objects.exists()
    assert not Reservation.objects.exists()


def test_an_exact_dry_run_refuses_as_the_create_would(cloud: LiquidClient, configure: Any) -> None:
    configure(liquid={"dry_run_mode": "exact"})
    answer = send(cloud, {"alpha": entry(None, "confirmed", PAST)}, is_dry_run=True)
    assert "has passed" in answer.json()["rejectionReason"]


@pytest.mark.parametrize("new", [None, "superseded", "expired"])
@pytest.mark.parametrize("expires_at", [None, PAST])
@pytest.mark.parametrize("is_known", [False, True], ids=["unknown", "known"])
def test_deletes_and_states_that_end_need_no_end(
    cloud: LiquidClient, new: str | None, expires_at: str | None, *, is_known: bool
) -> None:
    if is_known:
        assert send(cloud, {"alpha": entry(None, "confirmed", LATER)}).json() == {}
    answer = send(cloud, {"alpha": entry("confirmed", new, expires_at)})
    assert (answer.status_code, answer.json()) == (200, {})
    assert not Reservation.objects.exists()


def test_a_commitment_that_just_ended_is_still_moved(cloud: LiquidClient) -> None:
    send(cloud, {"alpha": entry(None, "confirmed", LATER)})
    moved = {"alpha": entry("confirmed", None, PAST), "beta": entry(None, "confirmed", PAST)}
    assert send(cloud, moved).json() == {}
    assert Commitment.objects.get().project_id == "beta"


@pytest.fixture
def fast_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give this process a clock that is two days ahead."""
    true_now = timezone.now

    def now() -> datetime:
        return true_now() + timedelta(days=2)

    monkeypatch.setattr(timezone, "now", now)
    yield
    monkeypatch.undo()


@pytest.mark.usefixtures("fast_clock")
def test_the_clock_of_the_process_does_not_decide(cloud: LiquidClient) -> None:
    tomorrow = (database_now() + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert send(cloud, {"alpha": entry(None, "confirmed", tomorrow)}).json() == {}
    assert Reservation.objects.exists()
    past = (database_now() - timedelta(seconds=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    answer = send(cloud, {"alpha": {**entry(None, "confirmed", past), "uuid": A[::-1]}})
    assert "has passed" in answer.json()["rejectionReason"]
