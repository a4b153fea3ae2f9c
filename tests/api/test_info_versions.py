"""Which versions of the ServiceInfo a change request may name (liquid, 2.4; decisions)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.db.models.functions import Now
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capacity.models import FlavorGroup, FlavorGroupMember, FlavorGroupSettings
from commitments.domain.service_info import TERMS, changed_term
from commitments.models import Commitment, PublishedServiceInfo, ServiceInfoVersion
from tests.api.liquid_client import LiquidClient, assert_text
from tests.factories import make_flavor, make_group, make_host

pytestmark = pytest.mark.django_db

RAM, CORES = "hw_version_hana_1_ram", "hw_version_hana_1_cores"
A = "aaaaaaaa-0000-4000-8000-000000000001"


@pytest.fixture
def cloud(liquid: LiquidClient) -> LiquidClient:
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    make_host("h1", zone="az-a", memory_gib=10, vcpus=40)
    return liquid


def add_flavor(group: str = "hana_1") -> None:
    row = FlavorGroup.objects.get(name=group)
    flavor = make_flavor(f"{group}-huge", 1 << 20, 256, group=group)
    FlavorGroupMember.objects.create(group=row, flavor=flavor, position=99)


def send(
    cloud: LiquidClient, version: int, resource: str = RAM, *, is_dry_run: bool = False
) -> Any:
    commitment = {"uuid": A, "newStatus": "confirmed", "amount": 1}
    commitment |= {"expiresAt": "2099-01-01T00:00:00Z"}
    changes = {"totalConfirmedAfter": 1, "commitments": [commitment]}
    body = {
        "az": "az-a",
        "infoVersion": version,
        "dryRun": is_dry_run,
        "byProject": {"alpha": {"byResource": {resource: changes}}},
    }
    return cloud.send("POST", cloud.change, body)


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_a_new_flavor_fails_no_request_that_knows_the_version_before(
    cloud: LiquidClient, *, is_dry_run: bool
) -> None:
    before = cloud.get_info()["version"]
    add_flavor()
    assert cloud.get_info()["version"] > before
    answer = send(cloud, before, is_dry_run=is_dry_run)
    assert (answer.status_code, answer.json()) == (200, {})


def test_the_version_before_is_known_when_the_request_itself_finds_the_change(
    cloud: LiquidClient,
) -> None:
    before = cloud.get_info()["version"]
    add_flavor()
    assert send(cloud, before).json() == {}


def test_a_new_group_fails_no_request_about_others(cloud: LiquidClient) -> None:
    before = cloud.get_info()["version"]
    make_group("gp_1", flavors=[("gp", 2048, 4)])
    assert send(cloud, before).json() == {}
    assert_text(
        send(cloud, before, "hw_version_gp_1_ram"), 409, "hw_version_gp_1_ram is new", str(before)
    )


def change_unit() -> None:
    FlavorGroupSettings.objects.filter(group_name="hana_1").update(ram_unit_gib=2)


def change_flag() -> None:
    FlavorGroupSettings.objects.filter(group_name="hana_1").update(ram_has_quota=True)


def lose_the_group() -> None:
    FlavorGroup.objects.all().delete()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(change_unit, f"unit of {RAM} was GiB, is 2 GiB", id="unit"),
        pytest.param(change_flag, f"hasQuota of {RAM} was False, is True", id="flag"),
        pytest.param(lose_the_group, f"{RAM} is gone", id="gone"),
    ],
)
def test_a_version_that_said_something_else_is_stale(
    cloud: LiquidClient, change: Callable[[], None], words: str
) -> None:
    before = cloud.get_info()["version"]
    change()
    current = cloud.get_info()["version"]
    assert_text(send(cloud, before), 409, str(before), str(current), words)
    assert not Commitment.objects.exists()


def test_other_resources_of_the_group_are_not_stale_with_it(cloud: LiquidClient) -> None:
    before = cloud.get_info()["version"]
    change_unit()
    answer = send(cloud, before, CORES)
    assert answer.status_code == 200  # whatever the answer, the version is not the reason


@pytest.mark.parametrize(("hours", "status"), [(23, 200), (25, 409)])
def test_a_version_is_accepted_for_a_day_after_it_was_replaced(
    cloud: LiquidClient, hours: int, status: int
) -> None:
    before = cloud.get_info()["version"]
    add_flavor()
    cloud.get_info()
    replaced = PublishedServiceInfo.objects.filter(version=before)
    replaced.update(
        published_at=Now() - timedelta(days=30),
        replaced_at=F("replaced_at") - timedelta(hours=hours),
    )
    assert send(cloud, before).status_code == status


def test_versions_that_nobody_may_use_are_forgotten(cloud: LiquidClient) -> None:
    first = cloud.get_info()["version"]
    add_flavor()
    second = cloud.get_info()["version"]
    PublishedServiceInfo.objects.filter(version=first).update(
        replaced_at=Now() - timedelta(hours=25)
    )
    change_flag()
    third = cloud.get_info()["version"]
    kept = PublishedServiceInfo.objects.order_by("version").values_list("version", flat=True)
    assert list(kept) == [second, third]


def test_a_version_that_nobody_ever_published_is_stale(cloud: LiquidClient) -> None:
    current = cloud.get_info()["version"]
    assert_text(send(cloud, current - 1), 409, str(current - 1), str(current))
    assert_text(send(cloud, current + 1), 409)


def test_a_version_stored_by_the_release_before_gets_its_row(cloud: LiquidClient) -> None:
    before = cloud.get_info()["version"]
    PublishedServiceInfo.objects.all().delete()
    assert cloud.get_info()["version"] == before
    add_flavor()
    assert send(cloud, before).json() == {}
    assert ServiceInfoVersion.objects.get().version > before


terms = st.fixed_dictionaries({term: st.sampled_from(["a", "b"]) for term in TERMS})
infos = st.dictionaries(st.sampled_from(["x", "y", "z"]), terms)


@given(infos, infos, st.lists(st.sampled_from(["x", "y", "z", "nobody"])))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_only_what_the_request_names_is_compared(
    before: dict[str, Any], after: dict[str, Any], names: list[str]
) -> None:
    same = all(before.get(name) == after.get(name) for name in names)
    assert (changed_term(before, after, names) is None) == same
