"""A flavor group goes while the first commitment for it comes (spec commitments, 4.6)."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
from django.db import connection, transaction

from capacity.groups.refreshing import refresh_flavor_groups
from capacity.locks import zone_lock
from capacity.models import FlavorGroup
from commitments.domain.limes_intake import Converted
from commitments.models import Commitment
from commitments.services.apply import apply_admission
from commitments.services.intake import Intake, take_in_commitments
from hosts.models import Flavor
from journal.actors import Actor
from tests.commitments.change_requests import NOW, change, decide_ram
from tests.commitments.test_limes_service import STATE
from tests.concurrency.at_once import wait_for_a_blocked_session
from tests.factories import make_group, make_hosts

pytestmark = pytest.mark.django_db(transaction=True)

ACTOR = Actor(name="test")


def lose_flavors() -> None:
    Flavor.objects.update(extra_specs={})


def refresh() -> None:
    refresh_flavor_groups(actor=ACTOR, request_id="r")


def apart(*work: Callable[[], object]) -> Thread:
    """Do it in a session of its own; return the thread, which was started."""

    def run() -> None:
        try:
            for one in work:
                one()
        finally:
            connection.close()

    thread = Thread(target=run)
    thread.start()
    return thread


def test_a_group_stays_for_its_first_commitment_that_is_being_admitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_hosts(1, memory_gib=8, vcpus=8)
    refreshing: list[Thread] = []

    def applied_late(application: Any) -> None:
        refreshing.append(apart(lose_flavors, refresh))
        refreshing[0].join(timeout=1)
        apply_admission(application)

    monkeypatch.setattr("commitments.services.change.apply_admission", applied_late)
    assert not decide_ram("alpha", change("aaaaaaaa-0000", 2)).rejection_reason
    refreshing[0].join()

    assert Commitment.objects.get().flavor_group_name == "hana_1"
    assert FlavorGroup.objects.get().is_retired


def test_a_group_that_is_going_has_its_first_commitment_refused() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_hosts(1, memory_gib=8, vcpus=8)
    answers: list[str] = []

    def ask() -> None:
        answers.append(decide_ram("alpha", change("aaaaaaaa-0000", 2)).rejection_reason)

    lose_flavors()
    with transaction.atomic():
        refresh()
        asking = apart(ask)
        wait_for_a_blocked_session()
    asking.join()

    assert "hana_1" in answers[0]
    assert not Commitment.objects.exists()
    assert not FlavorGroup.objects.exists()


def test_a_refresh_that_removes_nothing_waits_for_no_zone() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_hosts(1, memory_gib=8, vcpus=8)
    assert not decide_ram("alpha", change("aaaaaaaa-0000", 2)).rejection_reason
    lose_flavors()
    with transaction.atomic():
        zone_lock(["az-a"])
        apart(refresh).join()
    assert FlavorGroup.objects.get().is_retired


def test_a_commitment_that_limes_lists_for_a_group_that_went_meanwhile_makes_no_row() -> None:
    intake = Intake(actor=ACTOR, request_id="r", now=NOW)
    with transaction.atomic():
        result = take_in_commitments([(Converted(limes_id=1, state=STATE), {})], intake)
    assert [reason for _, reason, _ in result.skipped] == ["unknown_flavor_group"]
    assert not Commitment.objects.exists()
