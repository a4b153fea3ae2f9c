from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from capacity.locks import take_lock
from capacity.models import FlavorGroupSnapshot
from commitments.domain.conformance import check_usage
from commitments.metrics import UNKNOWN_ZONE_VMS
from commitments.models import Commitment
from commitments.services.usage import reconcile_all_usage, reconcile_project_usage
from hosts.models import Host, Instance
from journal.actors import task_actor
from journal.errors import Busy
from scheduling.resources import GIB, MIB
from tests.api.conftest import Configure
from tests.api.liquid_client import PROJECT, LiquidClient
from tests.factories import make_commitment, make_group, make_host, make_quota, make_vm

pytestmark = pytest.mark.django_db

RAM = "hw_version_hana_1_ram"
CORES = "hw_version_hana_1_cores"
INSTANCES = "hw_version_hana_1_instances"
HANA = [("small", 1024, 4), ("large", 4096, 16), ("xl", 8192, 32)]
GENERAL = [("gp-small", 1024, 1), ("gp-medium", 2048, 4)]
SIZES = {name: (mib, vcpus) for name, mib, vcpus in (*HANA, *GENERAL)}
T0 = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def groups() -> None:
    make_group("hana_1", flavors=HANA, quota=("ram",))
    make_group("gp_1", flavors=GENERAL)


def vm(flavor: str = "large", *, zone: str = "az-a", created: datetime = T0, **more: Any) -> str:
    host = Host.objects.filter(zone=zone).first() or make_host(f"h-{zone}", zone=zone or "az-a")
    mib, vcpus = SIZES[flavor]
    row = make_vm(
        host=host,
        flavor_name=flavor,
        memory_gib=0,
        vcpus=vcpus,
        project_id=PROJECT,
        zone=zone,
        nova_created_at=created,
        **more,
    )
    Instance.objects.filter(pk=row.pk).update(memory_bytes=mib * MIB)
    return row.openstack_id


def commitment(gib: int, *, start: datetime | None = None, **more: Any) -> str:
    row = make_commitment(amount_gib=gib, project_id=PROJECT, start_time=start, **more)
    assert row.accepted_spec is not None
    accepted = {**row.accepted_spec, "startTime": start.isoformat() if start else None}
    Commitment.objects.filter(pk=row.pk).update(accepted_spec=accepted)
    return row.commitment_uuid


def report(liquid: LiquidClient, *zones: str) -> dict[str, Any]:
    reconcile_project_usage(PROJECT, actor=task_actor("test"), request_id="r")
    zones = zones or ("az-a", "az-b")
    answer = liquid.report_usage(*zones)
    assert check_usage(answer, liquid.get_info(), zones) == ()
    return answer


def usage(answer: dict[str, Any], resource: str, zone: str = "az-a") -> int:
    found: int = answer["resources"][resource]["perAZ"][zone]["usage"]
    return found


def covered(answer: dict[str, Any]) -> dict[str, str | None]:
    return {
        sub["id"]: sub["attributes"]["commitment_id"]
        for resource in answer["resources"].values()
        for entry in resource["perAZ"].values()
        for sub in entry.get("subresources", [])
    }


def test_no_vms_and_no_commitments_are_zero_everywhere(liquid: LiquidClient) -> None:
    answer = report(liquid)
    for resource in answer["resources"].values():
        assert resource["forbidden"] is False
        assert {entry["usage"] for entry in resource["perAZ"].values()} == {0}
        assert all("subresources" not in entry for entry in resource["perAZ"].values())
    assert set(answer) == {"infoVersion", "resources"}


def test_vm_goes_to_its_commitment(liquid: LiquidClient) -> None:
    one, c = vm(), commitment(4)
    answer = report(liquid)
    assert (usage(answer, RAM), usage(answer, CORES), usage(answer, INSTANCES)) == (4, 16, 1)
    assert covered(answer) == {one: c}


