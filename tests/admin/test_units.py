"""A column has one unit, which its heading says; lists sort and export by it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.contrib.admin.views.main import ChangeList
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from capacity.models import HostCapacity
from commitments.domain.statuses import ResourceType
from commitments.models import Commitment
from failover.models import FailoverReservation
from hosts.models import Host
from tests import factories

pytestmark = pytest.mark.django_db
GIB = 1 << 30


def cells(client: Client, model: Any, name: str, **asked: str) -> list[str]:
    """Return the texts of a column, in the order of the list."""
    meta = model._meta
    answer = client.get(reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist"), asked)
    found = re.findall(
        rf'<t[dh] class="field-{name} .*?>(.*?)</t[dh]>', answer.content.decode(), re.DOTALL
    )
    return [re.sub(r"<[^>]*>", "", one).strip() for one in found]


def place_of(client: Client, model: Any, name: str) -> str:
    meta = model._meta
    answer = client.get(reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist"))
    changelist: ChangeList = answer.context["cl"]
    return str(list(changelist.list_display).index(name))


def exported(client: Client, model: Any) -> list[dict[str, Any]]:
    meta = model._meta
    answer = client.get(reverse(f"admin:{meta.app_label}_{meta.model_name}_export_json"))
    rows: list[dict[str, Any]] = json.loads(answer.content)
    return rows


def test_hosts_have_a_column_for_each_resource(admin_client: Client) -> None:
    small = factories.make_host("small", memory_gib=64, vcpus=32)
    factories.make_host("large", memory_gib=2048, vcpus=16)
    factories.make_vm(host=small, memory_gib=60, vcpus=4)
    for model in (Host, HostCapacity):
        assert cells(admin_client, model, "effective_gib") == ["2,048", "64"]
        assert cells(admin_client, model, "effective_vcpus_count") == ["16", "32"]
        assert cells(admin_client, model, "allocated_gib") == ["0", "60"]
    assert cells(admin_client, Host, "free_gib") == ["2,048", "4"]
    assert cells(admin_client, Host, "free_vcpus_count") == ["16", "28"]
    order = place_of(admin_client, Host, "free_gib")
    assert cells(admin_client, Host, "free_gib", o=order) == ["4", "2,048"]
    order = place_of(admin_client, Host, "free_vcpus_count")
    assert cells(admin_client, Host, "free_vcpus_count", o=order) == ["16", "28"]
    (row,) = [one for one in exported(admin_client, Host) if one["name"] == "small"]
    assert (row["allocated_memory_bytes"], row["allocated_vcpus"]) == (60 * GIB, 4)
    assert (row["free_memory_bytes"], row["free_vcpus"]) == (4 * GIB, 28)


def test_a_host_with_more_promised_than_it_has_is_marked(admin_client: Client) -> None:
    host = factories.make_host(memory_gib=64)
    HostCapacity.objects.filter(host=host).update(allocated_memory_bytes=70 * GIB)
    (cell,) = cells(admin_client, Host, "free_gib")
    assert cell.split() == ["error", "-6"]


def test_commitments_have_memory_and_vcpus_apart(admin_client: Client) -> None:
    factories.make_commitment(amount_gib=48)
    factories.make_commitment(
        resource_type=ResourceType.CORES, requested_amount=96, group="cores_1"
    )
    order = place_of(admin_client, Commitment, "vcpus")
    assert cells(admin_client, Commitment, "memory_gib", o=order) == ["—", "48"]
    assert cells(admin_client, Commitment, "vcpus", o=order) == ["96", "—"]
    rows = {one["resource_type"]: one for one in exported(admin_client, Commitment)}
    assert not {"requested_amount", "accepted_amount", "used_amount"} & set(rows["memory"])
    told = {
        kind: [
            rows[kind][f"{word}_{unit}"]
            for word in ("requested", "accepted")
            for unit in ("memory_bytes", "vcpus")
        ]
        for kind in rows
    }
    assert told == {"memory": [48 * GIB, None] * 2, "cores": [None, 96] * 2}


def test_the_use_of_a_commitment_is_a_share(admin_client: Client) -> None:
    for group, used_gib in (("memory", 12), ("idle", 0)):
        factories.make_commitment(
            amount_gib=48,
            group=group,
            last_usage_reconcile_at=timezone.now(),
            used_memory_bytes=used_gib * GIB,
        )
    factories.make_commitment(amount_gib=48, group="unknown")
    order = place_of(admin_client, Commitment, "named")
    shown = cells(admin_client, Commitment, "used_share", o=order)
    assert [one.split()[-2:] for one in shown] == [["schedule", "idle"], ["25", "%"], ["—"]]


def test_failover_reservations_have_memory_and_vcpus_apart(admin_client: Client) -> None:
    for number, (memory_gib, vcpus) in enumerate([(512, 8), (64, 64)]):
        held = factories.make_reservation(
            factories.make_host(f"h{number}", memory_gib=1024, vcpus=128),
            memory_gib=memory_gib,
            vcpus=vcpus,
        )
        FailoverReservation.objects.create(reservation=held, name=f"failover-{number}")
    assert cells(admin_client, FailoverReservation, "memory_gib") == ["512", "64"]
    order = place_of(admin_client, FailoverReservation, "vcpus")
    assert cells(admin_client, FailoverReservation, "vcpus", o=f"-{order}") == ["64", "8"]
    rows = exported(admin_client, FailoverReservation)
    assert [(row["memory_bytes"], row["vcpus"]) for row in rows] == [(512 * GIB, 8), (64 * GIB, 64)]
    assert [(row["zone"], row["host_name"]) for row in rows] == [("az-a", "h0"), ("az-a", "h1")]
