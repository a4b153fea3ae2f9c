"""Refused change requests stay on record (spec liquid, 11.5)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import DatabaseError, connection
from django.test import Client
from django.urls import reverse
from django.utils.html import strip_tags
from prometheus_client import REGISTRY

from commitments.models import Commitment, RefusedChange
from commitments.services.retention import prune_refusals
from commitments.tasks import prune_usage_history
from hosts.models import Project
from tests.commitments.change_requests import NOW, RAM, change, decide, decide_ram
from tests.factories import make_group, make_group_capacity, make_host

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("cloud")]

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
NOT_KEPT = "cortex_committed_resource_refusals_not_kept_total"


@pytest.fixture
def cloud() -> None:
    """One group of a 1 GiB flavor, one host of 10 slots in az-a."""
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    make_host("h1", zone="az-a", memory_gib=10, vcpus=40)
    make_group_capacity("hana_1", "az-a", total_vcpus=16)


def keeps(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    liquid = settings.HEADROOM.liquid.model_copy(update={"refusal_retention_days": days})
    monkeypatch.setattr(
        settings, "HEADROOM", settings.HEADROOM.model_copy(update={"liquid": liquid})
    )


def test_a_refusal_tells_who_asked_for_what_and_why_not() -> None:
    outcome = decide({"alpha": {RAM: [change(A, 2)]}, "beta": {RAM: [change(B, 11)]}})
    row = RefusedChange.objects.get()
    assert (row.actor, row.zone, row.is_timeout) == ("limes", "az-a", False)
    assert row.request_id == "test-request-1"
    assert (row.reason, row.retry_at) == (outcome.rejection_reason, outcome.retry_at)
    assert row.asked == [
        {
            "commitment": uuid, "project": project, "resource": RAM, "old_status": None,
            "new_status": "confirmed", "amount_units": amount,
        }
        for uuid, project, amount in ((A, "alpha", 2), (B, "beta", 11))
    ]  # fmt: skip
    (refused,) = row.refused
    assert refused["commitment"] == B
    assert "8/11 reservation slots could be placed" in refused["message"]
    assert not Commitment.objects.exists()


def test_what_is_accepted_or_only_asked_leaves_no_refusal() -> None:
    assert decide_ram("alpha", change(A, 2)).rejection_reason == ""
    assert decide_ram("alpha", change(B, 11), is_dry_run=True).rejection_reason
    assert not RefusedChange.objects.exists()


def test_a_request_that_names_an_unknown_group_is_kept() -> None:
    outcome = decide({"alpha": {"hw_version_gone_ram": [change(A, 2)]}})
    row = RefusedChange.objects.get()
    assert row.reason == outcome.rejection_reason
    assert row.refused == []


def test_a_refusal_that_cannot_be_kept_is_answered_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT no_such_function()")

    before = REGISTRY.get_sample_value(NOT_KEPT) or 0.0
    monkeypatch.setattr(RefusedChange, "save", fail)
    assert decide_ram("alpha", change(A, 11)).rejection_reason
    assert REGISTRY.get_sample_value(NOT_KEPT) == before + 1
    with pytest.raises(DatabaseError):
        fail()


def test_refusals_are_forgotten_after_their_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    keeps(monkeypatch, 7)
    for age_days in (6, 8, 9):
        RefusedChange.objects.create(
            actor="limes", zone="az-a", reason="no", asked=[], refused=[],
            created_at=NOW - timedelta(days=age_days),
        )  # fmt: skip
    assert prune_refusals(now=NOW) == 2
    assert prune_refusals(now=NOW) == 0
    assert RefusedChange.objects.count() == 1
    assert "refusals" in prune_usage_history()


def test_no_refusal_is_kept_when_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    keeps(monkeypatch, 0)
    assert decide_ram("alpha", change(A, 11)).rejection_reason
    assert not RefusedChange.objects.exists()


def test_the_page_tells_what_was_asked_and_the_search_finds_it(admin_client: Client) -> None:
    decide_ram("alpha", change(A, 11))
    row = RefusedChange.objects.get()
    page = admin_client.get(reverse("admin:commitments_refusedchange_change", args=[row.pk]))
    text = strip_tags(page.content.decode())
    assert f"11 units of {RAM} for alpha ({A}, new to confirmed)" in text
    assert "10/11 reservation slots could be placed" in text
    listing = reverse("admin:commitments_refusedchange_changelist")
    Project.objects.create(openstack_id="alpha", name="Alpha of the north")
    for query, found in (
        (A, 1), ("test-request-1", 1), (B, 0), ("Alpha of the north", 1), ("alpha", 1), ("beta", 0),
    ):  # fmt: skip
        assert admin_client.get(listing, {"q": query}).context["cl"].result_count == found
    shown = admin_client.get(listing, {"since": "day"}).content.decode()
    assert "Alpha of the north" in shown
    assert "fits now: 10 units" in strip_tags(shown)
    assert admin_client.get(listing, {"since": "yesterday"}).context["cl"].result_count == 0
