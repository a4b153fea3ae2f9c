"""One glance tells the state: the sentence on top of a page, and what the page is called."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib import admin
from django.db import models
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from commitments.models import RefusedChange
from commitments.usage_models import ObservedHour
from failover.drill_models import CoverageAccount, EvacuationMove, EvacuationPlan, FailureDrill
from failover.models import FailoverDecision, FailoverReservation
from tests import factories

pytestmark = pytest.mark.django_db


def answered(client: Client, address: str) -> tuple[str, str, str]:
    """Return tone and words of the sentence on top, and what the browser calls the page."""
    page = client.get(address).content.decode()
    found = re.search(r'hr-hero hr-hero-(\w+)" aria-label="Answer">(.*?)</section>', page, re.S)
    title = re.search(r"<title>(.*?)</title>", page, re.S)
    assert found is not None
    assert title is not None
    words = re.sub(r"<span[^>]*material-symbols.*?</span>|<[^>]+>", " ", found[2])
    return found[1], " ".join(html.unescape(words).split()), " ".join(title[1].split())


def page_of(row: models.Model) -> str:
    meta = row._meta
    return reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[row.pk])


def refusal(**fields: Any) -> RefusedChange:
    asked = {"commitment": "c", "project": "p-1", "resource": "hw_version_hana_ram",
             "old_status": None, "new_status": "confirmed", "amount_units": 3}  # fmt: skip
    told = {"commitment": "c", "message": "3 asked, 1 fits.", "advice": "1 would fit."}
    defaults = {"request_id": "req-1", "actor": "limes", "zone": "az-a", "reason": "no room",
                "asked": [asked, asked], "refused": [told]}  # fmt: skip
    return RefusedChange.objects.create(**{**defaults, **fields})


def test_a_refusal_says_what_was_refused_why_and_what_would_fit(admin_client: Client) -> None:
    factories.make_project("p-1", name="beta")

    tone, words, title = answered(admin_client, page_of(refusal()))

    asked = "3 units of hw_version_hana_ram for beta in az-a and 1 more"
    assert (tone, title.split(" | ")[0]) == ("bad", asked)
    assert words.startswith(f"Refused: {asked} 3 asked, 1 fits. 1 would fit. Asked by limes 20")


def test_a_refusal_for_want_of_time_and_one_without_details_say_so(admin_client: Client) -> None:
    tone, words, _ = answered(admin_client, page_of(refusal(is_timeout=True, asked=[], refused=[])))

    assert tone == "warn"
    assert words.startswith("Not decided in time: a change in az-a no room Asked by limes")


@pytest.mark.parametrize(
    ("held", "tone", "words"),
    [
        pytest.param(0, "bad", "lacks 2 failover slots", id="none"),
        pytest.param(1, "warn", "has 1 of 2 failover slots", id="some"),
    ],
)
def test_a_failover_decision_is_called_by_its_vm(
    admin_client: Client, held: int, tone: str, words: str
) -> None:
    vm = factories.make_vm("web-1", factories.make_host("h1"))
    row = FailoverDecision.objects.create(
        vm_uuid=vm.openstack_id, zone="az-a", required_count=2, current_count=held,
        reason="no_room", since=timezone.now(), facts={"eligible": 0, "compatible": 1900},
    )  # fmt: skip

    page = admin_client.get(page_of(row)).content.decode()
    assert "1,900 compatible, 0 eligible" in page
    found = answered(admin_client, page_of(row))

    assert found[0] == tone
    assert found[1].startswith(f"web-1 {words}: no host has room Since 20")
    assert found[2].startswith(f"web-1: {words} | ")


def test_a_failover_decision_about_a_vm_that_is_gone_shows_its_id(admin_client: Client) -> None:
    row = FailoverDecision.objects.create(
        vm_uuid="gone", zone="az-a", required_count=1, current_count=0, since=timezone.now()
    )

    assert "gone lacks 1 failover slot: not handled yet" in answered(admin_client, page_of(row))[1]


@pytest.mark.parametrize(
    ("vms", "drilled", "tone", "words"),
    [
        pytest.param(
            (5, 2), [1, 0], "bad",
            "2 of 5 VMs lack failover slots in az-a The last drill: the loss of 1 host of 2 would",
            id="some lack slots",
        ),
        pytest.param((5, 0), [1, 0], "warn", "Every VM in az-a has", id="the drill lost some"),
        pytest.param(
            (5, 0), [0, 0], "ok",
            "Every VM in az-a has the failover slots that are owed to it "
            "The last drill: no loss of one of 2 hosts",
            id="all is well",
        ),
        pytest.param((5, 0), [], "ok", "Every VM in az-a", id="not drilled"),
        pytest.param((0, 0), [], "idle", "No VM in az-a is owed a failover", id="nothing owed"),
    ],
)  # fmt: skip
def test_coverage_of_a_zone_says_whether_vms_would_be_lost(
    admin_client: Client, vms: tuple[int, int], drilled: list[int], tone: str, words: str
) -> None:
    (owed, uncovered), now = vms, timezone.now()
    if drilled:
        FailureDrill.objects.create(
            zone="az-a", scope="host", started_at=now, finished_at=now, cases=2, simulated=2,
            vms=owed, unprotected_vms=sum(drilled), worst=[],
            hosts=[[f"h{at}", "r", 1, lost, 0, 0] for at, lost in enumerate(drilled)],
        )  # fmt: skip
    row = CoverageAccount.objects.create(
        zone="az-a", owed_vms=owed, uncovered_vms=uncovered, accounted_at=now
    )

    found = answered(admin_client, page_of(row))

    assert found[0] == tone
    assert found[1].startswith(words)


def test_projects_begin_with_how_much_is_idle_and_who_uses_nothing(admin_client: Client) -> None:
    address = reverse("headroom_projects")
    tone, words, _ = answered(admin_client, address)
    assert tone == "idle"
    assert words.startswith("No project holds memory by a commitment Limes asks for commitments")
    gib = 1 << 30
    for name, held, used in (("a", 8, 2), ("b", 4, 0)):
        factories.make_project(name, name=f"project-{name}")
        factories.make_commitment(
            project_id=name, requested_amount=held * gib, accepted_amount=held * gib,
            used_memory_bytes=used * gib, state="confirmed",
        )  # fmt: skip

    tone, words, _ = answered(admin_client, address)
    assert tone == "warn"
    assert words == (
        "10 GiB (83 %) of 12 GiB held for 2 projects are idle "
        "1 project uses nothing of what it holds. Most idle: project-a with 6 GiB."
    )


@pytest.mark.parametrize(
    ("states", "is_open", "tone", "words"),
    [
        pytest.param(
            ["arrived", "planned"], True, "warn", "1 of 2 VMs arrived; each had a slot", id="open"
        ),
        pytest.param(
            ["arrived", "unprotected"], True, "bad", "1 of 2 VMs arrived, 1 without", id="lost"
        ),
        pytest.param(["arrived"], False, "ok", "1 of 1 VM arrived; each had", id="done"),
        pytest.param(
            ["arrived", "dropped"],
            False,
            "ok",
            "1 of 2 VMs arrived, 1 went elsewhere or needed no move; each had a slot to go to.",
            id="some needed no move",
        ),
        pytest.param([], False, "ok", "No VM was on it.", id="empty"),
    ],
)
def test_an_evacuation_says_how_far_it_is(
    admin_client: Client, states: list[str], is_open: bool, tone: str, words: str
) -> None:
    now = timezone.now()
    host, other = factories.make_host("h1"), factories.make_host("h4")
    plan = EvacuationPlan.objects.create(
        zone="az-a", state="open" if is_open else "done", failed_hosts=["h1", "h2", "h3"],
        started_at=now, changed_at=now, finished_at=None if is_open else now,
    )  # fmt: skip
    for number, state in enumerate(states):
        EvacuationMove.objects.create(
            plan=plan, vm_uuid=f"vm-{number}", state=state, from_host=host, changed_at=now,
            target_host=None if state == "unprotected" else other,
            reservation_name="" if state == "unprotected" else f"slot-{number}",
        )  # fmt: skip

    found = answered(admin_client, page_of(plan))

    assert found[0] == tone
    assert found[1].startswith("Evacuation of h1, h2 and 1 more: ")
    assert words in found[1]
    assert found[2].startswith("Evacuation of h1, h2 and 1 more | ")


def test_no_list_shows_a_moment_or_an_amount_of_bytes_raw(
    admin_client: Client, rf: RequestFactory
) -> None:
    ObservedHour.objects.create(at=datetime(2026, 1, 2, 3, tzinfo=UTC), observed_seconds=3600)
    page = admin_client.get(reverse("admin:commitments_observedhour_changelist"))
    assert "2026-01-02 03:00 UTC" in page.content.decode()

    request = rf.get("/")
    request.user = page.wsgi_request.user
    raw = []
    for model, model_admin in admin.site._registry.items():
        kinds = {field.name: field for field in model._meta.concrete_fields}
        for name in model_admin.get_list_display(request):
            if not isinstance(name, str) or name not in kinds or hasattr(model_admin, name):
                continue
            if isinstance(kinds[name], models.DateTimeField) or name.endswith("_bytes"):
                raw.append(f"{model._meta.label}.{name}")
    assert raw == []


def test_a_failover_slot_says_in_words_why_it_is_there(admin_client: Client) -> None:
    vm = factories.make_vm("web-1", factories.make_host("h1"))
    held = factories.make_reservation(
        factories.make_host("h2"),
        decision={"for_vm": vm.openstack_id, "hosts": {"eligible": 6, "compatible": 1900}},
    )
    row = FailoverReservation.objects.create(reservation=held, name="slot-1")

    page = admin_client.get(page_of(row)).content.decode()

    assert re.search(r"made for <a[^>]*>web-1</a>; hosts: 1,900 compatible, 6 eligible", page)


def test_a_host_says_its_state_and_what_is_left(admin_client: Client) -> None:
    host = factories.make_host("h1", memory_gib=64, vcpus=32)
    factories.make_vm(host=host, memory_gib=60, vcpus=4)
    tone, words, _ = answered(admin_client, page_of(host))
    left = "4 of 64 GiB and 28 vCPUs are free"
    assert (tone, words) == ("ok", f"h1 is ready: {left} 1 VM here.")

    host.state, host.down_since = "down", timezone.now()
    host.status, host.disabled_reason = "disabled", "its fan died"
    host.save()
    tone, words, _ = answered(admin_client, page_of(host))
    assert (tone, words.split(" Down since ")[0]) == ("bad", f"h1 is down, disabled: {left}")
    assert words.endswith(". its fan died. 1 VM here.")


def test_what_can_be_sold_begins_with_where_most_and_where_nothing(admin_client: Client) -> None:
    address = reverse("headroom_sell")
    tone, words, _ = answered(admin_client, address)
    assert (tone, words[:39]) == ("idle", "It is not computed yet what can be sold")
    assert "./run manage connect CLOUD" in words

    gib = 1 << 30
    for group, zone, free_gib in (("a", "az-a", 8), ("a", "az-b", 64), ("b", "az-a", 0)):
        factories.make_group_capacity(
            group,
            zone=zone,
            total_memory_bytes=64 * gib,
            free_memory_bytes=free_gib * gib,
        )
    tone, words, _ = answered(admin_client, address)
    assert tone == "warn"
    assert words == "Most can be sold of a in az-b: 64 GiB Nothing is left of b in az-a."
