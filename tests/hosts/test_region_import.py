from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from capacity.models import FlavorGroup, HostCapacity, ProjectQuota, Reservation
from commitments.models import Commitment, CommitmentEvent
from failover.models import FailoverPolicy
from hosts.models import Aggregate, Domain, Flavor, Host, Image, Instance, Project, ServerGroup
from hosts.region.run import ImportProgress, ImportReport
from hosts.services.region_import import import_region
from journal.actors import Actor
from journal.models import AuditEntry
from scheduling.resources import GIB, MIB
from tests.hosts.region_files import (
    LIMES,
    REGION,
    edited,
    load,
    own_tables,
    small_region,
    write_file,
)

pytestmark = pytest.mark.django_db

MINI_SKIPS = {
    ("limes.commitments", "21f4fb5d-e579-585b-9c98-7a9bbbc1b2d1", "unknown_flavor_group"),
    ("limes.commitments", "ab782a78-42c0-5ff5-836f-802b83d7560e", "unit_mismatch"),
    ("limes.commitments", "7c902567-f3fe-55a3-b7f5-c64df35e2456", "invalid_resource_name"),
    ("limes.commitments", "id 15", "empty_uuid"),
    ("limes.commitments", "03937494-d1d3-57e6-9b33-677925f0bdc1", "non_compute"),
    ("limes.commitments", "4d225df9-4b96-5657-bf28-23d42c5fa895", "terminal"),
    ("limes.commitments", "acd87fc2-ea13-5f7f-981d-9664d82b5838", "terminal"),
}
MINI_INCOMPLETE = {
    ("compute.servers", "56dac54d-2e0d-4b8c-878d-5aa19a5049d0", "no_host"),
    ("compute.servers", "f17b275c-549b-4708-83ca-96bfe9c262f8", "no_host"),
    ("compute.flavors", "huge_c4096", "no_flavor_group"),
}


def newest_changed_xids() -> dict[str, Any]:
    found = {}
    with connection.cursor() as cursor:
        for table in own_tables():
            cursor.execute(
                "SELECT 1 FROM information_schema.columns "
                "WHERE table_name = %s AND column_name = 'changed_xid'",
                [table],
            )
            if cursor.fetchone():
                cursor.execute(f"SELECT count(*), sum(changed_xid) FROM {table}")  # noqa: S608 - ours
                found[table] = cursor.fetchone()
    return found


@pytest.mark.sql("resolve_instances")
def test_the_real_dump_is_loaded_as_it_is_and_a_second_import_writes_nothing() -> None:
    report = load(REGION, LIMES)
    assert Host.objects.count() == 18
    assert Instance.objects.count() == 53
    assert Flavor.objects.count() == 12
    assert (Domain.objects.count(), Project.objects.count()) == (3, 6)
    assert (Aggregate.objects.count(), Image.objects.count()) == (6, 2)
    assert ServerGroup.objects.count() == 2
    assert HostCapacity.objects.count() == 18
    assert ProjectQuota.objects.count() == 4
    assert FailoverPolicy.objects.count() == 2
    assert set(FlavorGroup.objects.values_list("name", flat=True)) == {"general", "gpu", "v2"}
    assert report.of("limes.commitments").created == Commitment.objects.count() == 10
    assert_skipped_is_listed(report)
    assert_hosts_are_whole()
    assert_vms_without_a_host_consume_nothing()

    before, events = newest_changed_xids(), CommitmentEvent.objects.count()
    audit = AuditEntry.objects.count()
    again = load(REGION, LIMES)
    assert {name: counts.changed for name, counts in again.counts.items() if counts.changed} == {}
    assert again.of("compute.servers").unchanged == 53
    assert newest_changed_xids() == before
    assert CommitmentEvent.objects.count() == events
    assert AuditEntry.objects.count() == audit

    load(LIMES, prune=True)  # a section that no file holds is left alone
    assert (Host.objects.count(), Instance.objects.count()) == (18, 53)


def assert_skipped_is_listed(report: ImportReport) -> None:
    listed = {
        kept: {
            (remark.section, remark.object_id, remark.reason)
            for remark in report.remarks
            if remark.is_kept is kept
        }
        for kept in (True, False)
    }
    assert listed[False] == MINI_SKIPS
    assert listed[True] == MINI_INCOMPLETE
    assert report.of("limes.commitments").skipped == len(MINI_SKIPS)


