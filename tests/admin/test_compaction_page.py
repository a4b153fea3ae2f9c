"""The page that shows which hosts could be freed, and frees them when asked to."""

from __future__ import annotations

import html
import re

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from capacity.models import Reservation
from commitments.models import CompactionRun, SlotCheck
from hosts.models import Host
from journal.models import AuditEntry
from tests.commitments.slot_worlds import accepted_slot, vm_on
from tests.factories import make_group, make_host

pytestmark = pytest.mark.django_db


@pytest.fixture
def check() -> SlotCheck:
    """A zone with a host that could be freed, one in use, and one that is free."""
    make_group("hana_1", flavors=[("small", 4096, 1)])
    make_host("spare", memory_gib=960, vcpus=80)
    accepted_slot(make_host("half", memory_gib=960, vcpus=80))
    vm_on(make_host("used", memory_gib=960, vcpus=80))
    return SlotCheck.objects.create(zone="az-a", fully_checked_at=timezone.now())


def asked(client: Client, check: SlotCheck, *, is_applied: bool = False) -> str:
    response = client.post(
        reverse("admin:commitments_slotcheck_changelist"),
        {
            "action": "free_hosts_action",
            ACTION_CHECKBOX_NAME: [check.pk],
            **({"apply": "1"} if is_applied else {}),
        },
        follow=True,
    )
    assert response.status_code == 200
    return html.unescape(response.content.decode())


def test_page_shows_what_would_move_and_what_that_frees(
    admin_client: Client, check: SlotCheck
) -> None:
    page = asked(admin_client, check)
    assert "az-a: 1 host would be free after 1 move" in page
    assert "1 free now, 2 then: 960 GiB in whole hosts" in page
    assert re.search(r">half</a>.*960 GiB, 80 vCPUs.*480 GiB.*>used</a>", page, re.DOTALL)
    assert re.search(r"VMs run there; Headroom does not move VMs</td><td[^>]*>1</td>", page)
    assert "Move them now" in page
    assert Reservation.objects.get().target_host == Host.objects.get(name="half")
    assert not CompactionRun.objects.exists()


def test_page_carries_it_out_when_asked(admin_client: Client, check: SlotCheck) -> None:
    page = asked(admin_client, check, is_applied=True)
    assert "az-a: 1 host freed, 1 slot moved" in page
    assert Reservation.objects.get().target_host == Host.objects.get(name="used")
    assert AuditEntry.objects.get(action="slot_moved_to_free_host").actor == "admin:admin"
    assert "No host would be free" in asked(admin_client, check)


def test_page_says_why_nothing_may_move(admin_client: Client, check: SlotCheck) -> None:
    SlotCheck.objects.update(is_refused=True, message="9 of 10 VMs are gone")
    page = asked(admin_client, check)
    assert "Nothing may move now: the VM list is not believed: 9 of 10 VMs are gone." in page
    assert "Move them now" not in page
    assert "9 of 10 VMs are gone" in asked(admin_client, check, is_applied=True)
    assert Reservation.objects.get().target_host == Host.objects.get(name="half")


def test_who_may_only_look_sees_the_plan_and_cannot_carry_it_out(
    client: Client, check: SlotCheck
) -> None:
    user = get_user_model().objects.create_user("staff", password="x", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_slotcheck"))
    client.force_login(user)
    for is_applied in (False, True):
        page = asked(client, check, is_applied=is_applied)
        assert "1 host would be free" in page
        assert "Move them now" not in page
    assert not CompactionRun.objects.exists()
