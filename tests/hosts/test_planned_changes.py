"""Planned host changes: the rules of the table, the service, the admin."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from capacity.models import HostCapacity
from hosts.models import PlannedHostChange
from hosts.services.planned_changes import remove_planned_change, save_planned_change
from journal.actors import Actor
from journal.models import AuditEntry
from tests.factories import make_host

pytestmark = pytest.mark.django_db
AT = datetime(2027, 1, 1, tzinfo=UTC)
ACTOR = Actor(name="operator")


def planned(edit: str = "add", count: int = 1, host_name: str = "h1") -> PlannedHostChange:
    return PlannedHostChange(edit=edit, at=AT, host=make_host(host_name), host_count=count)


@pytest.mark.parametrize(
    ("edit", "count"),
    [
        pytest.param("add", 0, id="no new host"),
        pytest.param("add", 1001, id="too many new hosts"),
        pytest.param("drain", 2, id="one host drained twice"),
        pytest.param("explode", 1, id="unknown edit"),
    ],
)
def test_the_table_refuses(edit: str, count: int) -> None:
    row = planned(edit, count)
    with pytest.raises(IntegrityError), transaction.atomic():
        row.save()


def test_a_host_is_drained_once() -> None:
    first = planned("drain")
    first.save()
    again = PlannedHostChange(edit="drain", at=AT, host=first.host)
    with pytest.raises(IntegrityError), transaction.atomic():
        again.save()
    PlannedHostChange(edit="add", at=AT, host=first.host).save()


@pytest.mark.django_db(transaction=True)
def test_writes_are_audited() -> None:
    row = save_planned_change(planned(), actor=ACTOR, request_id="req-1")
    row.host_count = 4
    save_planned_change(row, actor=ACTOR, request_id="req-2")
    save_planned_change(row, actor=ACTOR, request_id="same again")
    remove_planned_change(pk=row.pk, actor=ACTOR, request_id="req-3")
    remove_planned_change(pk=row.pk, actor=ACTOR, request_id="req-4")
    entries = AuditEntry.objects.filter(object_type="planned_host_change").order_by("id")
    assert [(e.action, e.request_id) for e in entries] == [
        ("planned_host_change_saved", "req-1"),
        ("planned_host_change_saved", "req-2"),
        ("planned_host_change_removed", "req-3"),
    ]
    assert [(e.before or {}).get("host_count") for e in entries] == [None, 1, 4]


def test_a_host_that_is_gone_takes_its_plans_along() -> None:
    row = planned()
    row.save()
    HostCapacity.objects.filter(host=row.host).delete()
    row.host.delete()
    assert not PlannedHostChange.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_admin_adds_and_removes(admin_client: Client) -> None:
    host = make_host("h1")
    form = {"edit": "drain", "at_0": "2027-01-01", "at_1": "00:00", "host": host.pk, "note": "rack"}
    wrong = admin_client.post(
        reverse("admin:hosts_plannedhostchange_add"), {**form, "host_count": 2}
    )
    assert "1 for a drain" in wrong.content.decode()
    saved = admin_client.post(
        reverse("admin:hosts_plannedhostchange_add"), {**form, "host_count": 1}
    )
    assert saved.status_code == 302, saved.content.decode()[:2000]
    row = PlannedHostChange.objects.get()
    assert (row.edit, row.at, row.note) == ("drain", AT, "rack")
    assert AuditEntry.objects.get(object_type="planned_host_change").actor == "admin:admin"
    listed = admin_client.get(reverse("admin:hosts_plannedhostchange_changelist"))
    assert "h1" in listed.content.decode()
    url = reverse("admin:hosts_plannedhostchange_delete", args=[row.pk])
    assert admin_client.post(url, {"post": "yes"}).status_code == 302
    assert not PlannedHostChange.objects.exists()
