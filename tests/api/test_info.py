from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from capacity.models import FlavorGroup, FlavorGroupMember, FlavorGroupSettings
from commitments.domain.conformance import check_info
from commitments.domain.statuses import CommitmentStatus
from commitments.models import ServiceInfoVersion
from commitments.services import info as info_service
from commitments.services.info import current_service_info
from hosts.models import Flavor
from tests.api.liquid_client import LiquidClient, assert_text
from tests.factories import make_commitment, make_flavor, make_group, make_snapshot

pytestmark = pytest.mark.django_db

RAM = "hw_version_hana_1_ram"
CHANGED_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def retire(name: str) -> None:
    FlavorGroup.objects.filter(name=name).update(is_retired=True)


def test_first_version_is_the_last_content_change(liquid: LiquidClient) -> None:
    make_group(content_changed_at=CHANGED_AT)
    assert liquid.get_info()["version"] == int(CHANGED_AT.timestamp())


def test_unchanged_content_keeps_version_and_bytes(liquid: LiquidClient) -> None:
    make_group()
    first = liquid.send("GET", "v1/info")
    assert liquid.send("GET", "v1/info").content == first.content


def test_version_survives_a_new_process(
    liquid: LiquidClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_group()
    version = liquid.get_info()["version"]
    monkeypatch.setattr(info_service, "_kept", None)
    assert current_service_info().version == version


def add_flavor() -> None:
    group = FlavorGroup.objects.get()
    flavor = make_flavor("huge", 1 << 20, 256, group=group.name)
    FlavorGroupMember.objects.create(group=group, flavor=flavor, position=99)


def change_unit() -> None:
    FlavorGroupSettings.objects.update(ram_unit_gib=16)


def change_flag() -> None:
    FlavorGroupSettings.objects.update(ram_has_quota=True)


def drop_settings() -> None:
    FlavorGroupSettings.objects.all().delete()


@pytest.mark.parametrize(
    "change",
    [add_flavor, change_unit, change_flag, drop_settings],
    ids=["flavor added", "ramUnitGiB 1 -> 16", "flag changed", "settings deleted"],
)
def test_version_grows_at_once_when_the_content_changes(liquid: LiquidClient, change: Any) -> None:
    make_group()
    before = liquid.get_info()
    change()
    after = liquid.get_info()
    assert after["version"] > before["version"]
    assert {**after, "version": 0} != {**before, "version": 0}
    assert current_service_info().version == after["version"]


def test_version_stays_when_only_a_description_of_a_flavor_changes(liquid: LiquidClient) -> None:
    make_group()
    before = liquid.get_info()
    for flavor in Flavor.objects.all():
        flavor.extra_specs = {**flavor.extra_specs, "description": "new words"}
        flavor.save()
    assert liquid.get_info() == before


def test_version_grows_even_when_the_clock_went_back(liquid: LiquidClient) -> None:
    make_group()
    liquid.get_info()
    future = int((timezone.now() + timedelta(days=365)).timestamp())
    ServiceInfoVersion.objects.update(version=future)
    change_unit()
    assert liquid.get_info()["version"] == future + 1


def test_other_process_that_saw_the_change_first_gives_the_same_version(
    liquid: LiquidClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_group()
    liquid.get_info()
    old = info_service._kept
    change_unit()
    version = liquid.get_info()["version"]
    monkeypatch.setattr(info_service, "_kept", old)
    assert current_service_info().version == version


@pytest.mark.django_db(transaction=True)  # a transaction that wrote keeps nothing in caches
def test_asking_for_the_version_again_costs_few_queries(
    liquid: LiquidClient, django_assert_max_num_queries: Any
) -> None:
    make_group()
    liquid.get_info()
    with django_assert_max_num_queries(3):
        current_service_info()


def test_snapshot_without_content_change_has_version_minus_one(liquid: LiquidClient) -> None:
    make_snapshot(None)
    assert liquid.get_info()["version"] == -1


def test_extracted_but_empty_flavor_groups_are_a_valid_info(liquid: LiquidClient) -> None:
    make_snapshot()
    info = liquid.get_info()
    assert info["resources"] == {}
    assert check_info(info) == ()


@pytest.mark.parametrize("memory_mib", [0])
def test_group_whose_flavors_have_no_memory_does_not_break_info(
    liquid: LiquidClient, memory_mib: int
) -> None:
    make_group("good", flavors=[("fine", 4096, 1)])
    make_group("bad", flavors=[("empty", memory_mib, 1)])
    resources = liquid.get_info()["resources"]
    assert {name.split("_")[2] for name in resources} == {"good"}


def test_group_with_a_name_that_limes_refuses_is_left_out(liquid: LiquidClient) -> None:
    make_group("good", flavors=[("fine", 4096, 1)])
    make_group("bad+name", flavors=[("other", 4096, 1)])
    info = liquid.get_info()
    assert check_info(info) == ()
    assert set(info["resources"]) == {
        "hw_version_good_cores",
        "hw_version_good_instances",
        "hw_version_good_ram",
    }


def test_retired_group_without_commitments_disappears(liquid: LiquidClient) -> None:
    make_group()
    before = liquid.get_info()["version"]
    retire("hana_1")
    info = liquid.get_info()
    assert info["resources"] == {}
    assert info["version"] > before


@pytest.mark.parametrize(
    ("state", "is_declared"),
    [
        (CommitmentStatus.PLANNED, True),
        (CommitmentStatus.PENDING, True),
        (CommitmentStatus.GUARANTEED, True),
        (CommitmentStatus.CONFIRMED, True),
        (CommitmentStatus.SUPERSEDED, False),
        (CommitmentStatus.EXPIRED, False),
    ],
)
def test_retired_group_stays_with_its_flags_while_commitments_live(
    liquid: LiquidClient, state: str, is_declared: bool
) -> None:
    make_group()
    make_commitment(state=state)
    before = liquid.get_info()
    assert before["resources"][RAM]["hasCapacity"]
    retire("hana_1")
    after = liquid.get_info()
    assert (RAM in after["resources"]) is is_declared
    if is_declared:
        assert after == before


def test_retired_group_whose_commitments_ended_long_ago_disappears(liquid: LiquidClient) -> None:
    make_group()
    make_commitment(end_time=timezone.now() - timedelta(days=1))
    retire("hana_1")
    assert liquid.get_info()["resources"] == {}


def test_unit_too_large_for_the_wire_is_503(
    liquid: LiquidClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_group()
    monkeypatch.setattr("capacity.groups.units.MAX_UNIT_FACTOR", 1)
    assert_text(liquid.send("GET", "v1/info"), 503, "temporarily unavailable", "RAM unit")