def test_vm_without_commitment_is_pay_as_you_go(liquid: LiquidClient) -> None:
    one = vm()
    answer = report(liquid)
    assert usage(answer, RAM) == 4
    assert covered(answer) == {one: None}


def test_commitment_of_eight_covers_the_two_oldest_of_three(liquid: LiquidClient) -> None:
    vms = [vm(created=T0 + number * HOUR) for number in range(3)]
    c = commitment(8)
    answer = report(liquid)
    assert usage(answer, RAM) == 12
    assert covered(answer) == {vms[0]: c, vms[1]: c, vms[2]: None}


def test_oldest_vm_wins_whatever_the_order_of_rows(liquid: LiquidClient) -> None:
    vms = [vm(created=T0 - number * HOUR) for number in range(3)]
    c = commitment(4)
    assert covered(report(liquid)) == {vms[0]: None, vms[1]: None, vms[2]: c}


def test_largest_of_equally_old_vms_wins(liquid: LiquidClient) -> None:
    small, large, xl = vm("small"), vm("large"), vm("xl")
    c = commitment(8)
    answer = report(liquid)
    assert usage(answer, RAM) == 13
    assert covered(answer) == {xl: c, small: None, large: None}


def test_older_commitment_is_filled_first(liquid: LiquidClient) -> None:
    first, second = vm(), vm(created=T0 + HOUR)
    now = timezone.now()
    new, old = commitment(4, start=now - HOUR), commitment(4, start=now - 2 * HOUR)
    assert covered(report(liquid)) == {first: old, second: new}


def test_commitment_covers_vms_of_its_zone_only(liquid: LiquidClient) -> None:
    here, there = vm(), vm(zone="az-b")
    c = commitment(4)
    assert covered(report(liquid)) == {here: c, there: None}


def test_each_group_has_its_own_commitment(liquid: LiquidClient) -> None:
    hana, general = vm(), vm("gp-medium")
    c, d = commitment(4), commitment(4, group="gp_1")
    answer = report(liquid)
    assert usage(answer, RAM) == 4
    assert usage(answer, "hw_version_gp_1_ram") == 2
    assert covered(answer) == {hana: c, general: d}


@pytest.mark.parametrize(
    ("extra_spec", "expected"),
    [("16", 16), ("", None), ("-1", None), ("16.0", None), ("9" * 40, None), (16, 16)],
)
def test_video_ram_is_shown_when_it_is_an_unsigned_integer(
    liquid: LiquidClient, extra_spec: object, expected: int | None
) -> None:
    vm(flavor_extra_specs={"hw_video:ram_max_mb": extra_spec, "quota:hw_version": "hana_1"})
    sub = report(liquid)["resources"][INSTANCES]["perAZ"]["az-a"]["subresources"][0]
    flavor = {"name": "large", "vcpu": 16, "ram_mib": 4096, "disk_gib": 0}
    if expected is not None:
        flavor["video_ram_mib"] = expected
    assert sub["attributes"] == {
        "status": "ACTIVE",
        "flavor": flavor,
        "os_type": "unknown",
        "commitment_id": None,
    }


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        pytest.param("sles15_64Guest", "sles15_64Guest", id="valid guest id"),
        pytest.param("image-deleted", "image-deleted", id="image gone"),
        pytest.param("image-missing", "image-missing", id="malformed image reference"),
        pytest.param("rootdisk-missing", "rootdisk-missing", id="no boot volume"),
        pytest.param("rootdisk-inspect-error", "rootdisk-inspect-error", id="boot volume unread"),
        pytest.param("unknown", "unknown", id="unknown"),
        pytest.param("", "unknown", id="not determined"),
    ],
)
def test_subresource_has_every_attribute_and_no_usage(
    liquid: LiquidClient, stored: str, shown: str
) -> None:
    uuid = vm(name="db-1", status="SHUTOFF", disk_gib=40, os_type=stored)
    c = commitment(4)
    resources = report(liquid)["resources"]
    assert resources[INSTANCES]["perAZ"]["az-a"]["subresources"] == [
        {
            "id": uuid,
            "name": "db-1",
            "attributes": {
                "status": "SHUTOFF",
                "flavor": {"name": "large", "vcpu": 16, "ram_mib": 4096, "disk_gib": 40},
                "os_type": shown,
                "commitment_id": c,
            },
        }
    ]
    others = (resources[name]["perAZ"]["az-a"] for name in resources if name != INSTANCES)
    assert all("subresources" not in entry for entry in others)