def assert_hosts_are_whole() -> None:
    """They have zone, capacity, traits and nested providers."""
    general = Host.objects.get(name="node001-az-a")
    assert general.zone == "az-a"
    assert general.effective_vcpus == 128
    assert general.effective_memory_bytes == (524288 - 16384) * MIB
    assert general.effective_disk_gib == 4000
    gpu = Host.objects.get(name="node010-az-a")
    assert "CUSTOM_GPU_L40" in gpu.traits
    assert "CUSTOM_GPU_L40" not in gpu.provider_traits
    assert [child["name"] for child in gpu.nested_providers] == [
        "node010-az-a_gpu0",
        "node010-az-a_gpu1",
    ]
    disabled = Host.objects.get(name="node018-az-c")
    assert (disabled.status, disabled.disabled_reason) == ("disabled", "firmware update")


def assert_vms_without_a_host_consume_nothing() -> None:
    assert Instance.objects.filter(host__isnull=True).count() == 2
    placed = Instance.objects.filter(host__isnull=False)
    assert sum(room.allocated_vcpus for room in HostCapacity.objects.all()) == sum(
        vm.vcpus for vm in placed
    )


def test_ended_commitments_become_history_when_asked_for_and_none_is_skipped_by_mistake() -> None:
    report = load(REGION, LIMES, with_ended=True)
    skipped = {remark.reason for remark in report.remarks if not remark.is_kept}
    wrong_on_purpose = {
        "unknown_flavor_group",
        "invalid_resource_name",
        "empty_uuid",
        "unit_mismatch",
    }
    assert skipped == {*wrong_on_purpose, "non_compute"}
    assert report.of("limes.commitments").skipped == len(skipped)
    assert report.notes == []
    ended = Commitment.objects.filter(state__in=("superseded", "expired"))
    assert sorted(ended.values_list("state", "ready_reason", "next_reconcile_at")) == [
        ("expired", "expired", None),
        ("superseded", "superseded", None),
    ]


def test_a_rule_that_the_extra_spec_overrules_is_explained(tmp_path: Path) -> None:
    rules = {"headroom": {"flavor_group_rules": [{"group": "hana", "flavor": "hana_*"}]}}
    report = load(REGION, write_file(tmp_path, rules))
    assert any("hana_* -> hana" in note and "hana_c24_m365 in v2" in note for note in report.notes)


def test_a_dry_run_reports_the_same_and_changes_nothing() -> None:
    report = load(REGION, LIMES, is_dry_run=True)
    assert report.of("compute.hypervisors").created == 18
    assert report.of("limes.commitments").created == 10
    assert not Host.objects.exists()
    assert not Commitment.objects.exists()


def test_steps_that_know_how_much_there_is_to_do_tell_how_much_is_done() -> None:
    sizes: dict[str, int] = {}
    done: Counter[str] = Counter()
    begun: list[str] = []
    import_region(
        files=[REGION, LIMES],
        actor=Actor(name="test"),
        request_id="req-test",
        progress=ImportProgress(
            step_begun=begun.append,
            step_sized=lambda total: sizes.update({begun[-1]: total}),
            step_grown=lambda count: done.update({begun[-1]: count}),
        ),
    )

    assert sizes["slots"] == Commitment.objects.exclude(last_reconcile_at=None).count() > 0
    assert sizes["VMs in slots"] == Host.objects.values("zone").distinct().count() > 0
    assert done == sizes


def test_the_order_of_the_files_does_not_matter() -> None:
    report = load(LIMES, REGION)
    assert report.of("limes.commitments").created == 10
    assert FlavorGroup.objects.count() == 3


def test_lists_and_maps_of_the_same_section_are_joined(tmp_path: Path) -> None:
    first, second = small_region(), small_region()
    second = {
        "compute": {"flavors": [{**first["compute"]["flavors"][0], "id": "f2", "name": "g_c4"}]},
        "headroom": {"flavor_groups": {"other": {"ram_unit_gib": 2}}},
    }
    load(write_file(tmp_path, first, "a.json"), write_file(tmp_path, second, "b.json"))
    assert set(Flavor.objects.values_list("name", flat=True)) == {"g_c2_m8", "g_c4"}
    group = FlavorGroup.objects.get(name="gp")
    assert group.members.count() == 2


