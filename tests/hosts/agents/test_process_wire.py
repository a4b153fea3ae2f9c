"""What the agent's own process sends, by a wrong clock and sent again by others (D.14)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from headroom_host_agent.server.identity import load_identity

from hosts.agents.models import AgentMode, HostAgent, HostLease, RequestNonce
from hosts.agents.workload_models import WorkloadResult
from journal.clock import database_now
from journal.models import AuditEntry
from tests.factories import make_host
from tests.hosts.agents.agents import enrolled, make_token
from tests.hosts.agents.router import Heard, Router, Routes, routed
from tests.hosts.agents.test_process import Host, until, wait_for_report, wait_until
from tests.hosts.agents.test_results import tell
from tests.hosts.agents.workloads import agent_named, make_workload, state_of

pytestmark = pytest.mark.django_db(transaction=True)

FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
SKEWED = "clock_skew"
# What an agent sends, by the end of its path, and another path of the same method.
ELSEWHERE = {
    "/heartbeat": "/keys",
    "/resources": "/stats",
    "/stats": "/instances",
    "/result": "/deleted",
    "/reservations": "/reservations/1-1",
}


@pytest.fixture
def web(live_server: Any) -> int:
    return urlsplit(live_server.url).port or 0


@pytest.fixture
def router(web: int) -> Iterator[Router]:
    with routed(Routes(polls=web, web=web)) as made:
        yield made


@pytest.fixture
def host(tmp_path: Path, router: Router, settings: Any) -> Iterator[Host]:
    chosen = settings.HEADROOM.agents.model_copy(update={"heartbeat_seconds": 0.2})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"agents": chosen})
    make_host("h1")
    made = Host(tmp_path, router.url)
    made.environment |= {
        "HEADROOM_AGENT__POLL__MIN_INTERVAL": "1",
        "HEADROOM_AGENT__EXPIRE__INTERVAL": "1",
    }
    assert made.enrol(make_token("h1"))[0] == 0
    HostAgent.objects.update(mode=AgentMode.ENFORCE)
    yield made
    made.end()


def code_of(content: bytes) -> str:
    return str(json.loads(content)["error"]["code"])


def refused(router: Router) -> list[str]:
    """Return the codes of what was refused so far."""
    return [code_of(one.answer) for one in list(router.heard) if one.status >= 400]


@pytest.mark.parametrize("hours", ["+2h", "-2h"])
def test_a_host_whose_clock_is_wrong_works_after_one_answer(
    host: Host, router: Router, hours: str
) -> None:
    assert FAKETIME, "libfaketime is not installed (Debian: faketime)"
    host.environment |= {
        "LD_PRELOAD": str(FAKETIME[0]),
        "FAKETIME": hours,
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    host.start("run")
    wait_until("up")
    wait_for_report()
    hour = make_workload(1, expires_at=database_now() + timedelta(hours=1))
    until(lambda: state_of(hour) == "deployed", "it is never deployed")
    # What was sent before the first answer came may have been refused with it, nothing since.
    skewed = refused(router)
    assert set(skewed) == {SKEWED}
    heartbeats = [one for one in list(router.heard) if one.path.endswith("/heartbeat")]
    assert [one.status for one in heartbeats[:2]] == [401, 200]

    soon = make_workload(2, expires_at=database_now() + timedelta(seconds=1))
    until(lambda: state_of(soon) == "deleted", "nothing ends by the server's time")
    assert state_of(hour) == "deployed"
    assert refused(router) == skewed
    report = agent_named().generated_at
    assert report is not None
    assert abs(report - database_now()) < timedelta(minutes=5)


def rows() -> list[Any]:
    """Return all that is kept of agents but for the times of heartbeats."""
    return [
        list(HostAgent.objects.order_by("pk").values("uuid", "fence_epoch", "change_seq", "mode")),
        list(HostLease.objects.order_by("pk").values("agent_id", "run_id", "liveness")),
        list(WorkloadResult.objects.order_by("pk").values()),
    ]


def test_what_an_agent_sent_is_of_no_use_to_others(host: Host, router: Router, web: int) -> None:
    running = host.start("run")
    wait_until("up")
    make_host("h2")
    other = enrolled("h2")
    row = make_workload(1)
    until(lambda: state_of(row) == "deployed", "it is never deployed")
    captured: dict[str, Heard] = {}

    def is_all_captured() -> bool:
        for one in list(router.heard):
            name = f"/{urlsplit(one.path).path.rsplit('/', 1)[1]}"
            if one.status < 300 and name in ELSEWHERE:
                captured[name] = one
        return set(captured) == set(ELSEWHERE)

    until(is_all_captured, "not all is sent")
    running.kill()
    running.wait()
    before = rows()
    ours, theirs = str(agent_named("h1").uuid), other.host_id

    for name, one in captured.items():
        elsewhere = one.path.split("?")[0].removesuffix(name) + ELSEWHERE[name]
        as_other = {"X_Host_Id": theirs, "X_Host_Nonce": "0" * 32}
        for code, changes in (
            ("replayed", {}),
            ("bad_signature", {"path": elsewhere}),
            ("bad_signature", {"path": one.path.replace(ours, theirs)}),
            ("unknown_key", {"path": one.path.replace(ours, theirs), **as_other}),
            ("unknown_key", {"X_Host_Key": other.kid}),
            ("bad_signature", {"X_Host_Epoch": "2"}),
        ):
            status, content = one.again(web, **changes)
            assert (status, code_of(content)) == (401, code), (name, changes)

    assert rows() == before
    # What the agent sent while it was killed may come in meanwhile, and is its own.
    assert not RequestNonce.objects.filter(nonce="0" * 32).exists()
    assert not RequestNonce.objects.filter(agent=agent_named("h2")).exists()


def test_a_result_is_taken_once_and_another_one_refused(host: Host) -> None:
    running = host.start("run")
    wait_until("up")
    row = make_workload(1)
    until(lambda: state_of(row) == "deployed", "it is never deployed")
    running.kill()
    running.wait()
    identity = load_identity(host.root / "var/lib/headroom")
    assert identity is not None
    kept = WorkloadResult.objects.get()

    assert tell(identity, row, **kept.document).status_code == 200
    answer = tell(identity, row, **{**kept.document, "state": "error", "error": "other"})

    # An error after a success is its death, and no conflict; another success is one.
    assert answer.status_code == 201
    assert state_of(row) == "failed"
    answer = tell(identity, row, **{**kept.document, "data": {"other": 1}})
    assert (answer.status_code, code_of(answer.content)) == (409, "result_conflict")
    assert AuditEntry.objects.filter(action="host_result_conflict").count() == 1
