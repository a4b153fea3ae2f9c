"""Pages of webhooks: endpoints are edited, deliveries are read and repeated."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from journal.models import AuditEntry
from webhooks.models import Delivery, Endpoint

pytestmark = pytest.mark.django_db(transaction=True)
ADD = reverse("admin:webhooks_endpoint_add")
DELIVERIES = reverse("admin:webhooks_delivery_changelist")
FORM = {"name": "one", "url": "https://a.example/hook", "secret_name": "s1", "kinds": "x,y"}


def delivery(state: str = "dead") -> Delivery:
    told = Endpoint.objects.create(name="one", url="https://a.example/", secret_name="s1")
    return Delivery.objects.create(
        endpoint=told,
        event_id=1,
        topic="t",
        object_type="Thing",
        object_id="a",
        payload={"n": 1},
        occurred_at=timezone.now(),
        state=state,
        attempts=20,
        error="status 500: refused",
        due_at=timezone.now() + timedelta(hours=1),
    )


def test_an_endpoint_is_made_changed_and_removed(admin_client: Client) -> None:
    assert admin_client.post(ADD, FORM).status_code == 302
    (row,) = Endpoint.objects.all()
    assert (row.url, row.kinds, row.is_paused) == (FORM["url"], ["x", "y"], False)
    Endpoint.objects.update(disabled_at=timezone.now())
    Delivery.objects.create(
        endpoint=row, event_id=1, topic="x", payload={}, occurred_at=timezone.now()
    )
    change = reverse("admin:webhooks_endpoint_change", args=[row.pk])
    assert admin_client.post(change, {**FORM, "kinds": "", "is_paused": "on"}).status_code == 302
    row.refresh_from_db()
    assert (row.kinds, row.is_paused, row.disabled_at) == ([], True, None)
    remove = reverse("admin:webhooks_endpoint_delete", args=[row.pk])
    assert admin_client.post(remove, {"post": "yes"}).status_code == 302
    assert not Endpoint.objects.exists()
    told = AuditEntry.objects.filter(object_id="one").order_by("id")
    assert [entry.action for entry in told] == ["webhook_saved", "webhook_saved", "webhook_removed"]


def test_a_forbidden_address_is_said_at_its_field(admin_client: Client) -> None:
    page = admin_client.post(ADD, {**FORM, "url": "http://a.example/"})
    assert "must begin with https://" in page.content.decode()
    assert not Endpoint.objects.exists()


def test_a_dead_delivery_is_made_again(admin_client: Client) -> None:
    row = delivery()
    page = admin_client.get(reverse("admin:webhooks_delivery_change", args=[row.pk]))
    assert "specversion" in page.content.decode()
    asked = {"action": "deliver_again", "_selected_action": [row.pk]}
    admin_client.post(DELIVERIES, asked)
    row.refresh_from_db()
    assert (row.state, row.attempts, row.error) == ("waiting", 0, "")
    assert row.due_at <= timezone.now()


def test_who_may_not_change_endpoints_repeats_nothing(client: Client) -> None:
    row = delivery()
    client.force_login(User.objects.create_user("reader", is_staff=True))
    asked = {"action": "deliver_again", "_selected_action": [row.pk]}
    client.post(DELIVERIES, asked)
    row.refresh_from_db()
    assert row.state == "dead"
