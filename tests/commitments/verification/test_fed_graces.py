"""With a live feed nothing is given up that no completed pass could have seen."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from capacity.nova.in_flight import end_expired, end_failed_vms
from commitments.services.verification import VerificationReport
from hosts.feed.lists import PassKind
from hosts.models import FeedPass, Host
from tests.capacity.test_in_flight import NOW, list_vm, place
from tests.commitments.slot_worlds import accepted_slot, put_into, verify
from tests.factories import make_hosts

from .world import follows_changes, use_slots

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fed")]

MINUTE = timedelta(minutes=1)


@pytest.fixture
def fed(settings: Any) -> None:
    feed = settings.HEADROOM.feed.model_copy(update={"cloud": "mini"})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"feed": feed})


def read(kind: PassKind, at: Any) -> None:
    """A pass began at a time and was completed."""
    FeedPass.objects.update_or_create(kind=kind, defaults={"listed_at": at})


def test_a_vm_has_until_a_pass_that_began_after_its_grace_to_arrive(host_1: Host) -> None:
    slot = accepted_slot(host_1)
    put_into(slot, "nowhere", minutes=30)
    assert verify() == VerificationReport(), "nothing was ever read"
    read(PassKind.CHANGES, timezone.now() - 16 * MINUTE)
    assert verify() == VerificationReport(), "14 minutes after it was booked"
    read(PassKind.CHANGES, timezone.now() - 14 * MINUTE)
    assert verify().events == {"never_arrived": 1}


def test_a_vm_that_is_missing_has_its_settle_time_in_what_was_read(
    host_1: Host, settings: Any
) -> None:
    use_slots(settings, migration_settle_seconds=120)
    slot = accepted_slot(host_1)
    put_into(slot, "nowhere", minutes=30, is_confirmed=True)
    read(PassKind.CHANGES, timezone.now())
    assert verify().events == {"missing": 1}
    assert verify(60) == VerificationReport(), "nobody has looked since"
    read(PassKind.CHANGES, timezone.now() + 3 * MINUTE)
    assert verify(60).events == {"gone": 1}


@follows_changes
def test_a_slot_leaves_a_host_that_a_later_pass_still_saw_down(
    host_1: Host, host_new: Host
) -> None:
    accepted_slot(host_1)
    read(PassKind.CHANGES, timezone.now())
    read(PassKind.HOSTS, timezone.now())
    Host.objects.filter(pk=host_1.pk).update(state="down")
    assert verify(60) == VerificationReport(), "it may have come back"
    read(PassKind.HOSTS, timezone.now() + 11 * MINUTE)
    assert verify(60).events == {"slots_moved": 1}


def test_in_flight_rows_live_until_their_end_was_read() -> None:
    make_hosts(2)
    place("h1", "h2")
    late = NOW + 60 * MINUTE
    assert end_expired(late) == 0
    read(PassKind.CHANGES, NOW + 14 * MINUTE)
    assert end_expired(late) == 0
    read(PassKind.CHANGES, NOW + 15 * MINUTE)
    assert end_expired(late) == 2


def test_a_moved_vm_is_gone_when_a_pass_after_its_time_lacks_it() -> None:
    source, _ = make_hosts(2)
    list_vm(source, vm="other")
    place("h2", vm="moving", intent="resize", source_host="h1")
    late = NOW + 60 * MINUTE
    assert end_failed_vms(["moving"], now=late) == 0
    read(PassKind.CHANGES, late)
    assert end_failed_vms(["moving"], now=late) == 1
