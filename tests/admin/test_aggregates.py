from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from hosts.models import Aggregate
from tests.factories import make_host

pytestmark = pytest.mark.django_db


def test_the_page_of_a_large_aggregate_links_to_the_list_of_its_hosts(admin_client: Client) -> None:
    names = [f"node{number}" for number in range(1, 1002)]
    row = Aggregate.objects.create(uuid="uuid-1", name="many", host_names=names[::-1])
    address = reverse("admin:hosts_aggregate_change", args=[row.pk])

    page = admin_client.get(address).content.decode()

    shown = [name for name in names if f"/host/{name}/" in page]
    assert shown == names[:200]
    assert f'{reverse("admin:hosts_host_changelist")}?aggregate=uuid-1">all 1,001</a>' in page


def test_hosts_are_filtered_by_aggregate(admin_client: Client) -> None:
    for name in ("node-a", "node-b", "node-c"):
        make_host(name)
    Aggregate.objects.create(uuid="uuid-1", name="pair", host_names=["node-a", "node-c", "gone"])
    Aggregate.objects.create(uuid="uuid-2", name="one", host_names=["node-b"])

    answer = admin_client.get(reverse("admin:hosts_host_changelist"), {"aggregate": "uuid-1"})

    assert [row.name for row in answer.context["cl"].queryset.order_by("name")] == [
        "node-a",
        "node-c",
    ]
