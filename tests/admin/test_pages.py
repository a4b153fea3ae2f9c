from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from capacity.figures.group_capacity import ensure_fresh
from capacity.models import (
    FlavorGroupRule,
    FlavorGroupSettings,
    HostCapacity,
    Pipeline,
    Reservation,
    ReservationKind,
)
from commitments.domain.statuses import CommitmentStatus
from commitments.models import AssignmentPeriod, Commitment, Condition
from commitments.usage_models import GroupPrice
from console.base import CappedPaginator
from failover.models import FailoverDecision, FailoverPolicy
from hosts.models import Host, Instance, OvercommitRule, PlannedHostChange
from journal.models import AuditEntry
from placement.models import ResourceClass, Trait
from tests import factories
from tests.admin.conftest import grow_region
from webhooks.models import Endpoint

EDITABLE = {
    FlavorGroupSettings,
    FlavorGroupRule,
    OvercommitRule,
    Pipeline,
    PlannedHostChange,
    User,
    Group,
    FailoverPolicy,
    GroupPrice,
    Endpoint,
}
CATALOGUES = {ResourceClass, Trait}
"""Whose rows every region has, all alike."""
MODELS = sorted(admin.site._registry, key=lambda model: model._meta.label)
PARTS = [pytest.param(MODELS[start::4], id=str(start)) for start in range(4)]
FILTERS: Mapping[type[Model], Sequence[str]] = {
    Host: ("zone=az-a", "ready=yes", "ready=no", "trait=CUSTOM_X", "state__exact=up"),
    AssignmentPeriod: ("lasting=yes", "lasting=no", "resource_type=memory"),
    Commitment: ("fulfilled=no", "fulfilled=yes", "zone=az-a"),
}
LIST_QUERY_LIMIT = 12
PAGE_QUERY_LIMIT = 26


