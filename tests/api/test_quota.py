from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from django.db import DatabaseError
from kombu.exceptions import OperationalError as BrokerError

from capacity.models import FlavorGroup, ProjectQuota
from journal.models import AuditEntry, Outbox
from tests.api.conftest import Configure
from tests.api.liquid_client import PROJECT, LiquidClient, assert_text
from tests.factories import make_group, make_host, make_quota

pytestmark = pytest.mark.django_db

RAM = "hw_version_hana_1_ram"
CORES = "hw_version_hana_1_cores"
INSTANCES = "hw_version_hana_1_instances"
METADATA = {
    "uuid": PROJECT,
    "name": "billing-prod",
    "domain": {"uuid": "domain-1", "name": "customers"},
}


@pytest.fixture(autouse=True)
def group() -> FlavorGroup:
    return make_group(quota=("ram", "cores"))


def body(metadata: dict[str, Any] | None = None, **units: int) -> dict[str, Any]:
    """Quota of memory per zone: ``body(az_a=60)``."""
    per_zone = {zone.replace("_", "-"): {"quota": number} for zone, number in units.items()}
    request: dict[str, Any] = {
        "resources": {RAM: {"quota": sum(units.values()), "perAZ": per_zone}}
    }
    if metadata is not None:
        request["projectMetadata"] = metadata
    return request


def put(liquid: LiquidClient, request: Any) -> None:
    response = liquid.send("PUT", liquid.quota(), request)
    assert response.status_code == 204, response.content
    assert response.content == b""
    assert response["X-Request-ID"]


def stored(resource: str = RAM) -> dict[str, int]:
    return {
        row.zone: row.quota_by_resource[resource]
        for row in ProjectQuota.objects.filter(project_id=PROJECT)
        if resource in row.quota_by_resource
    }


def test_create_stores_one_row_per_zone(liquid: LiquidClient) -> None:
    put(liquid, body(az_a=60, az_b=40))
    assert stored() == {"az-a": 60, "az-b": 40}


