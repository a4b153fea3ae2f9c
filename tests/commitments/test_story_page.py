"""The whole story of a commitment on one page."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from commitments.models import Commitment, SlotCheck
from commitments.services.usage import reconcile_project_usage
from console.commitments.commitment_page import story_page
from console.links import row_url
from journal.actors import task_actor
from scheduling.resources import GIB
from tests.commitments.slot_worlds import PROJECT, accepted_slot, commitment_of, put_into, vm_on
from tests.factories import make_event, make_group, make_host

pytestmark = pytest.mark.django_db


@pytest.fixture
def commitment() -> Commitment:
    make_group("hana_1", flavors=[("half", 240 * 1024, 20)])
    host = make_host("host-1", memory_gib=1920, vcpus=160)
    slot = accepted_slot(host)
    row = commitment_of(slot)
    inside = vm_on(host, name="inside", flavor_name="half")
    vm_on(host, name="beside", flavor_name="half")
    vm_on(host, name="third", flavor_name="half")
    put_into(slot, inside.openstack_id, minutes=30, is_confirmed=True)
    make_event(row, "commitment_reserving", after={"state": "pending"}, reason="no room yet")
    make_event(row, after={"state": "confirmed"}, reason="held")
    row.accepted_amount = row.requested_amount
    row.save()
    reconcile_project_usage(PROJECT, actor=task_actor("test"), request_id="r")
    row.refresh_from_db()
    return row


def test_story_tells_periods_covered_vms_and_what_is_paid_as_it_goes(
    commitment: Commitment,
) -> None:
    story = story_page(commitment, timezone.now() + timedelta(hours=1))
    assert [(one.state, one.condition, one.is_now) for one in story.periods] == [
        ("confirmed", "Accepted", True),
        ("pending", "Reserving", False),
    ]
    assert len(story.vms) == 2
    assert {vm.slot for vm in story.vms} <= {"slot 0", "in no slot"}
    assert story.covered == "It covers 2 VMs with 480 GiB; 0 GiB of it is left."
    assert "runs 1 VM of hana_1 in az-a that no commitment covers: 240 GiB" in story.payg
    assert story.slots_verdict == "1 slot ready"


def test_page_shows_the_story(commitment: Commitment, admin_client: Client) -> None:
    page = admin_client.get(row_url(commitment)).content.decode()
    for words in ("Its life so far", "no room yet", "What it covers", "inside", "pay as you go"):
        assert words in page


def test_commitment_without_a_past_has_a_page_too(admin_client: Client) -> None:
    host = make_host("host-1", memory_gib=960, vcpus=80)
    row = commitment_of(accepted_slot(host))
    page = admin_client.get(row_url(row)).content.decode()
    assert "Its life so far" not in page
    assert "VMs were not assigned yet." in page


def test_rejected_commitment_says_what_it_still_holds(
    commitment: Commitment, admin_client: Client
) -> None:
    Commitment.objects.update(
        ready_status=False, ready_reason="Rejected", requested_amount=960 * GIB
    )
    page = admin_client.get(row_url(commitment)).content.decode()
    assert "goes on holding the 480 GiB that were accepted before" in page


def test_command_looks_and_refuses_a_list_that_shrank(
    commitment: Commitment, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("verify_slots")
    assert "az-a: VMs listed when last believed: 3" in capsys.readouterr().out
    SlotCheck.objects.update(listed_vms=100)
    with pytest.raises(CommandError, match="shrank from 100 to 3 VMs"):
        call_command("verify_slots", "--json", "--zone", "az-a")
    call_command("verify_slots", "--accept-vm-list")
    assert SlotCheck.objects.get().listed_vms == 3


def test_page_shows_the_term_that_limes_lists(commitment: Commitment, admin_client: Client) -> None:
    assert "Term in Limes" in admin_client.get(row_url(commitment)).content.decode()
    Commitment.objects.update(limes_record={"duration": "3year,5month"})
    assert "3 years, 5 months" in admin_client.get(row_url(commitment)).content.decode()