def test_only_changed_rows_are_updated(tmp_path: Path) -> None:
    load(REGION)
    before = dict(Host.objects.values_list("name", "changed_xid"))

    def disable_one(content: dict[str, Any]) -> None:
        content["compute"]["hypervisors"][0]["status"] = "disabled"

    report = load(edited(REGION, tmp_path, disable_one))
    assert (report.of("compute.hypervisors").updated, report.of("compute.servers").updated) == (
        1,
        0,
    )
    changed = {
        name
        for name, xid in Host.objects.values_list("name", "changed_xid")
        if before[name] != xid or Host.objects.get(name=name).generation > 1
    }
    assert "node001-az-a" in changed
    assert Host.objects.filter(generation=2).count() == 1


def small(tmp_path: Path, **changes: Any) -> Path:
    content = small_region()
    for path, replacement in changes.items():
        group, _, name = path.partition("__")
        if replacement is None:
            del content[group][name]
        else:
            content[group][name] = replacement
    return write_file(tmp_path, content)


def test_capacity_falls_back_to_the_hypervisor(tmp_path: Path) -> None:
    hypervisor = small_region()["compute"]["hypervisors"][0]
    hypervisor |= {"vcpus": 8, "memory_mb": 1024, "local_gb": 7}
    load(small(tmp_path, compute__hypervisors=[hypervisor], placement__resource_providers=[]))
    host = Host.objects.get()
    assert (host.effective_vcpus, host.effective_memory_bytes, host.effective_disk_gib) == (
        8,
        GIB,
        7,
    )


def test_a_host_that_nobody_describes_has_no_capacity_and_is_reported(tmp_path: Path) -> None:
    report = load(small(tmp_path, placement__resource_providers=[]))
    assert Host.objects.get().effective_vcpus == 0
    assert "no_capacity" in {remark.reason for remark in report.remarks}


def test_effective_capacity_is_the_exact_floor(tmp_path: Path) -> None:
    load(small(tmp_path))
    host = Host.objects.get()
    assert host.effective_vcpus == 96
    assert host.effective_memory_bytes == 65535 * MIB


def test_zone_comes_from_the_service_without_an_aggregate(tmp_path: Path) -> None:
    load(small(tmp_path, compute__aggregates=[]))
    assert Host.objects.get().zone == "nova"


def test_aggregates_match_the_service_host_before_the_hypervisor_name(tmp_path: Path) -> None:
    hypervisors = [
        {**small_region()["compute"]["hypervisors"][0]},
        {
            "id": "h2",
            "hypervisor_hostname": "svc1",
            "hypervisor_type": "QEMU",
            "state": "up",
            "status": "enabled",
            "service": {"host": "svc2", "id": "s2", "disabled_reason": None},
        },
    ]
    load(small(tmp_path, compute__hypervisors=hypervisors))
    assert dict(Host.objects.values_list("name", "zone")) == {"node1": "az-a", "svc1": ""}


def test_aggregate_metadata_restricts_projects(tmp_path: Path) -> None:
    aggregates = small_region()["compute"]["aggregates"]
    aggregates.append(
        {
            "uuid": "a2",
            "name": "mine",
            "hosts": ["node1"],
            "metadata": {"filter_tenant_id": "p1, p2", "filter_tenant_id9": "p3"},
        }
    )
    load(small(tmp_path, compute__aggregates=aggregates))
    assert Host.objects.get().allowed_projects == ["p1", "p2", "p3"]


SERVER = small_region()["compute"]["servers"][0]


@pytest.mark.parametrize(
    ("change", "host_name", "reason"),
    [
        pytest.param({}, "node1", None, id="hypervisor hostname"),
        pytest.param(
            {"OS-EXT-SRV-ATTR:hypervisor_hostname": None}, "node1", None, id="service host"
        ),
        pytest.param(
            {"OS-EXT-SRV-ATTR:hypervisor_hostname": "gone"}, None, "unknown_host", id="unknown"
        ),
        pytest.param(
            {"OS-EXT-SRV-ATTR:hypervisor_hostname": None, "OS-EXT-SRV-ATTR:host": None},
            None,
            "no_host",
            id="none",
        ),
    ],
)
def test_host_of_a_server(
    tmp_path: Path, change: dict[str, Any], host_name: str | None, reason: str | None
) -> None:
    report = load(small(tmp_path, compute__servers=[{**SERVER, **change}]))
    vm = Instance.objects.select_related("host").get()
    assert (vm.host.name if vm.host else None) == host_name
    reasons = [remark.reason for remark in report.remarks if remark.section == "compute.servers"]
    assert reasons == ([reason] if reason else [])


