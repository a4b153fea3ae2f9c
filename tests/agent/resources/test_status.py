"""Oversubscription and reports (spec hosts, A.5 to A.7, A.10)."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from headroom_host_agent.resources.facts import (
    Counting,
    DetectionError,
    ListerFailedError,
    ResourceType,
    Source,
    UnknownResourceError,
)
from headroom_host_agent.resources.gpu.status import GpuProfile, GpuStatus
from headroom_host_agent.resources.listers import Directories, Listers, disk_usage_bytes
from headroom_host_agent.resources.manager import Manager
from headroom_host_agent.resources.settings import ResourceSettings
from headroom_host_agent.resources.status import (
    FullResourceStatus,
    ResourceStatus,
    as_ratio,
    effective_limit,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.resources.hosts import GIB, Told, manager, vm
from tests.agent.trees import host_tree


@pytest.mark.parametrize(
    ("capacity", "ratio", "effective", "allocated", "left"),
    [
        (64, "2.0", 128, 48, (80, 0)),
        (16, "4.0", 64, 70, (0, 6)),
        (3, "1.5", 4, 0, (4, 0)),
        (256, "1.3", 332, 332, (0, 0)),
        (100, "1.15", 115, 0, (115, 0)),
        (1000, "1.001", 1001, 0, (1001, 0)),
    ],
)
def test_a_limit_is_the_floor_of_capacity_times_ratio(
    capacity: int, ratio: str, effective: int, allocated: int, left: tuple[int, int]
) -> None:
    limit = effective_limit(capacity, as_ratio(ratio))
    status = ResourceStatus(
        type=ResourceType.CPU,
        capacity=capacity,
        effective_limit=limit,
        allocated=allocated,
        oversub_ratio=as_ratio(ratio),
        source=Source.DETECTED,
    )

    assert (limit, (status.available, status.over_by)) == (effective, left)


@pytest.mark.parametrize("unset", [None, 0, -1, "0", Decimal("-0.5"), 0.0])
def test_a_ratio_that_is_unset_or_not_positive_is_one(unset: object) -> None:
    assert as_ratio(unset) == 1  # type: ignore[arg-type]  # one of several kinds


@given(
    capacity=st.integers(min_value=0, max_value=2**63 - 1),
    thousandths=st.integers(min_value=1, max_value=10**6),
    kept=st.integers(min_value=0, max_value=2**63 - 1),
)
def test_a_limit_is_exact(capacity: int, thousandths: int, kept: int) -> None:
    ratio = Decimal(thousandths) / 1000

    limit = effective_limit(capacity, as_ratio(ratio), reserved_for_host=kept)

    exact = Fraction(thousandths, 1000) * max(0, capacity - kept)
    assert limit <= exact < limit + 1


def test_what_the_host_keeps_is_not_sold(tmp_path: Path) -> None:
    host = manager(
        tmp_path,
        reserved_cpu=2,
        reserved_memory=4 * GIB,
        reserved_disk=100 * GIB,
        oversubscription_cpu=Decimal("4.0"),
    )

    assert host.get_status(ResourceType.CPU).effective_limit == 56
    assert host.get_status(ResourceType.MEMORY).effective_limit == 60 * GIB
    assert host.get_status(ResourceType.DISK).effective_limit == 400 * GIB


COUNTED = [
    ("Running", True),
    ("Paused", True),
    ("Created", True),
    ("Stopped", False),
    ("Shutdown", False),
    ("Standby", False),
    ("Unknown", False),
    ("running", False),
    ("", False),
]


@pytest.mark.parametrize(("state", "is_active"), COUNTED, ids=[repr(row[0]) for row in COUNTED])
def test_a_vm_counts_by_its_state_or_always(tmp_path: Path, state: str, is_active: bool) -> None:
    told = Told(vms=[vm(state=state, vcpus=3)])

    active = manager(tmp_path, told, counting=Counting.ACTIVE)
    openstack = manager(tmp_path, told)

    assert active.get_status(ResourceType.CPU).allocated == (3 if is_active else 0)
    assert openstack.get_status(ResourceType.CPU).allocated == 3
    assert len(active.get_full_status().allocations) == is_active


def test_vms_that_count_are_summed(tmp_path: Path) -> None:
    mb = 10**6
    told = Told(
        vms=[
            vm(
                vcpus=4,
                memory_bytes=4 * GIB,
                network_download_bps=50 * mb,
                network_upload_bps=30 * mb,
            ),
            vm(vcpus=2, state="Paused"),
            vm(vcpus=8, state="Stopped", network_download_bps=10 * mb, network_upload_bps=10 * mb),
            vm(memory_bytes=2 * GIB, state="Created"),
            vm(memory_bytes=8 * GIB, state="Standby"),
            vm(network_download_bps=20 * mb, network_upload_bps=40 * mb, disk_io_bps=7),
        ]
    )
    host = manager(tmp_path, told, counting=Counting.ACTIVE)

    allocated = {kind: host.get_status(kind).allocated for kind in list(ResourceType)[:-1]}

    assert allocated == {
        ResourceType.CPU: 6,
        ResourceType.MEMORY: 6 * GIB,
        ResourceType.DISK: 0,
        ResourceType.NETWORK: 90 * mb,
        ResourceType.DISK_IO: 7,
    }


def test_without_listers_nothing_is_allocated(tmp_path: Path) -> None:
    report = manager(tmp_path).get_full_status()

    assert {status.allocated for status in report.resources.values()} == {0}
    assert report.to_json()["allocations"] == []


def test_disk_is_images_layers_volumes_and_overlays(tmp_path: Path) -> None:
    told = Told(
        images=50 * GIB,
        oci_cache=25 * GIB,
        volumes=100 * GIB,
        vms=[
            vm("a", overlay_bytes=10 * GIB, volume_overlay_bytes=5 * GIB, volume_bytes=30 * GIB),
            vm("b", overlay_bytes=8 * GIB, volume_overlay_bytes=2 * GIB),
        ],
    )

    report = manager(tmp_path, told).get_full_status()

    assert report.disk_breakdown is not None
    assert report.disk_breakdown.overlays_bytes == 25 * GIB
    assert report.resources[ResourceType.DISK].allocated == 200 * GIB
    allocations = report.to_json()["allocations"]
    assert isinstance(allocations, list)
    assert allocations[0]["disk_bytes"] == 40 * GIB


def test_overlays_of_stopped_vms_do_not_count_where_only_active_ones_do(tmp_path: Path) -> None:
    told = Told(
        images=50 * GIB, volumes=100 * GIB, vms=[vm(overlay_bytes=10 * GIB, state="Stopped")]
    )

    status = manager(tmp_path, told, counting=Counting.ACTIVE).get_status(ResourceType.DISK)

    assert status.allocated == 150 * GIB


def test_each_lister_is_asked_once_for_an_answer(tmp_path: Path) -> None:
    told = Told()
    host = manager(tmp_path, told)
    told.calls.clear()

    host.get_full_status()

    assert sorted(told.calls) == ["images", "instances", "oci_cache", "volumes"]


@pytest.mark.parametrize("name", ["images", "oci_cache", "volumes", "instances"])
def test_a_failing_lister_makes_a_status_stale_and_says_why(tmp_path: Path, name: str) -> None:
    told = Told(images=1, oci_cache=2, volumes=4, vms=[vm(overlay_bytes=8)])
    host = manager(tmp_path, told)
    told.fails = {name}

    status = host.get_status(ResourceType.DISK)

    assert (
        status.allocated == 15 - {"images": 1, "oci_cache": 2, "volumes": 4, "instances": 8}[name]
    )
    assert status.stale
    assert name in status.error
    assert status.to_json()["stale"] is True
    assert host.get_status(ResourceType.CPU).stale == (name == "instances")
    assert host.get_full_status().disk_breakdown is None


def test_a_lister_that_fails_at_the_start_is_fatal(tmp_path: Path) -> None:
    with pytest.raises(ListerFailedError, match="volumes is out of order"):
        manager(tmp_path, Told(fails={"volumes"}))


@pytest.mark.parametrize("kind", [ResourceType.GPU])
def test_a_resource_that_nothing_is_known_of_is_an_error(
    tmp_path: Path, kind: ResourceType
) -> None:
    with pytest.raises(UnknownResourceError, match="gpu"):
        manager(tmp_path).get_status(kind)


def test_before_the_start_capacities_are_zero_and_statuses_errors(tmp_path: Path) -> None:
    host = Manager(ResourceSettings(), Listers(), sysroot=tmp_path)

    assert (host.cpu_capacity, host.network_capacity, host.disk_io_capacity) == (0, 0, 0)
    assert host.max_image_storage_bytes() == 0
    with pytest.raises(UnknownResourceError):
        host.get_status(ResourceType.CPU)


def test_a_host_is_discovered_from_its_files(tmp_path: Path) -> None:
    host_tree(tmp_path)
    host = Manager(ResourceSettings(capacity_disk=1024 * GIB), Listers(), sysroot=tmp_path)

    host.initialize()

    found = {kind: host.get_status(kind) for kind in list(ResourceType)[:-1]}
    assert [status.capacity for status in found.values()] == [
        32,
        256 * GIB,
        1024 * GIB,
        1_250_000_000,
        1_000_000_000,
    ]
    assert [status.source.value for status in found.values()] == [
        "detected",
        "detected",
        "configured",
        "detected",
        "configured",
    ]
    assert all(status.effective_limit == status.capacity for status in found.values())
    assert host.get_full_status().boot_id == "1c9b7f3e-0000-4000-8000-000000000001"


def test_the_data_folder_lies_below_the_root(tmp_path: Path) -> None:
    host_tree(tmp_path)
    settings = ResourceSettings(data_dir=Path("/var/lib/other"))

    with pytest.raises(DetectionError, match=str(tmp_path)):
        Manager(settings, Listers(), sysroot=tmp_path).initialize()


def test_a_report_has_the_documented_form(tmp_path: Path) -> None:
    told = Told(
        images=53687091200,
        oci_cache=26843545600,
        volumes=107374182400,
        vms=[
            vm(
                "vm-1",
                vcpus=4,
                memory_bytes=8589934592,
                overlay_bytes=10737418240,
                volume_overlay_bytes=5368709120,
                network_download_bps=125000000,
                network_upload_bps=125000000,
                disk_io_bps=67108864,
            )
        ],
    )
    two = Decimal("2.0")
    host = manager(
        tmp_path,
        told,
        capacity_cpu=64,
        capacity_memory=274877906944,
        capacity_disk=1099511627776,
        capacity_network=1250000000,
        oversubscription_cpu=two,
        oversubscription_network=two,
        oversubscription_disk_io=two,
    )
    seen = host.get_full_status()
    gpu = GpuStatus(
        mode="vgpu",
        total_slots=64,
        used_slots=5,
        allocatable_slots=59,
        profiles=(GpuProfile(name="L40S-1Q", framebuffer_mb=1024, available=59),),
    )
    report = FullResourceStatus(
        resources=seen.resources,
        disk_breakdown=seen.disk_breakdown,
        gpu=gpu,
        allocations=seen.allocations,
        generated_at=seen.generated_at,
        boot_id=None,
        cells=(),
        hugepages=(),
    ).to_json()

    assert list(report) == [
        *("cpu", "memory", "disk", "network", "disk_io", "disk_breakdown", "gpu", "allocations"),
        *("generated_at", "boot_id", "numa", "hugepages", "image_storage"),
    ]
    ours = {"pending": 0, "over_by": 0, "stale": False}
    for kind, capacity, limit, allocated, available, ratio in (
        ("cpu", 64, 128, 4, 124, 2.0),
        ("memory", 274877906944, 274877906944, 8589934592, 266287972352, 1.0),
        ("disk", 1099511627776, 1099511627776, 204010946560, 895500681216, 1.0),
        ("network", 1250000000, 2500000000, 125000000, 2375000000, 2.0),
        ("disk_io", 1000000000, 2000000000, 67108864, 1932891136, 2.0),
    ):
        assert (
            report[kind]
            == {
                "type": kind,
                "capacity": capacity,
                "effective_limit": limit,
                "allocated": allocated,
                "available": available,
                "oversub_ratio": ratio,
                "source": "configured",
            }
            | ours
        )
    assert report["disk_breakdown"] == {
        "images_bytes": 53687091200,
        "oci_cache_bytes": 26843545600,
        "volumes_bytes": 107374182400,
        "overlays_bytes": 16106127360,
    }
    assert report["gpu"] == {
        "mode": "vgpu",
        "total_slots": 64,
        "used_slots": 5,
        "allocatable_slots": 59,
        "quarantined_slots": 0,
        "profiles": [{"name": "L40S-1Q", "framebuffer_mb": 1024, "available": 59}],
    }
    assert report["allocations"] == [
        {
            "instance_id": "vm-1",
            "instance_name": "name of vm-1",
            "cpu": 4,
            "memory_bytes": 8589934592,
            "disk_bytes": 10737418240,
            "network_download_bps": 125000000,
            "network_upload_bps": 125000000,
            "disk_io_bps": 67108864,
        }
    ]


def test_files_count_the_blocks_they_take_and_once(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    image = tmp_path / "below/image"
    image.write_bytes(b"x" * 100_000)
    alone = disk_usage_bytes(tmp_path)
    (tmp_path / "again").hardlink_to(image)
    (tmp_path / "link").symlink_to(image)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10**9)

    assert 100_000 <= alone < 200_000
    assert alone <= disk_usage_bytes(tmp_path) < alone + 10_000


def test_folders_are_listers_and_missing_ones_are_empty(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/one").write_bytes(b"x" * 10_000)
    folders = Directories(
        images=tmp_path / "images", oci_cache=tmp_path / "none", volumes=tmp_path / "none"
    )

    assert folders.total_image_bytes() >= 10_000
    assert folders.total_oci_cache_bytes() == folders.total_volume_bytes() == 0