def test_vm_without_a_name_is_known_by_its_id_alone(liquid: LiquidClient) -> None:
    vm()
    Instance.objects.update(name="")
    sub = report(liquid)["resources"][INSTANCES]["perAZ"]["az-a"]["subresources"][0]
    assert set(sub) == {"id", "attributes"}


def test_vms_of_a_variable_group_are_summed_up(liquid: LiquidClient) -> None:
    sizes = {"v1": (2048, 1), "v2": (4096, 2), "v4": (16384, 4), "v16": (32768, 16)}
    make_group("var", flavors=[(name, *size) for name, size in sizes.items()])
    host = make_host("h-var", zone="az-a")
    for name, (mib, vcpus) in sizes.items():
        make_vm(
            host=host,
            flavor_name=name,
            memory_gib=mib // 1024,
            vcpus=vcpus,
            project_id=PROJECT,
            flavor_extra_specs={},
        )
    answer = report(liquid)
    summed = {name: usage(answer, f"hw_version_var_{name}") for name in ("ram", "cores")}
    assert summed == {"ram": 54, "cores": 23}
    assert usage(answer, "hw_version_var_instances") == 4


def test_vm_of_a_zone_limes_does_not_know_is_left_out_and_counted(liquid: LiquidClient) -> None:
    before = UNKNOWN_ZONE_VMS._value.get()
    vm(zone="")
    known = vm()
    answer = report(liquid)
    assert usage(answer, RAM) == 4
    assert list(covered(answer)) == [known]
    assert UNKNOWN_ZONE_VMS._value.get() == before + 1


def test_vms_of_unknown_zones_can_be_reported_without_quota(
    liquid: LiquidClient, configure: Configure
) -> None:
    configure(liquid={"report_unknown_zone": True})
    vm(zone="")
    answer = report(liquid)
    assert usage(answer, RAM, "unknown") == 4
    assert "quota" not in answer["resources"][RAM]["perAZ"]["unknown"]


def test_vm_without_host_or_with_unknown_flavor_is_not_listed(liquid: LiquidClient) -> None:
    make_vm(host=None, flavor_name="large", project_id=PROJECT, zone="az-a")
    make_vm(host=make_host("h9"), flavor_name="gone", project_id=PROJECT)
    assert covered(report(liquid)) == {}


@pytest.mark.parametrize("status", ["DELETED", "SOFT_DELETED", "SHELVED_OFFLOADED"])
def test_vm_that_is_not_there_is_not_listed(liquid: LiquidClient, status: str) -> None:
    vm(status=status)
    assert covered(report(liquid)) == {}


def test_vm_counts_in_the_zone_of_its_host(liquid: LiquidClient) -> None:
    vm()
    Instance.objects.update(zone="az-b")
    answer = report(liquid)
    assert (usage(answer, RAM, "az-a"), usage(answer, RAM, "az-b")) == (4, 0)


def test_vms_of_other_projects_do_not_count(liquid: LiquidClient) -> None:
    make_vm(host=make_host("h9"), flavor_name="large", project_id="other")
    assert usage(report(liquid), INSTANCES) == 0


def test_stored_quota_is_shown_and_missing_quota_is_unlimited(liquid: LiquidClient) -> None:
    make_quota(PROJECT, "az-a", {RAM: 16})
    per_zone = report(liquid)["resources"][RAM]["perAZ"]
    assert (per_zone["az-a"]["quota"], per_zone["az-b"]["quota"]) == (16, -1)


