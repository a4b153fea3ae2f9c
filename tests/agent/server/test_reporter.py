"""Reports again and again, also when nobody answers (spec hosts, D.10)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from headroom_host_agent.server.client import Address, Client, RefusedError, ServerError
from headroom_host_agent.server.identity import Enrolled, Identity, new_identity
from headroom_host_agent.server.refusals import EndedError
from headroom_host_agent.server.reporter import Reporter

from tests.agent.resources.hosts import manager


class Told:
    """Answers reports as it is told."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.reports: list[Mapping[str, object]] = []

    def put_resources(self, identity: Identity, report: Mapping[str, object]) -> None:
        self.reports.append(report)
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer


def reported(folder: Path, told: Told, *, interval_seconds: float = 60) -> list[float]:
    """Return the pauses of a reporter until the answers are used up."""
    pauses: list[float] = []
    stop = threading.Event()

    def wait(event: threading.Event, seconds: float) -> bool:
        pauses.append(seconds)
        if not told.answers:
            stop.set()
        return event.is_set()

    Reporter(
        manager(folder),
        told,  # type: ignore[arg-type]  # what it calls of a client
        Enrolled(folder, new_identity()),
        interval_seconds=interval_seconds,
        wait=wait,
    ).run(stop)
    return pauses


def test_a_failure_is_tried_again_sooner(tmp_path: Path) -> None:
    cut = ServerError("cut")
    told = Told(None, cut, cut, RefusedError(400, "invalid_report", "", {}), None, cut)

    pauses = reported(tmp_path, told)

    wanted = [60, 1, 2, 4, 60, 1]
    assert all(0.9 * w <= p <= 1.1 * w for p, w in zip(pauses, wanted, strict=True)), pauses
    assert told.reports[0]["cpu"]


def test_pauses_never_exceed_the_interval(tmp_path: Path) -> None:
    told = Told(*[ServerError("cut")] * 9)

    assert max(reported(tmp_path, told, interval_seconds=5)) <= 5.5


@pytest.mark.parametrize("code", ["key_revoked", "unknown_key", "wrong_host"])
def test_what_no_later_request_undoes_ends_it(tmp_path: Path, code: str) -> None:
    with pytest.raises(EndedError, match=code):
        reported(tmp_path, Told(RefusedError(401, code, "", {})))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://127.0.0.1:1"])
def test_a_server_that_is_not_there_is_no_answer(url: str) -> None:
    identity = Identity(seed="00" * 32, host_id="h", kid="k", fence_epoch=1)

    with pytest.raises(ServerError, match=r"127\.0\.0\.1"):
        Client(Address(url=url)).put_resources(identity, {})


def test_certificates_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    identity = Identity(seed="00" * 32, host_id="h", kid="k", fence_epoch=1)
    client = Client(Address(url="https://127.0.0.1:1", ca=tmp_path / "none.pem"))

    with pytest.raises(ServerError, match=r"none\.pem"):
        client.put_resources(identity, {})
