"""What needs attention: each cause alone turns the verdict, and leads to its rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from capacity.models import LeavingRoom
from commitments.domain.statuses import CommitmentStatus
from commitments.models import Condition, SyncRun
from failover.drill_models import CoverageAccount, EvacuationPlan
from failover.models import FailoverZone
from hosts.agents.models import HostAgent, HostKey, HostLease
from hosts.agents.workload_models import Workload
from hosts.models import FeedPass, Host
from journal.models import AuditEntry, CheckFinding, Heartbeat
from tests import factories
from tests.admin.test_frame import staff_client

pytestmark = pytest.mark.django_db


def finding(severity: str) -> None:
    CheckFinding.objects.create(
        check_name="x", severity=severity, found="f", looked_at=timezone.now()
    )


def commitment(reason: str, **more: Any) -> None:
    factories.make_commitment(
        state=CommitmentStatus.PENDING, is_accepted=False, ready_status=False, ready_reason=reason,
        **more,
    )  # fmt: skip


def synced(**more: Any) -> None:
    now = timezone.now()
    SyncRun.objects.create(**{"started_at": now, "finished_at": now, "source": "limes", **more})


def evacuated_host_is_back() -> None:
    factories.make_host("c")
    EvacuationPlan.objects.create(
        zone="y", failed_hosts=["c"], started_at=timezone.now(), changed_at=timezone.now()
    )


def silent_agent() -> None:
    agent = HostAgent.objects.create(host_name="h")
    HostLease.objects.create(agent=agent, liveness="suspect")
    HostKey.objects.create(agent=agent, kid="k", public_key=b"0" * 32)


def left_room() -> None:
    host = factories.make_host("h")
    agent = HostAgent.objects.create(host_name="h")
    work = make_row(agent, state="deleting", to_delete=True)
    LeavingRoom.objects.create(
        workload=work,
        host=host,
        memory_bytes=1 << 30,
        vcpus=4,
        since=timezone.now() - timedelta(hours=1),
    )


def make_row(agent: HostAgent, **fields: Any) -> Workload:
    return Workload.objects.create(
        agent=agent, gwid="1-1", owner_kind="slot", owner_id="1", type="accounting", seq=1,
        fence_epoch=1, **fields,
    )  # fmt: skip


CAUSES: dict[str, tuple[str, Callable[[], Any]]] = {
    "1 error of the doctor": ("bad", lambda: finding("error")),
    "1 warning of the doctor": ("warn", lambda: finding("warning")),
    "1 live commitment waiting": ("warn", lambda: commitment(Condition.RESERVING)),
    "1 live commitment refused": ("warn", lambda: commitment(Condition.REJECTED)),
    "1 commitment stuck": (
        "bad",
        lambda: factories.make_commitment(
            ready_status=True, next_reconcile_at=timezone.now() - timedelta(hours=1)
        ),
    ),
    "7 VMs not protected": (
        "bad",
        lambda: CoverageAccount.objects.create(
            zone="z", accounted_at=timezone.now(), owed_vms=9, uncovered_vms=7
        ),
    ),
    "1 agent of hosts silent": ("warn", silent_agent),
    "1 agent did not give back the room of slots that left": ("warn", left_room),
    "2 dead hosts in z": (
        "bad",
        lambda: EvacuationPlan.objects.create(
            zone="z", failed_hosts=["a", "b"], started_at=timezone.now(), changed_at=timezone.now()
        ),
    ),
    "evacuation in y not over, its hosts are back": ("warn", evacuated_host_is_back),
    "1 host down": ("warn", lambda: factories.make_host("h", state="down")),
    "failover brake on in z": (
        "bad",
        lambda: FailoverZone.objects.create(zone="z", brake_reason="vm_list_empty"),
    ),
    "the last run of limes: not_reachable": (
        "bad",
        lambda: synced(outcome="failed", error_code="not_reachable"),
    ),
    "the last run of limes: incomplete": ("warn", lambda: synced(outcome="incomplete")),
    "8 objects skipped by limes": (
        "warn",
        lambda: synced(
            outcome="success", counts={"skipped_x": 5, "skipped_y": 3, "created": 9}
        ),
    ),
    "the feed of servers fails, 2 passes in a row": (
        "bad",
        lambda: FeedPass.objects.create(kind="servers", failures=2, error="e"),
    ),
    "the feed of servers did not believe all": (
        "warn",
        lambda: FeedPass.objects.create(kind="servers", refusal="shrank"),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _at_work() -> None:
    factories.make_host("at-work")
    Heartbeat.objects.create(name="beat", beaten_at=timezone.now())


def told(client: Client) -> Any:
    return client.get(reverse("admin:index")).context["dashboard"].attention


@pytest.mark.parametrize("text", CAUSES)
def test_each_cause_turns_the_verdict_and_leads_to_rows(admin_client: Client, text: str) -> None:
    finding("ok")
    assert (told(admin_client).tone, told(admin_client).title) == ("ok", "All is well")
    tone, make = CAUSES[text]
    make()

    verdict = told(admin_client)

    assert verdict.tone == tone
    assert [line.text for line in verdict.lines] == [text]
    answer = admin_client.get(verdict.lines[0].url)
    assert answer.status_code == 200
    if "cl" in answer.context and "not protected" not in text:
        assert answer.context["cl"].result_count == 1


def test_the_worst_is_first_and_old_runs_are_past(admin_client: Client) -> None:
    synced(outcome="failed", error_code="long_ago")
    synced(outcome="success")
    finding("warning")
    finding("error")

    verdict = told(admin_client)

    assert verdict.title == "1 thing wrong, 1 thing to look at"
    assert [line.text.split()[1] for line in verdict.lines] == ["error", "warning"]


def test_checks_that_do_not_run_are_no_good_news(admin_client: Client) -> None:
    entry = {"actor": "x", "action": "x", "object_type": "x", "object_id": "x"}
    assert told(admin_client).tone == "ok"  # nothing was ever changed here
    AuditEntry.objects.create(created_at=timezone.now() - timedelta(hours=2), **entry)
    assert [line.text for line in told(admin_client).lines] == [
        "checks of the installation ran last: never"
    ]
    CheckFinding.objects.create(
        check_name="x", severity="ok", found="f", looked_at=timezone.now() - timedelta(hours=2)
    )
    assert told(admin_client).tone == "warn"


def test_an_empty_installation_says_how_to_begin(admin_client: Client) -> None:
    Host.objects.all().delete()
    Heartbeat.objects.all().delete()

    verdict = told(admin_client)

    assert verdict.tone == "warn"
    assert {line.text: line.detail.partition(":")[0] for line in verdict.lines} == {
        "no host is known": "Nothing was read from a cloud yet",
        "no background work was seen yet": "start ./run serve beat and ./run serve worker "
        "(docs/operations.md)",
    }


def test_only_what_may_be_seen_is_told() -> None:
    finding("error")
    factories.make_host("h", state="down")

    assert told(staff_client("nobody")) is None
    assert [line.text for line in told(staff_client("looker", "view_host")).lines] == [
        "1 host down"
    ]