def test_dead_broker_does_not_turn_a_stored_quota_into_an_error(
    liquid: LiquidClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BrokerError

    monkeypatch.setattr(Celery, "send_task", refuse)
    put(liquid, body(az_a=60))
    assert stored() == {"az-a": 60}


def test_metadata_is_stored(liquid: LiquidClient) -> None:
    put(liquid, body(METADATA, az_a=1))
    row = ProjectQuota.objects.get()
    assert (row.project_name, row.domain_id, row.domain_name) == (
        "billing-prod",
        "domain-1",
        "customers",
    )


@pytest.mark.parametrize("metadata", [None, {}, {"name": "", "domain": None}])
def test_missing_metadata_keeps_what_is_stored(
    liquid: LiquidClient, metadata: dict[str, Any] | None
) -> None:
    put(liquid, body(METADATA, az_a=1))
    put(liquid, body(metadata, az_a=2))
    row = ProjectQuota.objects.get()
    assert (row.project_name, row.domain_id, row.domain_name) == (
        "billing-prod",
        "domain-1",
        "customers",
    )
    assert stored() == {"az-a": 2}


def test_update_replaces_quota_and_metadata(liquid: LiquidClient) -> None:
    put(liquid, body(METADATA, az_a=10))
    put(liquid, body({**METADATA, "name": "renamed"}, az_a=99))
    assert stored() == {"az-a": 99}
    assert ProjectQuota.objects.get().project_name == "renamed"


def test_update_of_one_zone_adds_the_other(liquid: LiquidClient) -> None:
    put(liquid, body(az_a=50))
    put(liquid, body(az_a=120, az_b=80))
    assert stored() == {"az-a": 120, "az-b": 80}


def test_zone_that_is_no_longer_named_loses_its_row(liquid: LiquidClient) -> None:
    put(liquid, body(az_a=1, az_b=2))
    make_quota("other-project", "az-b")
    put(liquid, body(az_a=1))
    assert stored() == {"az-a": 1}
    assert ProjectQuota.objects.filter(project_id="other-project").count() == 1


def test_no_resources_delete_every_row_of_the_project(liquid: LiquidClient) -> None:
    put(liquid, body(az_a=1, az_b=2))
    requests: list[dict[str, Any]] = [{"resources": {}}, {"resources": None}, {}]
    for empty in requests:
        put(liquid, empty)
        assert stored() == {}


def test_resource_that_is_no_longer_named_loses_its_quota(liquid: LiquidClient) -> None:
    put(liquid, {"resources": {CORES: {"quota": 5, "perAZ": {"az-a": {"quota": 5}}}}})
    put(liquid, body(az_a=1))
    assert (stored(), stored(CORES)) == ({"az-a": 1}, {})


def test_zones_that_are_not_served_are_dropped_silently(
    liquid: LiquidClient, configure: Configure
) -> None:
    configure(liquid={"quota_served_zones": ("az-a",)})
    put(liquid, body(az_a=50, az_b=30, az_c=20))
    assert stored() == {"az-a": 50}


@pytest.mark.parametrize("zone", ["any", "unknown", "total", ""])
def test_zone_that_no_backend_serves_is_skipped(liquid: LiquidClient, zone: str) -> None:
    request = body(az_a=50)
    request["resources"][RAM]["perAZ"][zone] = {"quota": 7}
    put(liquid, request)
    assert stored() == {"az-a": 50}


def test_memory_is_stored_in_gib(liquid: LiquidClient) -> None:
    make_group("two", flavors=[("two", 2048, 1)], ram_unit_gib=2)
    name = "hw_version_two_ram"
    put(liquid, {"resources": {name: {"quota": 5, "perAZ": {"az-a": {"quota": 5}}}}})
    assert stored(name) == {"az-a": 10}


@pytest.mark.parametrize("name", ["hw_version_two_cores", "hw_version_gone_ram", "other"])
def test_counts_and_unknown_resources_are_stored_as_they_are(
    liquid: LiquidClient, name: str
) -> None:
    make_group("two", flavors=[("two", 2048, 1)], ram_unit_gib=2)
    put(liquid, {"resources": {name: {"quota": 5, "perAZ": {"az-a": {"quota": 5}}}}})
    assert stored(name) == {"az-a": 5}


def test_sum_of_the_zones_is_ignored(liquid: LiquidClient) -> None:
    request = body(az_a=5)
    request["resources"][RAM]["quota"] = 999
    request["resources"][CORES] = {"quota": 7}
    put(liquid, request)
    assert (stored(), stored(CORES)) == ({"az-a": 5}, {})


def test_zero_without_zones_is_zero_in_every_stored_and_served_zone(liquid: LiquidClient) -> None:
    make_host(zone="az-c")
    put(liquid, body(az_a=5))
    put(liquid, {"resources": {RAM: {"quota": 0}, INSTANCES: {"quota": 0, "perAZ": {}}}})
    assert stored() == {"az-a": 0, "az-c": 0}
    assert stored(INSTANCES) == {"az-a": 0, "az-c": 0}
    usage = liquid.report_usage("az-a", "az-c")["resources"][RAM]["perAZ"]
    assert [usage[zone]["quota"] for zone in ("az-a", "az-c")] == [0, 0]


def test_zero_without_zones_keeps_to_the_configured_zones(
    liquid: LiquidClient, configure: Configure
) -> None:
    make_quota(PROJECT, "az-x")
    configure(liquid={"quota_served_zones": ("az-a", "az-b")})
    put(liquid, {"resources": {RAM: {"quota": 0}}})
    assert stored() == {"az-a": 0, "az-b": 0}


def test_zero_without_zones_of_an_unknown_resource_stores_nothing(liquid: LiquidClient) -> None:
    put(liquid, {"resources": {"hw_version_gone_ram": {"quota": 0}}})
    assert not ProjectQuota.objects.exists()


BAD = {
    "metadata of another project": {"projectMetadata": {"uuid": "other"}},
    "quota 2^63": {"resources": {RAM: {"perAZ": {"az-a": {"quota": 2**63}}}}},
    "quota 2^64": {"resources": {RAM: {"perAZ": {"az-a": {"quota": 2**64}}}}},
    "negative quota": {"resources": {RAM: {"perAZ": {"az-a": {"quota": -1}}}}},
    "fraction": {"resources": {RAM: {"perAZ": {"az-a": {"quota": 1.5}}}}},
    "integral float": {"resources": {RAM: {"perAZ": {"az-a": {"quota": 1.0}}}}},
    "boolean": {"resources": {RAM: {"perAZ": {"az-a": {"quota": True}}}}},
    "text": {"resources": {RAM: {"perAZ": {"az-a": {"quota": "1"}}}}},
    "list of zones": {"resources": {RAM: {"perAZ": [1]}}},
    "list of resources": {"resources": []},
    "long zone": {"resources": {RAM: {"perAZ": {"z" * 256: {"quota": 1}}}}},
    "NUL in zone": {"resources": {RAM: {"perAZ": {"a\x00": {"quota": 1}}}}},
    "long resource": {"resources": {"r" * 256: {"quota": 1}}},
    "NUL in name": {"projectMetadata": {"name": "a\x00"}},
    "long name": {"projectMetadata": {"name": "n" * 256}},
    "long domain": {"projectMetadata": {"domain": {"uuid": "d" * 65}}},
    "name is a number": {"projectMetadata": {"name": 7}},
}


@pytest.mark.parametrize("request_body", BAD.values(), ids=list(BAD))
def test_bad_request_is_400_and_changes_nothing(liquid: LiquidClient, request_body: Any) -> None:
    put(liquid, body(az_a=5))
    assert_text(liquid.send("PUT", liquid.quota(), request_body), 400)
    assert stored() == {"az-a": 5}


def test_quota_that_overflows_in_gib_is_400(liquid: LiquidClient) -> None:
    make_group("two", flavors=[("two", 2048, 1)], ram_unit_gib=2)
    entry = {"quota": 1, "perAZ": {"az-a": {"quota": 2**63 - 1}}}
    request = {"resources": {"hw_version_two_ram": entry}}
    assert_text(liquid.send("PUT", liquid.quota(), request), 400, "hw_version_two_ram", "2^63-1")
    assert not ProjectQuota.objects.exists()


def test_largest_quota_is_stored_exactly(liquid: LiquidClient) -> None:
    put(liquid, body(az_a=2**63 - 1))
    assert stored() == {"az-a": 2**63 - 1}


def test_failing_storage_is_500_naming_the_zones_and_changes_nothing(
    liquid: LiquidClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        message = "disk full"
        raise DatabaseError(message)

    monkeypatch.setattr("capacity.figures.quota.record_changes", fail)
    assert_text(liquid.send("PUT", liquid.quota(), body(az_a=1, az_b=2)), 500, "az-a, az-b")
    assert not ProjectQuota.objects.exists()


def test_unknown_fields_are_ignored(liquid: LiquidClient) -> None:
    request = body(az_a=5)
    request["new"] = {"x": 1}
    request["resources"][RAM]["perAZ"]["az-a"]["new"] = [1]
    put(liquid, request)
    assert stored() == {"az-a": 5}


def test_same_request_twice_writes_once(liquid: LiquidClient) -> None:
    put(liquid, body(METADATA, az_a=5, az_b=6))
    before = list(ProjectQuota.objects.values_list("pk", "generation", "changed_xid"))
    entries = AuditEntry.objects.count()
    put(liquid, body(METADATA, az_a=5, az_b=6))
    assert list(ProjectQuota.objects.values_list("pk", "generation", "changed_xid")) == before
    assert AuditEntry.objects.count() == entries


def test_generation_grows_with_each_real_change(liquid: LiquidClient) -> None:
    for number in (1, 1, 2, 3):
        put(liquid, body(az_a=number))
    assert ProjectQuota.objects.get().generation == 3


def test_changes_are_audited_and_announced(liquid: LiquidClient) -> None:
    put(liquid, body(az_a=1, az_b=2))
    response = liquid.send("PUT", liquid.quota(), body(az_a=3), X_Request_ID="abc-1")
    assert response.status_code == 204
    entries = {
        (entry.action, entry.object_id): entry
        for entry in AuditEntry.objects.filter(request_id="committed-resource-abc-1")
    }
    assert set(entries) == {("quota_set", f"{PROJECT}/az-a"), ("quota_removed", f"{PROJECT}/az-b")}
    changed = entries["quota_set", f"{PROJECT}/az-a"]
    assert changed.actor == "limes"
    assert changed.before is not None
    assert changed.before["quota_by_resource"] == {RAM: 1}
    assert changed.after is not None
    assert changed.after["quota_by_resource"] == {RAM: 3}
    assert Outbox.objects.filter(topic="project_quota").count() == 4


def test_pushed_quota_is_what_usage_reports(liquid: LiquidClient) -> None:
    put(liquid, body(az_a=60, az_b=40))
    per_zone = liquid.report_usage("az-a", "az-b", "az-c")["resources"][RAM]["perAZ"]
    assert [per_zone[zone]["quota"] for zone in ("az-a", "az-b", "az-c")] == [60, 40, -1]
