from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from commitments.models import SyncRun
from journal.models import AuditEntry

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, tzinfo=UTC)
LIST = reverse("admin:commitments_syncrun_changelist")


def run(outcome: str, *, error_code: str = "", message: str = "", **fields: object) -> SyncRun:
    return SyncRun.objects.create(
        source="limes",
        started_at=NOW,
        finished_at=NOW,
        outcome=outcome,
        error_code=error_code,
        message=message,
        counts={"known": 3, "skipped_unit_mismatch": 2, "missing": 0},
        **fields,
    )


def guarded() -> SyncRun:
    return run(
        "guarded", error_code="commitments_shrank", message="Limes lists 3 commitments, 30 before"
    )


def page(row: SyncRun) -> str:
    return reverse("admin:commitments_syncrun_change", args=[row.pk])


def test_the_list_says_how_runs_ended_and_what_they_counted(admin_client: Client) -> None:
    run("success")
    guarded()
    SyncRun.objects.create(source="limes", started_at=NOW)
    shown = admin_client.get(LIST).content.decode()
    assert "commitments_shrank" in shown
    assert "known 3, skipped unit mismatch 2" in shown
    assert "missing 0" not in shown
    assert "running, or it died" in shown


def test_a_guarded_run_can_be_accepted_after_a_question(admin_client: Client) -> None:
    row = guarded()
    shown = admin_client.get(page(row)).content.decode()
    assert "Limes lists 3 commitments, 30 before" in shown
    assert "really gone" in shown
    assert admin_client.post(page(row), {}).status_code == 200
    row.refresh_from_db()
    assert row.shrink_accepted_by == ""
    assert admin_client.post(page(row), {"is_accepted": "on"}).status_code == 302
    row.refresh_from_db()
    assert (row.shrink_accepted_by, row.outcome) == ("admin:admin", "guarded")
    entry = AuditEntry.objects.latest("pk")
    assert (entry.action, entry.actor) == ("sync_shrink_accepted", "admin:admin")
    assert "by admin:admin" in admin_client.get(page(row)).content.decode()


@pytest.mark.parametrize("outcome", ["success", "incomplete", "failed", "abandoned"])
def test_other_runs_ask_nothing_and_take_nothing(admin_client: Client, outcome: str) -> None:
    row = run(outcome)
    assert "is_accepted" not in admin_client.get(page(row)).content.decode()
    assert admin_client.post(page(row), {"is_accepted": "on"}).status_code == 403


def test_a_guarded_run_before_a_good_one_asks_nothing(admin_client: Client) -> None:
    row = guarded()
    run("success")
    assert "is_accepted" not in admin_client.get(page(row)).content.decode()


def test_who_may_only_look_accepts_nothing() -> None:
    user = get_user_model().objects.create_user("looker", password="x", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_syncrun"))
    client = Client()
    client.force_login(user)
    row = guarded()
    assert "is_accepted" not in client.get(page(row)).content.decode()
    assert client.post(page(row), {"is_accepted": "on"}).status_code == 403
