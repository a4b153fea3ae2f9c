"""Pages that answer a question about projects, hosts and drains, compared with rows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.html import strip_tags

from capacity.models import GroupCapacity
from commitments.domain.statuses import CommitmentStatus
from commitments.models import SyncRun
from failover.models import FailoverDecision
from failover.selectors.drain import check_drain
from hosts.models import FeedPass, Host, Project
from journal.models import CheckFinding, Heartbeat
from journal.waiting import Waiting
from tests import factories
from tests.admin.conftest import grow_region
from tests.admin.test_pages import count_queries, page_url

pytestmark = pytest.mark.django_db
GIB = 1 << 30


def hold(project: str, held_gib: int, used_gib: int, **fields: Any) -> None:
    factories.make_commitment(
        project_id=project, amount_gib=held_gib, accepted_amount=held_gib * GIB,
        used_memory_bytes=used_gib * GIB, **fields,
    )  # fmt: skip


def test_which_projects_hold_most_and_use_least(admin_client: Client) -> None:
    first = factories.make_project("p1", name="first")
    factories.make_project("p2", name="second")
    hold("p1", 10, 2)
    hold("p1", 4, 9, zone="az-b")
    hold("p2", 100, 99)
    hold("p2", 50, 0, state=CommitmentStatus.PLANNED)
    hold("p2", 50, 0, end_time=timezone.now())
    hold("unlisted", 3, 0)
    factories.make_commitment(project_id="p1", resource_type="cores", requested_amount=7)

    def lines(order: str) -> list[tuple[str, ...]]:
        page = admin_client.get(reverse("headroom_projects"), {"order": order}).context["page"]
        assert (page.held, page.used, page.idle) == ("117 GiB", "105 GiB", "12 GiB")
        return [(one.name, one.held, one.used, one.idle) for one in page.lines]

    a = ("first", "14 GiB", "6 GiB", "8 GiB")
    b = ("second", "100 GiB", "99 GiB", "1 GiB")
    c = ("unlisted", "3 GiB", "0 GiB", "3 GiB")
    assert lines("idle") == [a, c, b] == lines("no such order")
    assert lines("held") == lines("used") == [b, a, c]
    page = admin_client.get(reverse("headroom_project", args=[first.pk])).context["page"]
    assert [(one.zone, one.held, one.used) for one in page.lines] == [
        ("az-a", "10 GiB", "2 GiB"), ("az-b", "4 GiB", "4 GiB")
    ]  # fmt: skip


def test_a_project_page_tells_vms_in_and_out_of_commitments(admin_client: Client) -> None:
    project = factories.make_project("p1")
    host = factories.make_host(memory_gib=100)
    commitment = factories.make_commitment(project_id="p1")
    inside = factories.make_vm("inside", host, project_id="p1", memory_gib=4)
    factories.make_vm("outside", host, project_id="p1", memory_gib=8)
    factories.make_vm("other", host, project_id="p2")
    factories.make_assignment(commitment, inside)

    page = admin_client.get(reverse("headroom_project", args=[project.pk])).context["page"]

    covered, payg = page.vms
    assert ([one.name for one in covered.lines], covered.note) == (["inside"], "1 VM, 4 GiB")
    assert ([one.name for one in payg.lines], payg.note) == (["outside"], "1 VM, 8 GiB")


def test_a_host_page_names_the_vms_that_would_not_survive(admin_client: Client) -> None:
    host = factories.make_host("h1")
    lost = factories.make_vm("lost", host)
    factories.make_vm("safe", host)
    FailoverDecision.objects.create(
        vm_uuid=lost.openstack_id, zone="az-a", required_count=1, current_count=0,
        reason="no_room", since=timezone.now(),
    )  # fmt: skip

    response = admin_client.get(page_url(Host, "change", host.pk))
    loss = response.context["loss"]
    listed = admin_client.get(page_url(FailoverDecision, "changelist")).content.decode()

    assert loss.title == "1 VM of 2 would not survive"
    assert [vm.name for vm in loss.vms] == ["lost"]
    assert reverse("headroom_host_drain", args=[host.pk]) in response.content.decode()
    assert ">lost</a>" in listed
    assert ">h1</a>" in listed


def test_a_drain_has_an_address(admin_client: Client) -> None:
    factories.make_group()
    host, _other = factories.make_hosts(2)
    factories.make_vm("mover", host)

    response = admin_client.get(reverse("headroom_host_drain", args=[host.pk]))
    page = response.context["page"]
    report = check_drain(["h1"], now=timezone.now()).report

    assert page.problem == ""
    assert (page.tone == "ok") == report.is_safe
    assert [row["key"] for row in [*page.moves, *page.stuck]] == ["mover"]
    assert [row["to"] for row in page.moves] == [move.to_host for move in report.moves]
    assert "mover" in response.content.decode()


def test_the_system_page_says_what_was_skipped_and_what_is_late(admin_client: Client) -> None:
    now = timezone.now()
    SyncRun.objects.create(
        started_at=now, finished_at=now, source="limes", outcome="done",
        counts={"skipped_no_project": 5, "skipped": 3, "updated": 9},
    )  # fmt: skip
    FeedPass.objects.create(kind="servers", passes=1, listed_at=now)
    FeedPass.objects.create(kind="flavors", failures=2, error="timed out")
    for name in ("beat", "queue:long"):
        Heartbeat.objects.create(name=name, beaten_at=now - timedelta(days=1))
    Heartbeat.objects.create(name="queue:steady", beaten_at=now - timedelta(minutes=20))

    for name, severity in (("fine", "ok"), ("odd", "warning")):
        CheckFinding.objects.create(
            check_name=name, severity=severity, found=f"{name} it is", looked_at=now
        )

    page = admin_client.get(reverse("headroom_system")).context["page"]
    told = {
        strip_tags(line.name): (strip_tags(line.state).split(" ", 1)[1], line.detail)
        for section in page.sections
        for line in section.lines
    }

    assert page.tone == "bad"
    assert page.title.startswith("5 things to look at")
    assert "fine" not in page.title
    assert (told["fine"][0], told["odd"][0]) == ("ok", "warning")
    assert told["run of limes"] == ("done, 8 skipped", "3 skipped, 5 skipped no project")
    assert told["list of flavors"] == ("fails, 2 passes in a row", "timed out")
    assert told["list of servers"][0] == "read"
    assert told["heartbeat of beat"][0] == "silent"
    assert told["queue long"][0] == "silent"
    assert told["queue steady"][0] == "alive"


def test_the_system_page_says_what_waits_in_the_queues(
    admin_client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines() -> dict[str, tuple[str, str]]:
        page = admin_client.get(reverse("headroom_system")).context["page"]
        return {
            strip_tags(line.name): (strip_tags(line.state).split(" ", 1)[1], line.detail)
            for section in page.sections
            for line in section.lines
        }

    sent_at = timezone.now() - timedelta(hours=3)
    waiting = [
        Waiting(queue="soon", count=0),
        Waiting(queue="long", count=2, oldest="commitments.sync", sent_at=sent_at),
    ]
    monkeypatch.setattr("console.system.page.waiting_tasks", lambda _queues: waiting)
    told = lines()
    assert told["waiting in soon"] == ("nothing", "")
    assert told["waiting in long"] == ("2 tasks", "the oldest: commitments.sync")

    monkeypatch.undo()
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert lines()["broker"][0] == "no answer"


@pytest.mark.usefixtures("region")
def test_pages_take_few_statements_however_many_rows(admin_client: Client) -> None:
    urls = [
        reverse("headroom_projects"),
        reverse("headroom_project", args=[Project.objects.order_by("pk")[0].pk]),
        reverse("headroom_sell"),
        reverse("headroom_system"),
        page_url(Host, "change", Host.objects.order_by("pk")[0].pk),
    ]
    before = [count_queries(admin_client, url) for url in urls]
    grow_region(3)

    assert [count_queries(admin_client, url) for url in urls] == before
    assert max(before) <= 30
    drain = reverse("headroom_host_drain", args=[Host.objects.order_by("pk")[0].pk])
    with CaptureQueriesContext(connection) as captured:
        assert admin_client.get(drain).status_code == 200
    assert len(captured) <= 50


@pytest.mark.usefixtures("region")
def test_pages_are_for_those_who_may_see_their_rows() -> None:
    user = User.objects.create_user("looker", password="password", is_staff=True)
    client = Client()
    client.force_login(user)
    urls = [
        reverse("headroom_sell"),
        reverse("headroom_sell_group", args=[GroupCapacity.objects.all()[0].pk]),
        reverse("headroom_projects"),
        reverse("headroom_project", args=[Project.objects.all()[0].pk]),
        reverse("headroom_host_drain", args=[Host.objects.all()[0].pk]),
    ]
    system = reverse("headroom_system")

    assert [client.get(url).status_code for url in [*urls, system]] == [403] * 6
    user.user_permissions.set(
        Permission.objects.filter(
            codename__in=["view_groupcapacity", "view_project", "view_commitment", "view_host"]
        )
    )
    client.force_login(User.objects.get(pk=user.pk))
    assert [client.get(url).status_code for url in urls] == [200] * 5
