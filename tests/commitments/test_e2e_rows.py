"""What the end-to-end checks send, step by step (the tables of spec commitments, 23)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from commitments.e2e.checks import CheckSettings, run_checks
from commitments.e2e.client import LiquidServer
from commitments.management.commands.check_commitments import Command
from core.server_checks.results import CheckEnd, CheckFailed

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MS = int(NOW.timestamp() * 1000)
ZONE, RESOURCE, PROJECT = "az-a", "g_ram", "p1"
FULL = "1 commitment(s) failed to apply:\n- commitment x: insufficient capacity: 0/1 slots"
Step = tuple[str, str | None, str | None, int]


class Recorder(LiquidServer):
    """A server that notes the change requests it gets and answers them as it is told."""

    def __init__(self, answers: Callable[[int], str], *, version: int = 7) -> None:
        super().__init__(base_url="http://nowhere")
        self.bodies: list[Mapping[str, Any]] = []
        self.usage_reports = 0
        self.breaks_usage = False
        self._answers, self._version = answers, version

    def info(self) -> dict[str, Any]:
        resource = {
            "unit": "GiB",
            "topology": "az-aware",
            "categoryName": "g",
            "hasCapacity": True,
            "hasQuota": False,
            "handlesCommitments": True,
        }
        return {
            "version": self._version,
            "displayName": "compute",
            "categories": {"g": {"displayName": "g"}},
            "resources": {RESOURCE: resource},
        }

    def report_capacity(self, zones: Any) -> dict[str, Any]:
        per_zone = {zone: {"capacity": 1} for zone in zones}
        return {"infoVersion": self._version, "resources": {RESOURCE: {"perAZ": per_zone}}}

    def report_usage(self, project_id: str, zones: Any) -> dict[str, Any]:
        self.usage_reports += 1
        if self.breaks_usage and self.usage_reports > 1:
            raise CheckFailed("usage is broken")
        per_zone = {zone: {"usage": 0} for zone in zones}
        return {"infoVersion": self._version, "resources": {RESOURCE: {"perAZ": per_zone}}}

    def change(self, body: Mapping[str, Any]) -> str:
        self.bodies.append(body)
        return self._answers(len(self.bodies) - 1)


def accept(_: int) -> str:
    return ""


def ran(server: Recorder, *, keeps: bool = False) -> dict[str, CheckEnd]:
    settings = CheckSettings(
        project_id=PROJECT, other_project_id="p2", zones=(ZONE,), keeps_commitments=keeps
    )
    results = list(run_checks(server, settings, lambda: NOW))
    return {one.check: one.outcome for one in results}


def steps(body: Mapping[str, Any]) -> list[Step]:
    changeset = body["byProject"][PROJECT]["byResource"][RESOURCE]
    return [
        (one["uuid"], one["oldStatus"], one["newStatus"], one["amount"])
        for one in changeset["commitments"]
    ]


def totals(body: Mapping[str, Any]) -> tuple[int, int]:
    changeset = body["byProject"][PROJECT]["byResource"][RESOURCE]
    return changeset["totalConfirmedBefore"], changeset["totalConfirmedAfter"]


def life_minutes(body: Mapping[str, Any]) -> int:
    (changeset,) = body["byProject"][PROJECT]["byResource"].values()
    (ends,) = {one["expiresAt"] for one in changeset["commitments"]}
    return int((datetime.fromisoformat(ends) - NOW).total_seconds() // 60)


A, B = f"e2e-batch-a-{MS}", f"e2e-batch-b-{MS}"


class TestSteps:
    def test_dry_run_asks_for_two_for_five_minutes(self) -> None:
        server = Recorder(accept)
        assert ran(server)["dry run"] is CheckEnd.PASSED
        body = server.bodies[0]
        assert (body["az"], body["dryRun"], body["infoVersion"]) == (ZONE, True, 7)
        assert steps(body) == [(f"e2e-dry-{MS}", None, "confirmed", 2)]
        assert (totals(body), life_minutes(body)) == ((0, 2), 5)

    def test_round_trip_creates_reads_the_usage_and_deletes(self) -> None:
        server = Recorder(accept)
        assert ran(server)["round trip"] is CheckEnd.PASSED
        create, again, delete = server.bodies[1:4]
        assert create == again
        assert not create["dryRun"]
        assert steps(create) == [(f"e2e-{MS}", None, "confirmed", 2)]
        assert (totals(create), life_minutes(create)) == ((0, 2), 5)
        assert steps(delete) == [(f"e2e-{MS}", "confirmed", None, 2)]
        assert totals(delete) == (2, 0)
        assert server.usage_reports == 3, "one report, round trip, batch"

    def test_batch_grows_one_and_adds_another(self) -> None:
        server = Recorder(accept)
        assert ran(server)["batch"] is CheckEnd.PASSED
        pending, batch, delete = server.bodies[4:7]
        assert steps(pending) == [(A, None, "pending", 1)]
        assert (totals(pending), life_minutes(pending)) == ((0, 0), 10)
        assert steps(batch) == [(A, "pending", "confirmed", 3), (B, None, "confirmed", 1)]
        assert totals(batch) == (0, 4)
        assert steps(delete) == [(A, "confirmed", None, 3), (B, "confirmed", None, 1)]
        assert totals(delete) == (4, 0)

    def test_rejected_batch_deletes_the_pending_one(self) -> None:
        server = Recorder(lambda number: FULL if number == 5 else "")
        assert ran(server)["batch"] is CheckEnd.REJECTED
        assert steps(server.bodies[6]) == [(A, "pending", None, 1)]

    def test_what_was_accepted_is_deleted_though_the_usage_step_fails(self) -> None:
        server = Recorder(accept)
        server.breaks_usage = True
        outcomes = ran(server)
        assert (outcomes["round trip"], outcomes["batch"]) == (CheckEnd.FAILED, CheckEnd.FAILED)
        assert steps(server.bodies[3]) == [(f"e2e-{MS}", "confirmed", None, 2)]
        assert steps(server.bodies[6]) == [(A, "confirmed", None, 3), (B, "confirmed", None, 1)]

    def test_no_cleanup_deletes_nothing(self) -> None:
        server = Recorder(accept)
        ran(server, keeps=True)
        of_project = [body for body in server.bodies if "move" not in str(body)]
        assert all(new is not None for body in of_project for _, _, new, _ in steps(body))


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        pytest.param(FULL, CheckEnd.REJECTED, id="insufficient capacity"),
        pytest.param("x: insufficient CPU cores: 0 available", CheckEnd.REJECTED, id="cores"),
        pytest.param("flavor group not found: g", CheckEnd.FAILED, id="anything else"),
    ],
)
def test_only_a_full_cloud_may_reject(reason: str, outcome: CheckEnd) -> None:
    outcomes = ran(Recorder(lambda _: reason))
    assert (outcomes["dry run"], outcomes["round trip"]) == (outcome, outcome)
    assert outcomes["batch"] is CheckEnd.FAILED, "a pending commitment is never rejected"


@pytest.mark.parametrize(("version", "outcome"), [(7, CheckEnd.PASSED), (-1, CheckEnd.WARNED)])
def test_version_that_nobody_set_is_a_warning(version: int, outcome: CheckEnd) -> None:
    outcomes = ran(Recorder(accept, version=version))
    assert outcomes["info"] is outcome
    assert list(outcomes) == [
        "info",
        "capacity report",
        "usage report",
        "dry run",
        "round trip",
        "batch",
        "transfer",
    ]


def test_defaults_of_the_command() -> None:
    options = vars(Command().create_parser("manage.py", "check_commitments").parse_args([]))
    assert options["url"] == "http://localhost:8080"
    assert options["no_cleanup"] is False
    assert options["project"] == "00000000-0000-0000-0000-000000000e2e"
    assert options["zones"] is None, "then it is qa-de-1b"
    assert options["timeout"] == 30