def test_missing_quota_stays_unlimited_with_a_unit_above_one_gib(liquid: LiquidClient) -> None:
    make_group("big", flavors=[("big", 16384, 1)], ram_unit_gib=16, quota=("ram", "cores"))
    resources = report(liquid)["resources"]
    assert resources["hw_version_big_ram"]["perAZ"]["az-a"]["quota"] == -1
    assert resources["hw_version_big_cores"]["perAZ"]["az-a"]["quota"] == -1


def test_stored_memory_quota_is_converted_to_declared_units(liquid: LiquidClient) -> None:
    make_group("two", flavors=[("two", 2048, 1)], ram_unit_gib=2, quota=("ram", "cores"))
    make_quota(PROJECT, "az-a", {"hw_version_two_ram": 10, "hw_version_two_cores": 10})
    resources = report(liquid)["resources"]
    assert resources["hw_version_two_ram"]["perAZ"]["az-a"]["quota"] == 5
    assert resources["hw_version_two_cores"]["perAZ"]["az-a"]["quota"] == 10


def test_resource_without_quota_carries_no_quota_key(liquid: LiquidClient) -> None:
    make_quota(PROJECT, "az-a", {RAM: 16, CORES: 4})
    for name, resource in report(liquid)["resources"].items():
        assert all(("quota" in entry) is (name == RAM) for entry in resource["perAZ"].values())


@pytest.mark.parametrize(
    "more",
    [
        {"state": "expired", "is_accepted": True},
        {"end_time": timezone.now() - HOUR},
        {"start": timezone.now() + HOUR},
        {"state": "pending", "is_accepted": True},
        {"state": "confirmed", "is_accepted": False},
    ],
    ids=["expired", "ended", "not started", "pending", "not accepted"],
)
def test_commitment_that_is_not_in_force_covers_nothing(
    liquid: LiquidClient, more: dict[str, Any]
) -> None:
    one = vm()
    if more.get("is_accepted") is False:
        row = make_commitment(amount_gib=4, project_id=PROJECT, **more)
        assert row.accepted_spec is None
    else:
        commitment(4, **more)
    assert covered(report(liquid)) == {one: None}


def test_of_expired_active_and_future_only_the_active_one_is_used(liquid: LiquidClient) -> None:
    one, now = vm(), timezone.now()
    commitment(4, start=now - 9 * HOUR, end_time=now - HOUR)
    active = commitment(4, start=now - HOUR, end_time=now + HOUR)
    commitment(4, start=now + HOUR)
    assert covered(report(liquid)) == {one: active}


def test_commitment_that_ended_since_the_last_run_shows_its_vms_as_pay_as_you_go(
    liquid: LiquidClient,
) -> None:
    one, c = vm(), commitment(4)
    assert covered(report(liquid)) == {one: c}
    Commitment.objects.update(end_time=timezone.now() - timedelta(seconds=1))
    assert covered(liquid.report_usage("az-a")) == {one: None}


def test_endpoint_never_runs_the_assignment_itself(liquid: LiquidClient) -> None:
    one = vm()
    commitment(4)
    assert covered(liquid.report_usage("az-a")) == {one: None}


def test_subresources_are_ordered_by_creation_then_uuid(liquid: LiquidClient) -> None:
    late = vm(created=T0 + HOUR)
    same = sorted([vm(), vm(), vm()])
    unknown = vm(created=None)  # type: ignore[arg-type]  # what an unparsable time becomes
    assert list(covered(report(liquid))) == [unknown, *same, late]


def test_project_nobody_knows_uses_nothing(liquid: LiquidClient) -> None:
    answer = liquid.report_usage("az-a", project_id="nobody")
    assert usage(answer, INSTANCES) == 0


@pytest.mark.django_db(transaction=True)  # a transaction that wrote keeps nothing in caches
def test_report_needs_the_same_few_queries_for_any_number_of_vms(
    liquid: LiquidClient, django_assert_max_num_queries: Any
) -> None:
    for _ in range(20):
        vm("small")
    commitment(10)
    reconcile_project_usage(PROJECT, actor=task_actor("test"), request_id="r")
    liquid.get_info()
    with django_assert_max_num_queries(6):
        assert usage(liquid.report_usage("az-a"), RAM) == 20


