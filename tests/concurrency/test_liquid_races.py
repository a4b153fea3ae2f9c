from __future__ import annotations

import multiprocessing
import threading

import pytest
from django.db import connection, transaction

from capacity.figures.quota import WantedQuota, replace_project_quota
from capacity.models import FlavorGroup, FlavorGroupMember, FlavorGroupSettings, ProjectQuota
from commitments.models import (
    Commitment,
    InstanceAssignment,
    PublishedServiceInfo,
    ServiceInfoVersion,
)
from commitments.services.info import check_info_version, current_service_info
from commitments.services.usage import reconcile_project_usage
from journal.actors import Actor
from tests.commitments.change_requests import change, decide_ram
from tests.concurrency.at_once import all_at_once, wait_for_a_blocked_session
from tests.factories import (
    DEFAULT_PROJECT_ID,
    make_commitment,
    make_flavor,
    make_group,
    make_host,
    make_quota,
    make_vm,
)
from tests.killing import in_children

pytestmark = pytest.mark.django_db(transaction=True)

THREADS = 6


def test_replicas_that_see_a_change_at_once_agree_on_one_new_version() -> None:
    make_group()
    before = current_service_info().version
    FlavorGroupSettings.objects.update(ram_unit_gib=16)
    versions = all_at_once(lambda _: current_service_info().version, THREADS)
    assert len(set(versions)) == 1
    assert versions[0] > before
    assert ServiceInfoVersion.objects.get().version == versions[0]


def test_processes_that_publish_at_once_keep_one_row_of_each_version() -> None:
    make_group()
    before = current_service_info().version
    FlavorGroupSettings.objects.update(ram_unit_gib=16)
    barrier = multiprocessing.get_context("fork").Barrier(2)

    def publish() -> None:
        barrier.wait(timeout=30)
        current_service_info()

    assert in_children([publish, publish]) == [True, True]
    rows = PublishedServiceInfo.objects.order_by("version")
    after = current_service_info().version
    assert [row.version for row in rows] == [before, after]
    assert [row.replaced_at is None for row in rows] == [False, True]
    units = [row.resources["hw_version_hana_1_ram"]["unit"] for row in rows]
    assert units == ["GiB", "16 GiB"]


def test_a_request_with_the_version_before_is_checked_while_the_next_is_published() -> None:
    make_group()
    before = current_service_info().version
    add_flavor()

    def check(number: int) -> int:
        if number % 2:
            return current_service_info().version
        check_info_version(before, ["hw_version_hana_1_ram"])
        return 0

    results = all_at_once(check, THREADS)
    assert results[::2] == [0] * (THREADS // 2)
    assert set(results[1::2]) == {current_service_info().version}


def add_flavor() -> None:
    group = FlavorGroup.objects.get()
    flavor = make_flavor("huge", 1 << 20, 256, group=group.name)
    FlavorGroupMember.objects.create(group=group, flavor=flavor, position=99)


def test_first_versions_of_replicas_agree() -> None:
    make_group()
    assert len(set(all_at_once(lambda _: current_service_info().version, THREADS))) == 1


def test_quota_pushed_at_once_is_that_of_one_request_as_a_whole() -> None:
    def push(number: int) -> None:
        zones = ("az-a", "az-b") if number % 2 else ("az-b", "az-c")
        replace_project_quota(
            WantedQuota(project_id="p1", by_zone={zone: {"ram": number} for zone in zones}),
            served_zones=(),
            actor=Actor(name="anonymous"),
            request_id=f"r{number}",
        )

    assert all_at_once(push, THREADS) == [None] * THREADS
    rows = {row.zone: row.quota_by_resource["ram"] for row in ProjectQuota.objects.all()}
    (number,) = set(rows.values())
    assert set(rows) == ({"az-a", "az-b"} if number % 2 else {"az-b", "az-c"})


def test_quota_is_locked_in_the_order_of_those_who_count_it() -> None:
    """A zone may come later than others that stand after it in the alphabet."""
    first, second = (make_quota("p1", zone) for zone in ("az-b", "az-a"))
    wanted = {zone: {"ram": 1} for zone in ("az-a", "az-b")}

    def push() -> None:
        replace_project_quota(
            WantedQuota(project_id="p1", by_zone=wanted),
            served_zones=(),
            actor=Actor(name="anonymous"),
            request_id="r",
        )
        connection.close()

    pusher = threading.Thread(target=push)
    with transaction.atomic():
        ProjectQuota.objects.select_for_update().get(pk=first.pk)
        pusher.start()
        wait_for_a_blocked_session()
        ProjectQuota.objects.select_for_update(nowait=True).get(pk=second.pk)
    pusher.join(timeout=60)
    assert {row.zone: row.quota_by_resource for row in ProjectQuota.objects.all()} == wanted


def test_commitments_are_locked_in_the_order_of_those_who_count_their_usage() -> None:
    """Whatever the order of the request."""
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_host()
    uuids = [f"{letter * 8}-0000-4000-8000-000000000001" for letter in "ab"]
    assert decide_ram("alpha", *[change(uuid, 1) for uuid in uuids]).rejection_reason == ""
    first, second = Commitment.objects.order_by("pk")
    grown = [change(row.commitment_uuid, 2, old="confirmed") for row in (second, first)]
    reasons: list[str] = []

    def ask() -> None:
        reasons.append(decide_ram("alpha", *grown).rejection_reason)
        connection.close()

    asker = threading.Thread(target=ask)
    with transaction.atomic():
        Commitment.objects.select_for_update().get(pk=first.pk)
        asker.start()
        wait_for_a_blocked_session()
        Commitment.objects.select_for_update(nowait=True).get(pk=second.pk)
    asker.join(timeout=60)
    assert reasons == [""]


def test_usage_reconciled_at_once_assigns_each_vm_once() -> None:
    make_group(flavors=[("small", 4096, 1)])
    host = make_host()
    for _ in range(5):
        make_vm(host=host)
    make_commitment(amount_gib=8)
    make_commitment(amount_gib=8)
    runs = all_at_once(
        lambda _: (
            reconcile_project_usage(
                DEFAULT_PROJECT_ID, actor=Actor(name="anonymous"), request_id="r"
            ).assigned
        ),
        THREADS,
    )
    assert runs == [4] * THREADS
    assert InstanceAssignment.objects.count() == 4