@pytest.mark.parametrize("flavor", [{"id": "f1"}, {"id": "g_c2_m8"}, {"original_name": "g_c2_m8"}])
def test_size_of_a_server_comes_from_the_flavor_list(
    tmp_path: Path, flavor: dict[str, str]
) -> None:
    load(small(tmp_path, compute__servers=[{**SERVER, "flavor": flavor}]))
    vm = Instance.objects.get()
    assert (vm.flavor_name, vm.vcpus, vm.memory_bytes) == ("g_c2_m8", 2, 8 * GIB)


def test_a_server_of_an_unknown_flavor_is_skipped(tmp_path: Path) -> None:
    report = load(small(tmp_path, compute__servers=[{**SERVER, "flavor": {"id": "gone"}}]))
    assert not Instance.objects.exists()
    assert [(r.object_id, r.reason, r.is_kept) for r in report.remarks] == [
        ("v1", "unknown_flavor", False)
    ]


def test_a_flavor_made_again_under_its_name_keeps_its_row(tmp_path: Path) -> None:
    load(small(tmp_path))
    flavor_pk = Flavor.objects.get().pk
    flavor = {**small_region()["compute"]["flavors"][0], "id": "f9"}
    load(small(tmp_path, compute__flavors=[flavor]))
    assert list(Flavor.objects.values_list("pk", "openstack_id")) == [(flavor_pk, "f9")]


def test_flavors_may_swap_their_names(tmp_path: Path) -> None:
    one = small_region()["compute"]["flavors"][0]
    two = {**one, "id": "f2", "name": "g_c4_m16"}
    load(small(tmp_path, compute__flavors=[one, two]))
    swapped = [{**one, "name": "g_c4_m16"}, {**two, "name": "g_c2_m8"}]
    load(small(tmp_path, compute__flavors=swapped))
    assert dict(Flavor.objects.values_list("openstack_id", "name")) == {
        "f1": "g_c4_m16",
        "f2": "g_c2_m8",
    }


def test_prune_removes_what_the_files_do_not_hold(tmp_path: Path) -> None:
    load(REGION, LIMES)
    load(small(tmp_path))
    assert Host.objects.count() == 19
    report = load(small(tmp_path), prune=True, accepts_shrink=True)
    assert list(Host.objects.values_list("name", flat=True)) == ["node1"]
    assert list(Instance.objects.values_list("openstack_id", flat=True)) == ["v1"]
    assert list(Flavor.objects.values_list("name", flat=True)) == ["g_c2_m8"]
    assert list(FlavorGroup.objects.values_list("name", flat=True)) == ["gp"]
    assert Commitment.objects.count() == 1
    assert report.of("compute.servers").removed == 53
    assert HostCapacity.objects.count() == 1


def test_prune_keeps_hosts_and_commitments_with_reservations_and_says_so(tmp_path: Path) -> None:
    placed = load(REGION, LIMES, place=True)
    assert placed.placement["accepted"] >= 5
    holding = set(Reservation.objects.values_list("target_host__name", flat=True)) - {None}
    assert holding
    report = load(small(tmp_path), prune=True, accepts_shrink=True)
    skipped = {r.object_id for r in report.remarks if r.section == "compute.hypervisors"}
    assert skipped == holding
    assert set(Host.objects.values_list("name", flat=True)) == holding | {"node1"}
    assert {r.reason for r in report.remarks if r.object_id in holding} == {"has_reservations"}
    assert Commitment.objects.filter(slots__isnull=False).exists()


def test_the_command_prints_counts_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("import_region", str(REGION), str(LIMES), "--no-place")
    printed = capsys.readouterr().out
    for word in ("compute.servers", "53", "unknown_flavor_group", "terminal", "unit_mismatch"):
        assert word in printed
    for _, object_id, _ in MINI_SKIPS | MINI_INCOMPLETE:
        assert object_id in printed


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("import_region", str(REGION), "--json", "--dry-run")
    result = json.loads(capsys.readouterr().out)
    counts = {section["section"]: section for section in result["sections"]}
    assert result["dry_run"] is True
    assert counts["compute.servers"]["created"] == 53