class TestReconcile:
    def run(self) -> Any:
        return reconcile_project_usage(PROJECT, actor=task_actor("test"), request_id="r")

    def test_used_amounts_and_generation_are_stored(self) -> None:
        vm()
        commitment(8, generation=7, ready_observed_generation=7)
        run = self.run()
        row = Commitment.objects.get()
        assert (row.used_memory_bytes, row.used_vcpus) == (4 * GIB, 16)
        assert (row.usage_observed_generation, run.assigned) == (7, 1)
        assert row.last_usage_reconcile_at is not None
        assert "1 VM" in row.status_summary

    def test_second_run_changes_nothing(self) -> None:
        vm()
        commitment(8)
        assert self.run().changed == 1
        before = list(Commitment.objects.get().assignments.values_list("pk", "changed_xid"))
        assert self.run().changed == 0
        assert list(Commitment.objects.get().assignments.values_list("pk", "changed_xid")) == before

    def test_vm_moves_when_its_commitment_shrinks(self) -> None:
        one = vm()
        old, new = commitment(4, start=T0), commitment(4, start=T0 + HOUR)
        self.run()
        row = Commitment.objects.get(commitment_uuid=old)
        assert row.accepted_spec is not None
        Commitment.objects.filter(pk=row.pk).update(
            accepted_spec={**row.accepted_spec, "amount": GIB}
        )
        self.run()
        assert list(
            Commitment.objects.filter(assignments__vm_uuid=one).values_list(
                "commitment_uuid", flat=True
            )
        ) == [new]

    @pytest.mark.parametrize("change", [{"state": "superseded"}, {"end_time": T0}])
    def test_commitment_that_is_over_gives_up_its_vms(self, change: dict[str, Any]) -> None:
        vm()
        commitment(4)
        self.run()
        Commitment.objects.update(**change)
        assert self.run().cleared == 1
        row = Commitment.objects.get()
        assert not row.assignments.exists()
        assert (row.used_memory_bytes, row.used_vcpus) == (0, 0)
        assert row.last_usage_reconcile_at is None
        assert self.run().cleared == 0

    def test_accepted_state_counts_and_not_the_wanted_one(self) -> None:
        vm()
        commitment(4, requested_amount=64 * GIB, is_accepted=True)
        Commitment.objects.update(requested_amount=64 * GIB)
        self.run()
        assert Commitment.objects.get().used_memory_bytes == 4 * GIB

    def test_commitment_with_a_broken_accepted_spec_is_skipped(self) -> None:
        vm()
        broken, good = commitment(4), commitment(4)
        Commitment.objects.filter(commitment_uuid=broken).update(
            accepted_spec={"state": "confirmed", "amount": "many"}
        )
        assert self.run().assigned == 1
        assert Commitment.objects.get(commitment_uuid=good).assignments.count() == 1

    def test_a_project_that_fails_does_not_stop_the_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        vm()
        mine = commitment(4)
        make_commitment(project_id="0-busy")

        def refuse(space: Any, names: list[str]) -> None:
            if names == ["0-busy"]:
                message = "busy"
                raise Busy(message)
            take_lock(space, names)

        monkeypatch.setattr("commitments.services.usage.take_lock", refuse)
        assert reconcile_all_usage(actor=task_actor("test"), request_id="r") == 1
        assert Commitment.objects.get(commitment_uuid=mine).assignments.count() == 1

    def test_without_flavor_groups_nothing_is_taken_away(self) -> None:
        vm()
        mine = commitment(4)
        self.run()
        FlavorGroupSnapshot.objects.update(is_ready=False)
        assert reconcile_all_usage(actor=task_actor("test"), request_id="r") == 0
        assert Commitment.objects.get(commitment_uuid=mine).assignments.count() == 1