def page_url(model: type[Model], kind: str, *args: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{kind}", args=args)


def label(model: type[Model]) -> str:
    return model._meta.label_lower


def count_queries(client: Client, url: str) -> int:
    """Count the queries of a page that was opened before: process caches are warm."""
    client.get(url)
    return queries_of(client, url)


def queries_of(client: Client, url: str) -> int:
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200, url
    return len(captured)


def searched_and_filtered(model: type[Model]) -> Iterator[str]:
    """Return the list of a model, searched, filtered and ordered by every column."""
    url = page_url(model, "changelist")
    if admin.site.get_model_admin(model).search_fields:
        yield f"{url}?q=x"
    yield from (f"{url}?{query}" for query in FILTERS.get(model, ()))
    yield f"{url}?o={'.'.join(map(str, range(1, 13)))}"


@pytest.mark.usefixtures("region")
def test_each_list_opens_with_a_constant_number_of_queries(admin_client: Client) -> None:
    for model in MODELS:
        for address in searched_and_filtered(model):
            assert admin_client.get(address).status_code == 200, address
    lists = {label(model): page_url(model, "changelist") for model in MODELS}
    before = {name: queries_of(admin_client, url) for name, url in lists.items()}
    grow_region(3)

    first = {name: queries_of(admin_client, url) for name, url in lists.items()}
    others = [name for name, count in first.items() if count != before[name]]
    grown = {name: queries_of(admin_client, lists[name]) for name in others}

    assert {name: count for name, count in first.items() if count > LIST_QUERY_LIMIT} == {}
    assert first | grown == before


@pytest.mark.parametrize("models", PARTS)
@pytest.mark.usefixtures("region")
def test_each_row_has_a_page_with_few_queries(
    models: Sequence[type[Model]], admin_client: Client
) -> None:
    Group.objects.create(name="auditors")
    costly: dict[str, int] = {}
    for model in models:
        rows = list(model._default_manager.all()[: 3 if model in CATALOGUES else 20])
        assert rows, f"the region fixture makes one of each {label(model)}"
        addresses = [page_url(model, "change", row.pk) for row in rows]
        assert admin_client.get(page_url(model, "history", rows[0].pk)).status_code == 200, model
        if model in EDITABLE:
            deleting = page_url(model, "delete", rows[0].pk)
            assert admin_client.get(deleting).status_code == 200, model
        else:
            assert_is_the_systems(model, rows[0], admin_client)
        costly |= {
            address: count
            for address in addresses
            if (count := queries_of(admin_client, address)) > PAGE_QUERY_LIMIT
        }
    assert costly == {}


def assert_is_the_systems(model: type[Model], row: Model, client: Client) -> None:
    """A row that the system owns cannot be changed, and its page says why."""
    url = page_url(model, "change", row.pk)
    assert client.get(page_url(model, "add")).status_code == 403, model
    assert client.post(url, {}).status_code == 403, model
    deleted = client.post(page_url(model, "delete", row.pk), {"post": "yes"})
    assert deleted.status_code == 403, model
    note = admin.site.get_model_admin(model).owner_note  # type: ignore[attr-defined]  # SystemOwnedAdmin
    page = client.get(url).content.decode()
    assert "Read-only." in page, model
    assert note.split(".")[0].replace("'", "&#x27;") in page, model


@pytest.mark.usefixtures("region")
def test_pages_need_a_signed_in_operator(client: Client) -> None:
    response = client.get(page_url(Commitment, "changelist"))

    assert response.status_code == 302
    assert "/admin/login/" in response["Location"]


@pytest.mark.django_db
def test_the_queries_of_a_commitment_page_do_not_grow_with_its_slots(admin_client: Client) -> None:
    factories.make_group()
    hosts = factories.make_hosts(6)
    commitment = factories.make_commitment(amount_gib=4)
    factories.make_vm(host=hosts[0], slot=factories.make_slot(commitment, hosts[0]))
    url = page_url(Commitment, "change", commitment.pk)
    before = count_queries(admin_client, url)
    for host in hosts[1:]:
        factories.make_vm(host=host, slot=factories.make_slot(commitment, host))
        factories.make_event(commitment)

    assert count_queries(admin_client, url) == before


@pytest.mark.django_db
def test_a_commitment_page_shows_slots_on_hosts_vms_and_events(admin_client: Client) -> None:
    factories.make_group()
    host = factories.make_host("h1", memory_gib=64, vcpus=32)
    factories.make_project(name="hana-prod")
    commitment = factories.make_commitment(amount_gib=16, ready_message="reserved")
    slot = factories.make_slot(commitment, host, memory_gib=16, vcpus=4)
    factories.make_vm("vm-in-slot", host, slot=slot, memory_gib=4)
    factories.make_vm("other-vm", host, memory_gib=8, vcpus=2)
    factories.make_event(
        commitment,
        before={"amount": 8 << 30, "resourceType": "memory"},
        after={"amount": 16 << 30, "resourceType": "memory"},
        reason="Limes asked for more",
    )

    page = admin_client.get(page_url(Commitment, "change", commitment.pk)).content.decode()

    assert "Accepted: 16 GiB of hana_1 in az-a" in page
    assert "hana-prod" in page
    assert page_url(Host, "change", host.pk) in page
    assert "VMs inside this commitment: 4 GiB" in page
    assert "held for this commitment: 12 GiB" in page
    assert "other VMs: 8 GiB" in page
    assert "free: 40 GiB" in page
    assert "vm-in-slot" in page
    assert "amount: 8 GiB → 16 GiB" in page
    assert "Limes asked for more" in page


@pytest.mark.django_db
def test_the_bar_of_an_over_subscribed_host_says_so(admin_client: Client) -> None:
    host = factories.make_host("h1", memory_gib=8)
    factories.make_vm(host=host, memory_gib=12)

    page = admin_client.get(page_url(Host, "change", host.pk)).content.decode()

    assert "4 GiB over-subscribed" in page
    assert "capacity ends here" in page


@pytest.mark.django_db
def test_a_host_without_a_capacity_row_has_a_page(admin_client: Client) -> None:
    host = factories.make_host("h1")
    HostCapacity.objects.all().delete()

    assert admin_client.get(page_url(Host, "changelist")).status_code == 200
    page = admin_client.get(page_url(Host, "change", host.pk)).content.decode()

    assert "nothing can be placed here" in page


@pytest.mark.django_db
def test_the_dashboard_puts_unfulfilled_commitments_first(
    admin_client: Client, django_assert_max_num_queries: Any
) -> None:
    factories.make_host("h1", zone="az-a", memory_gib=64)
    factories.make_commitment()
    waiting = factories.make_commitment(
        state=CommitmentStatus.PENDING,
        ready_status=False,
        ready_reason=Condition.RESERVING,
        ready_message="largest free room: 2 GiB",
    )
    url = reverse("admin:index")
    before = count_queries(admin_client, url)
    grow_region(5)

    with django_assert_max_num_queries(before):
        page = admin_client.get(url).content.decode()

    assert page.index("largest free room: 2 GiB") < page.index('aria-label="Zones"')
    assert page_url(Commitment, "change", waiting.pk) in page
    assert "never seen" in page


@pytest.mark.django_db
def test_the_dashboard_opens_on_an_empty_database(admin_client: Client) -> None:
    page = admin_client.get(reverse("admin:index")).content.decode()

    assert "No host is known: ./run manage connect CLOUD" in page
    assert "Every live commitment is held as promised." in page


@pytest.mark.usefixtures("region")
def test_an_audit_entry_leads_to_its_object(admin_client: Client) -> None:
    entry = AuditEntry.objects.filter(object_type="Commitment").latest("id")
    commitment = Commitment.objects.get(commitment_uuid=entry.object_id)

    response = admin_client.get(
        reverse("admin:headroom_find", args=[entry.object_type, entry.object_id])
    )

    assert response.status_code == 302
    assert response["Location"] == page_url(Commitment, "change", commitment.pk)


@pytest.mark.parametrize("object_type", ["commitment", "no such type"])
def test_a_link_to_a_gone_object_leads_back_with_a_word(
    admin_client: Client, object_type: str
) -> None:
    url = reverse("admin:headroom_find", args=[object_type, "gone"])

    page = admin_client.get(url, follow=True).content.decode()

    assert "is not known here" in page


@pytest.mark.parametrize(
    ("before", "leads_to"),
    [
        ("http://testserver/admin/hosts/host/?q=a", "http://testserver/admin/hosts/host/?q=a"),
        ("https://elsewhere.example/admin/", "/admin/"),
        ("//elsewhere.example/", "/admin/"),
        ("javascript:alert(1)//testserver.", "/admin/"),
        ("nothing", "nothing"),
        ("", "/admin/"),
    ],
)
@pytest.mark.django_db
def test_a_link_to_a_gone_object_leads_back_to_us_alone(
    admin_client: Client, before: str, leads_to: str
) -> None:
    url = reverse("admin:headroom_find", args=["commitment", "gone"])

    answer = admin_client.get(url, headers={"Referer": before})

    assert (answer.status_code, answer["Location"]) == (302, leads_to)


@pytest.mark.django_db
def test_a_vm_page_names_its_commitment_and_reservation(admin_client: Client) -> None:
    host = factories.make_host()
    commitment = factories.make_commitment()
    slot = factories.make_slot(commitment, host)
    vm = factories.make_vm(host=host, slot=slot)
    factories.make_assignment(commitment, vm)

    page = admin_client.get(page_url(Instance, "change", vm.pk)).content.decode()

    assert f"/find/commitment/{commitment.commitment_uuid}/" in page
    assert page_url(Reservation, "change", slot.pk) in page


@pytest.mark.django_db
def test_a_vm_page_says_of_failover_what_the_decision_says(admin_client: Client) -> None:
    host, other = factories.make_host("h1"), factories.make_host("h2")
    vm = factories.make_vm(host=host)
    FailoverPolicy.objects.create(flavor_pattern="*", required_count=1, position=1)
    slot = factories.make_reservation(other)
    factories.make_allocation(slot, vm, state="expected")
    url = page_url(Instance, "change", vm.pk)

    page = admin_client.get(url).content.decode()
    assert "(expected)" not in page
    assert "1 of 1" in page

    FailoverDecision.objects.create(
        vm_uuid=vm.openstack_id,
        zone="az-a",
        required_count=1,
        current_count=0,
        reason="no_room",
        since=timezone.now(),
        tried_at=timezone.now(),
    )
    page = admin_client.get(url).content.decode()
    assert "0 of 1: no host has room; 1 reservation does not count" in page
    assert "(expected)" not in page


def test_the_dashboard_counts_pending_alike_in_committed_and_reserved(
    admin_client: Client,
) -> None:
    factories.make_group(flavors=[("small", 4096, 1)])
    host = factories.make_host("h1", memory_gib=64)
    for number, (state, is_accepted) in enumerate(
        [
            (CommitmentStatus.CONFIRMED, True),
            (CommitmentStatus.PENDING, True),
            (CommitmentStatus.PENDING, False),
        ]
    ):
        row = factories.make_commitment(
            f"cccccccc-00000{number}", amount_gib=8, state=state, is_accepted=is_accepted
        )
        if is_accepted:
            factories.make_slot(row, host, memory_gib=8)
    ensure_fresh(["az-a"])
    dashboard = admin_client.get(reverse("admin:index")).context["dashboard"]
    (line,) = dashboard.groups
    assert (line.committed, line.reserved_unused) == ("16 GiB", "16 GiB")


def test_a_moving_reservation_is_shown_on_both_hosts(admin_client: Client) -> None:
    old, new = factories.make_hosts(2)
    row = factories.make_reservation(
        old, kind=ReservationKind.FAILOVER, target_host=new, confirmed_host=old
    )

    for host in (old, new):
        page = admin_client.get(page_url(Host, "change", host.pk)).content.decode()
        assert page_url(Reservation, "change", row.pk) in page
        assert "moving" in page


@pytest.mark.django_db
def test_a_large_table_is_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.base.lists.COUNT_CAP", 3)
    factories.make_hosts(5)

    paginator = CappedPaginator(Host.objects.filter(zone="az-a"), 2)

    assert (paginator.count, paginator.count_text) == (3, "more than 3")


@pytest.mark.django_db
def test_a_small_table_is_counted_exactly() -> None:
    factories.make_hosts(5)

    paginator = CappedPaginator(Host.objects.order_by("name"), 2)

    assert (paginator.count, paginator.count_text, paginator.num_pages) == (5, "5", 3)


@pytest.mark.django_db
def test_an_empty_list_invites_only_to_what_can_be_done(admin_client: Client) -> None:
    for model in MODELS:
        url = page_url(model, "changelist")
        bare = admin_client.get(url).content.decode()
        assert "Create a new item" not in bare, model
        if not model._default_manager.exists():
            expected = getattr(admin.site.get_model_admin(model), "empty_note", "")
            assert expected, f"an empty list of {model} says why, and what would fill it"
            assert expected in unescape(bare), model


@pytest.mark.django_db
def test_a_search_without_a_find_invites_to_nothing(admin_client: Client) -> None:
    said = admin_client.get(page_url(Host, "changelist") + "?q=nothing-like-it").content.decode()

    assert "No row fits this search and these filters." in said
    assert "Create a new item" not in said
