"""Pages call objects by their names; ids stay on hover and on the pages of the objects."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from commitments.models import AssignmentPeriod, Commitment
from commitments.usage_models import CommitmentAccount
from console.names import Names, kind_words, mentioned, name_rows
from failover.models import FailoverDecision
from hosts.models import Instance, Project, ServerGroup, ServerMigration
from journal.models import AuditEntry, Outbox
from placement.models import AllocationEvent, Consumer, ResourceProvider
from tests import factories
from tests.placement.rows import grow_providers
from webhooks.models import Delivery

PROJECT = "11111111111111111111111111111111"


def seen(html: str) -> str:
    """Return what of a page is read: neither tags nor what they say on hover."""
    return unescape(re.sub(r"<[^>]*>", "", html))


def listed(client: Client, model: Any, **asked: str) -> str:
    meta = model._meta
    answer = client.get(reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist"), asked)
    assert answer.status_code == 200
    text = answer.content.decode()
    start = text.find('id="result_list"')
    return text[start : text.find("</table>", start)] if start >= 0 else ""


@pytest.fixture
def vm(db: None) -> Instance:
    factories.make_project(PROJECT, name="blue-shop")
    return factories.make_vm("web-1", factories.make_host("node-1"), project_id=PROJECT)


@pytest.fixture
def commitment(vm: Instance) -> Commitment:
    return factories.make_commitment(amount_gib=48, project_id=PROJECT)


class TestAudit:
    def test_object_reason_and_facts_are_called_by_name(
        self, admin_client: Client, vm: Instance, commitment: Commitment
    ) -> None:
        AuditEntry.objects.create(
            actor="limes",
            action="changed",
            object_type="Commitment",
            object_id=commitment.commitment_uuid,
            reason=f"VM {vm.openstack_id} of {PROJECT} <left>",
            after={"projectID": PROJECT},
        )
        html = listed(admin_client, AuditEntry)
        text = seen(html)
        assert "commitment 48 GiB of hana_1 in az-a" in text
        assert "VM web-1 of blue-shop <left>" in text
        assert "projectID: blue-shop" in text
        for public_id in (commitment.commitment_uuid, vm.openstack_id, PROJECT):
            assert public_id not in text
            assert f'title="{public_id}"' in html

    def test_a_commitment_that_is_gone_is_called_by_what_it_was(
        self, admin_client: Client, commitment: Commitment
    ) -> None:
        facts = commitment.accepted_spec
        uuid = commitment.commitment_uuid
        commitment.delete()
        AuditEntry.objects.create(
            actor="x", action="y", object_type="Commitment", object_id=uuid, before=facts
        )
        html = listed(admin_client, AuditEntry)
        assert "commitment 48 GiB of hana_1 in az-a" in seen(html)
        assert f'title="{uuid}"' in html

    def test_a_long_request_is_told_by_its_end(self, admin_client: Client, db: None) -> None:
        request = "committed-resource-0123456789abcdef"
        for request_id in (request, "short"):
            AuditEntry.objects.create(
                actor="x", action="slot_vms_changed", object_type="y", request_id=request_id
            )
        html = listed(admin_client, AuditEntry)
        assert {"…456789abcdef", "short", "slot", "VMs"} <= {*seen(html).split()}
        assert f'title="{request}"' in html

    def test_what_has_no_name_keeps_its_id(self, admin_client: Client, db: None) -> None:
        gone = factories.make_uuid()
        AuditEntry.objects.create(
            actor="x", action="y", object_type="vm", object_id=gone, reason=f"{gone} went"
        )
        assert seen(listed(admin_client, AuditEntry)).count(gone) == 2

    def test_the_statements_of_a_list_do_not_grow_with_its_rows(
        self, admin_client: Client, vm: Instance, commitment: Commitment
    ) -> None:
        def statements() -> int:
            with CaptureQueriesContext(connection) as captured:
                listed(admin_client, AuditEntry)
            return len(captured)

        def write(count: int) -> None:
            for _ in range(count):
                row = factories.make_vm(host=vm.host)
                slot = factories.make_slot(commitment, vm.host)
                AuditEntry.objects.create(
                    actor="x",
                    action="y",
                    object_type="Reservation",
                    object_id=str(slot.uuid),
                    reason=row.openstack_id,
                )

        write(1)
        statements()
        few = statements()
        write(30)
        assert statements() == few


def test_lists_name_the_objects_that_they_hold_ids_of(
    admin_client: Client, vm: Instance, commitment: Commitment
) -> None:
    uuid = vm.openstack_id
    factories.make_assignment(commitment, vm)
    CommitmentAccount.objects.create(
        commitment_uuid=commitment.commitment_uuid,
        project_id=PROJECT,
        zone="az-a",
        flavor_group_name="hana_1",
        resource_type="memory",
        promised_amount=48 << 10,
        used_amount=0,
        is_open=True,
        seen_at=timezone.now(),
    )
    ServerGroup.objects.create(openstack_id="g", name="apart", project_id=PROJECT, members=[uuid])
    ServerMigration.objects.create(
        uuid="m", vm_uuid=uuid, migration_type="resize", status="running", source_name="node-1"
    )
    Outbox.objects.create(topic="t", object_type="vm", object_id=uuid, payload={})
    factories.make_slot(commitment, vm.host)
    lists = {
        AssignmentPeriod: ("web-1", "48 GiB of hana_1 in az-a", "blue-shop"),
        CommitmentAccount: ("hana_1", "blue-shop"),
        Commitment: ("hana_1", "blue-shop"),
        Instance: ("web-1", "blue-shop", "48 GiB of hana_1 in az-a"),
        ServerGroup: ("apart", "blue-shop"),
        ServerMigration: ("web-1", "node-1"),
        Outbox: ("VM web-1",),
        Project: ("blue-shop",),
    }
    for model, names in lists.items():
        text = seen(listed(admin_client, model))
        assert [name for name in names if name not in text] == [], model
        ids = (uuid, PROJECT, commitment.commitment_uuid)
        assert [one for one in ids if one in text] == [], model


def test_consumers_and_providers_are_called_by_name(admin_client: Client, vm: Instance) -> None:
    consumer_uuid = UUID(vm.openstack_id)
    grow_providers("node-1", consumer_uuid=consumer_uuid)
    consumer = Consumer.objects.get(uuid=consumer_uuid)
    provider = ResourceProvider.objects.filter(allocations__consumer=consumer).first()
    assert provider is not None
    AllocationEvent.objects.create(
        consumer_uuid=consumer_uuid,
        provider_uuid=provider.uuid,
        resource_class="VCPU",
        previous=0,
        amount=1,
        actor="nova",
    )
    text = seen(listed(admin_client, Consumer))
    assert "web-1" in text
    assert vm.openstack_id not in text
    assert str(provider.uuid) not in seen(listed(admin_client, ResourceProvider))
    page = admin_client.get(
        reverse("admin:placement_resourceprovider_change", args=[provider.pk])
    ).content.decode()
    assert "web-1" in seen(page)
    assert vm.openstack_id not in seen(page)


@pytest.mark.parametrize("asked", ["web-1", "blue-shop"])
def test_rows_are_found_by_the_names_that_they_show(
    admin_client: Client, vm: Instance, commitment: Commitment, asked: str
) -> None:
    other = factories.make_vm("other", vm.host, project_id="elsewhere")
    for one in (vm, other):
        FailoverDecision.objects.create(
            vm_uuid=one.openstack_id,
            zone="az-a",
            required_count=1,
            current_count=0,
            since=timezone.now(),
        )
    if asked == "web-1":
        text = seen(listed(admin_client, FailoverDecision, q=asked))
    else:
        factories.make_commitment(project_id="elsewhere", group="other_1")
        assert "other_1" not in seen(listed(admin_client, Commitment, q=asked))
        assert "hana_1" in seen(listed(admin_client, Commitment, q=asked))
        text = seen(listed(admin_client, Instance, q=asked))
    assert "web-1" in text
    assert "other" not in text


def test_a_delivery_names_what_it_is_about(vm: Instance) -> None:
    row = Delivery(object_type="vm", object_id=vm.openstack_id)
    name_rows([row], ("object_id",))
    assert row.names.of("Instance", vm.openstack_id) == "web-1"  # type: ignore[attr-defined]


TEXTS = st.text(alphabet=st.characters(exclude_categories=("Cs", "Cc")), max_size=12)
UUIDS = st.uuids().map(str)


class Known(Names):
    """Names that no database is asked for."""

    def __init__(self, known: dict[str, str]) -> None:
        super().__init__(known)
        self.__dict__ |= {
            "_named": {("vm", uuid): name for uuid, name in known.items()},
            "_commitments": {},
            "_reservations": {},
        }


@given(
    known=st.dictionaries(UUIDS, TEXTS.filter(str.strip), max_size=3),
    unknown=st.lists(UUIDS, max_size=2),
    between=st.lists(TEXTS, min_size=6, max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_a_text_reads_the_same_with_names_for_the_ids_that_have_one(
    known: dict[str, str], unknown: list[str], between: list[str], order: Any
) -> None:
    parts = [*known, *(one for one in unknown if one not in known)]
    order.shuffle(parts)
    words = [f"{text} {part} " for text, part in zip(between, parts, strict=False)]
    text = "".join(words) + between[-1]
    told = "".join(
        f"{text} {known.get(part, part)} " for text, part in zip(between, parts, strict=False)
    )
    html = str(Known(known).linked(text))
    if not known:
        assert html == text
        return
    assert unescape(re.sub(r'<a class="hr-link"[^>]*>|</a>', "", html)) == told + between[-1]
    assert html.count("<a ") == len(known)


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ("ResourceProvider", "resource provider"),
        ("host_key", "host key"),
        ("Instance", "VM"),
        ("vm", "VM"),
        ("Commitment", "commitment"),
    ],
)
def test_kinds_of_objects_are_told_in_words(stored: str, words: str) -> None:
    assert kind_words(stored) == words


def test_ids_are_found_in_values_of_every_kind() -> None:
    uuid = "00000000-0000-4000-8000-00000000000a"
    for content in (uuid, UUID(uuid), {"a": [uuid]}, [{"b": uuid}], f"VM {uuid}, gone"):
        assert uuid in set(mentioned(content))
    assert list(mentioned(None)) == list(mentioned(7)) == []
    assert list(mentioned("of all hosts")) == []
