"""The quota controller (spec liquid, 14), fixture F and its sequences."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from capacity.models import FlavorGroupSettings, FlavorGroupSnapshot, ProjectQuota
from commitments.metrics import quota as metrics_quota
from commitments.models import Commitment
from commitments.services import quota_usage as service
from commitments.services.quota_usage import reconcile_changed, reconcile_full
from hosts.models import Host, Instance
from journal.errors import NotReady
from scheduling.resources import GIB
from tests.factories import make_commitment, make_group, make_host, make_quota, make_vm
from tests.scraping import scrape

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
A, B, C = "project-a", "project-b", "project-c"
Row = dict[str, int]


def hana(ram: int, cores: int, instances: int) -> Row:
    return {
        "hw_version_hana_v2_ram": ram,
        "hw_version_hana_v2_cores": cores,
        "hw_version_hana_v2_instances": instances,
    }


def general(ram: int, cores: int, instances: int) -> Row:
    return {
        "hw_version_general_ram": ram,
        "hw_version_general_cores": cores,
        "hw_version_general_instances": instances,
    }


def new_vm(uuid: str, kind: str, project_id: str = A, zone: str = "az-1") -> Instance:
    memory_gib, vcpus, flavor = {
        "small": (32, 8, "small"),
        "large": (64, 16, "large"),
        "general": (4, 2, "gen"),
        "unknown": (9, 9, "nobody-knows"),
    }[kind]
    return make_vm(
        openstack_id=uuid,
        host=Host.objects.get(name=f"h-{zone}"),
        flavor_name=flavor,
        memory_gib=memory_gib,
        vcpus=vcpus,
        project_id=project_id,
        zone=zone,
    )


@pytest.fixture
def fixture_f() -> None:
    make_group("hana_v2", flavors=[("small", 32768, 8), ("large", 65536, 16)])
    make_group("general", flavors=[("gen", 4096, 2)])
    for zone in ("az-1", "az-2"):
        make_host(f"h-{zone}", zone=zone, memory_gib=4096, vcpus=1024)
    new_vm("vm-1", "small")
    new_vm("vm-2", "large")
    new_vm("vm-3", "small", zone="az-2")
    new_vm("vm-4", "general")
    new_vm("vm-5", "general", B)
    new_vm("vm-6", "unknown", C)
    for project in (A, B, C):
        for zone in ("az-1", "az-2"):
            make_quota(project, zone, {})
    ProjectQuota.objects.update(quota_by_resource={})


def usage(project: str = A, zone: str = "az-1") -> Row:
    row: Row = ProjectQuota.objects.get(project_id=project, zone=zone).total_usage
    return row


def payg(project: str = A, zone: str = "az-1") -> Row:
    row: Row = ProjectQuota.objects.get(project_id=project, zone=zone).payg_usage
    return row


def cover(uuid: str, *, memory_gib: int = 0, vcpus: int = 0, **fields: Any) -> Commitment:
    zone = fields.pop("zone", "az-1")
    kind = "cores" if vcpus else "memory"
    row = make_commitment(
        commitment_uuid=f"{uuid}-00000000",
        group="hana_v2",
        zone=zone,
        project_id=A,
        resource_type=kind,
        **fields,
    )
    Commitment.objects.filter(pk=row.pk).update(
        used_memory_bytes=memory_gib * GIB, used_vcpus=vcpus, last_usage_reconcile_at=NOW
    )
    return row


@pytest.mark.usefixtures("fixture_f")
class TestUsageOfVms:
    def test_fixture_f(self) -> None:
        run = reconcile_full(now=NOW)
        assert usage() == {**hana(96, 24, 2), **general(4, 2, 1)}
        assert usage(zone="az-2") == hana(32, 8, 1)
        assert usage(B) == general(4, 2, 1)
        assert usage(C) == {}
        assert (run.projects, run.written, run.failed) == (3, 3, [])

    def test_memory_is_cut_per_vm(self) -> None:
        make_group("odd", flavors=[("odd", 8160, 1), ("tiny", 2032, 1)])
        host = Host.objects.get(name="h-az-1")
        for flavor, mib in (("odd", 8160), ("tiny", 2032), ("tiny", 2032)):
            vm = make_vm(host=host, flavor_name=flavor, project_id=C, zone="az-1")
            Instance.objects.filter(pk=vm.pk).update(memory_bytes=mib << 20)
        reconcile_full(now=NOW)
        assert usage(C)["hw_version_odd_ram"] == 7 + 1 + 1

    def test_zones_without_a_row_are_left_out(self) -> None:
        ProjectQuota.objects.filter(project_id=A, zone="az-2").delete()
        reconcile_full(now=NOW)
        assert ProjectQuota.objects.filter(project_id=A).count() == 1

    def test_times_generation_and_summaries(self) -> None:
        make_quota("project-q", "az-1", {"hw_version_hana_v2_ram": 64, "hw_version_general_ram": 8})
        reconcile_full(now=NOW)
        row = ProjectQuota.objects.get(project_id="project-q")
        assert (row.last_reconcile_at, row.last_full_reconcile_at) == (NOW, NOW)
        assert row.observed_generation == row.generation
        assert row.total_usage == {"hw_version_hana_v2_ram": 0, "hw_version_general_ram": 0}
        assert row.total_usage_summary == "general: c=0 i=0 r=0; hana_v2: c=0 i=0 r=0"

    def test_summaries_for_limes_take_their_unit_from_the_configuration(self) -> None:
        """OURS of 14.5: never from the smallest flavor, here 32 GiB."""
        FlavorGroupSettings.objects.filter(group_name="hana_v2").update(ram_unit_gib=16)
        quota = {"hw_version_hana_v2_ram": 128, "hw_version_hana_v2_cores": -1}
        ProjectQuota.objects.filter(project_id=A, zone="az-1").update(quota_by_resource=quota)
        reconcile_full(now=NOW)
        row = ProjectQuota.objects.get(project_id=A, zone="az-1")
        assert row.total_usage_summary == "general: c=2 i=1 r=4; hana_v2: c=24 i=2 r=96"
        assert row.payg_usage_summary == row.total_usage_summary
        assert row.limes_usage_summary == "general: c=2 i=1 r=4; hana_v2: c=24 i=2 r=6"
        assert row.limes_quota_summary == "hana_v2: c=-1 i=0 r=8"

    def test_the_same_again_changes_nothing(self) -> None:
        reconcile_full(now=NOW)
        assert reconcile_full(now=NOW).written == 0


@pytest.mark.usefixtures("fixture_f")
class TestCoveredUsage:
    def test_memory_and_cores_of_commitments(self) -> None:
        cover("c-1", memory_gib=2)
        cover("c-2", vcpus=10)
        reconcile_full(now=NOW)
        assert payg() == {**hana(94, 14, 2), **general(4, 2, 1)}
        assert payg(zone="az-2") == hana(32, 8, 1)

    def test_each_zone_for_itself(self) -> None:
        cover("c-1", memory_gib=5)
        cover("c-2", memory_gib=3, zone="az-2")
        cover("c-3", vcpus=4)
        reconcile_full(now=NOW)
        assert payg() == {**hana(91, 20, 2), **general(4, 2, 1)}
        assert payg(zone="az-2") == hana(29, 8, 1)

    @pytest.mark.parametrize(
        ("state", "covered_gib"),
        [("pending", 0), ("planned", 0), ("confirmed", 5), ("guaranteed", 5), ("expired", 0)],
    )
    def test_only_some_states_cover(self, state: str, covered_gib: int) -> None:
        cover("c-1", memory_gib=5, state=state)
        reconcile_full(now=NOW)
        assert payg()["hw_version_hana_v2_ram"] == 96 - covered_gib

    @pytest.mark.parametrize(
        ("fields", "why"),
        [
            ({"memory_gib": 0}, "nothing used"),
            ({"memory_gib": 5, "zone": "az-9"}, "zone without a row"),
            ({"memory_gib": 5, "group": "nosuch"}, "unknown group"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_what_covers_nothing_here_changes_nothing(
        self, fields: dict[str, Any], why: str
    ) -> None:
        group = fields.pop("group", "hana_v2")
        row = cover("c-1", **fields)
        Commitment.objects.filter(pk=row.pk).update(flavor_group_name=group, accepted_spec=None)
        reconcile_full(now=NOW)
        assert payg() == usage() == {**hana(96, 24, 2), **general(4, 2, 1)}, why

    def test_commitment_never_reconciled_covers_nothing(self) -> None:
        cover("c-1", memory_gib=5)
        Commitment.objects.update(last_usage_reconcile_at=None)
        reconcile_full(now=NOW)
        assert payg() == usage()

    def test_states_that_cover_are_a_setting(self, settings: Any) -> None:
        quota = settings.HEADROOM.quota.model_copy(update={"commitment_states": ("pending",)})
        settings.HEADROOM = settings.HEADROOM.model_copy(update={"quota": quota})
        cover("c-1", memory_gib=5, state="pending")
        cover("c-2", memory_gib=7)
        reconcile_full(now=NOW)
        assert payg()["hw_version_hana_v2_ram"] == 91

    def test_confirmed_guaranteed_and_cores_add_up(self) -> None:
        cover("c-1", memory_gib=5)
        cover("c-2", memory_gib=3, state="guaranteed")
        cover("c-3", vcpus=2)
        reconcile_full(now=NOW)
        covered = {name: usage()[name] - payg()[name] for name in usage()}
        assert covered == {**hana(8, 2, 0), **general(0, 0, 0)}

    def test_more_covered_than_used_is_nothing_left(self) -> None:
        cover("c-1", memory_gib=500)
        reconcile_full(now=NOW)
        assert payg()["hw_version_hana_v2_ram"] == 0

    def test_what_was_accepted_counts_while_a_change_waits(self) -> None:
        row = cover("c-1", memory_gib=5, state="pending")
        Commitment.objects.filter(pk=row.pk).update(
            accepted_spec={
                "state": "confirmed",
                "flavorGroupName": "hana_v2",
                "availabilityZone": "az-1",
                "resourceType": "memory",
            }
        )
        reconcile_full(now=NOW)
        assert payg()["hw_version_hana_v2_ram"] == 91


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("fixture_f")
class TestChanges:
    """In one transaction everything would look changed: every step commits."""

    @pytest.fixture(autouse=True)
    def counted(self, fixture_f: None) -> None:
        """Count everything; whatever else runs in the server, only later changes are unseen."""
        reconcile_full(now=NOW)
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE capacity_projectquota"
                " SET counted_xmin = pg_current_xact_id()::text::bigint + 1"
            )

    def test_nothing_changed_counts_nothing(self) -> None:
        with CaptureQueriesContext(connection) as queries:
            run = reconcile_changed(now=NOW)
        assert (run.projects, len(queries)) == (0, 1)

    def test_a_new_vm(self) -> None:
        new_vm("vm-7", "small")
        reconcile_changed(now=NOW + timedelta(minutes=1))
        assert usage() == {**hana(128, 32, 3), **general(4, 2, 1)}
        row = ProjectQuota.objects.get(project_id=A, zone="az-1")
        assert row.last_reconcile_at == NOW + timedelta(minutes=1)
        assert row.last_full_reconcile_at == NOW

    def test_a_vm_that_moves_counts_once(self) -> None:
        other = make_host("h-other", zone="az-1")
        Instance.objects.filter(openstack_id="vm-1").update(host=other)
        reconcile_changed(now=NOW)
        assert usage() == {**hana(96, 24, 2), **general(4, 2, 1)}

    def test_the_host_of_vms_changes_its_zone(self) -> None:
        Host.objects.filter(instances__project_id=A).update(zone="az-9")
        reconcile_changed(now=NOW)
        assert usage() == {}

    def test_a_deleted_vm(self) -> None:
        Instance.objects.get(openstack_id="vm-1").delete()
        reconcile_changed(now=NOW)
        assert usage() == {**hana(64, 16, 1), **general(4, 2, 1)}

    def test_a_vm_that_came_and_went(self) -> None:
        new_vm("vm-7", "small")
        reconcile_changed(now=NOW)
        assert usage()["hw_version_hana_v2_ram"] == 128
        Instance.objects.get(openstack_id="vm-7").delete()
        reconcile_full(now=NOW)
        assert usage() == {**hana(96, 24, 2), **general(4, 2, 1)}

    def test_a_short_lived_vm_of_another_project(self) -> None:
        new_vm("vm-7", "general", B)
        reconcile_changed(now=NOW)
        assert usage(B) == general(8, 4, 2)
        Instance.objects.get(openstack_id="vm-7").delete()
        reconcile_full(now=NOW)
        assert usage(B) == general(4, 2, 1)

    def test_commitment_usage_changes_payg_alone(self) -> None:
        row = cover("c-1", memory_gib=1)
        reconcile_changed(now=NOW)
        assert payg()["hw_version_hana_v2_ram"] == 95
        Commitment.objects.filter(pk=row.pk).update(used_memory_bytes=3 * GIB)
        reconcile_changed(now=NOW)
        assert payg()["hw_version_hana_v2_ram"] == 93
        assert usage()["hw_version_hana_v2_ram"] == 96

    def test_commitment_that_is_deleted_leaves_its_vms_to_payg(self) -> None:
        row = cover("c-1", memory_gib=5)
        reconcile_changed(now=NOW)
        assert payg()["hw_version_hana_v2_ram"] == 91
        row.delete()
        reconcile_changed(now=NOW)
        assert payg()["hw_version_hana_v2_ram"] == 96

    def test_commitment_that_goes_to_another_project_leaves_its_vms_to_payg(self) -> None:
        row = cover("c-1", memory_gib=5)
        reconcile_changed(now=NOW)
        assert payg()["hw_version_hana_v2_ram"] == 91
        Commitment.objects.filter(pk=row.pk).update(project_id=B)
        reconcile_changed(now=NOW)
        assert payg()["hw_version_hana_v2_ram"] == 96

    def test_writing_what_was_counted_changes_nothing_again(self) -> None:
        new_vm("vm-7", "small")
        assert reconcile_changed(now=NOW).written == 1
        assert reconcile_changed(now=NOW).written == 0

    def test_projects_that_did_not_change_are_not_counted(self) -> None:
        new_vm("vm-7", "general", B)
        assert reconcile_changed(now=NOW + timedelta(minutes=1)).projects == 1
        untouched = ProjectQuota.objects.filter(project_id=A)
        assert set(untouched.values_list("last_reconcile_at", flat=True)) == {NOW}

    def test_a_vm_of_unknown_flavor_changes_nothing(self) -> None:
        new_vm("vm-7", "unknown")
        assert reconcile_changed(now=NOW).written == 0

    def test_a_changed_quota_is_counted_in_full(self) -> None:
        ProjectQuota.objects.filter(project_id=B, zone="az-1").update(
            generation=7, quota_by_resource={"hw_version_hana_v2_ram": 5}
        )
        later = NOW + timedelta(minutes=1)
        reconcile_changed(now=later)
        row = ProjectQuota.objects.get(project_id=B, zone="az-1")
        assert (row.observed_generation, row.last_full_reconcile_at) == (7, later)
        assert row.total_usage["hw_version_hana_v2_ram"] == 0


@pytest.mark.usefixtures("fixture_f")
class TestFailures:
    def test_a_malformed_row_is_skipped_and_the_rest_counted(self) -> None:
        ProjectQuota.objects.filter(project_id=A, zone="az-1").update(
            quota_by_resource={"hw_version_hana_v2_ram": None}
        )
        run = reconcile_full(now=NOW)
        assert run.failed == [f"{A}/az-1"]
        assert usage(B) == general(4, 2, 1)

    @pytest.mark.parametrize("source", ["_used", "_covered", "load_group_definitions"])
    def test_a_failed_read_fails_the_run_and_is_counted(
        self, monkeypatch: pytest.MonkeyPatch, source: str
    ) -> None:
        """Groups, VMs or commitments that cannot be read (14.3): no row changes."""

        def broken(*_: object, **__: object) -> dict[tuple[str, str], Row]:
            raise DatabaseError

        reconcile_full(now=NOW)
        new_vm("vm-7", "small")
        failures = metrics_quota.RECONCILE_TOTAL.labels(result="failure")
        before = failures._value.get()
        monkeypatch.setattr(service, source, broken)
        with pytest.raises(DatabaseError):
            reconcile_full(now=NOW + timedelta(minutes=5))
        assert failures._value.get() == before + 1
        assert usage() == {**hana(96, 24, 2), **general(4, 2, 1)}

    def test_missing_flavor_groups_fail_the_run(self) -> None:
        FlavorGroupSnapshot.objects.all().delete()
        with pytest.raises(NotReady):
            reconcile_full(now=NOW)


@pytest.mark.usefixtures("fixture_f")
def test_gauges_follow_the_rows(client: Client) -> None:
    cover("c-1", memory_gib=2)
    reconcile_full(now=NOW)
    labels = f'availability_zone="az-1",project_id="{A}",resource="hw_version_hana_v2_ram"'
    shown = scrape()
    for name, amount in (("total", 96.0), ("payg", 94.0), ("cr", 2.0)):
        assert f"cortex_quota_{name}_usage{{{labels}}} {amount}" in shown
    ProjectQuota.objects.filter(project_id=A).delete()
    assert labels not in scrape()


@pytest.mark.usefixtures("fixture_f")
def test_statements_do_not_grow_with_projects() -> None:
    counts = []
    for number in range(40):
        make_quota(f"more-{number}", "az-1", {"hw_version_hana_v2_ram": number})
        if number in {0, 39}:
            with CaptureQueriesContext(connection) as queries:
                reconcile_full(now=NOW)
            counts.append(len(queries))
    assert counts[0] == counts[1]
