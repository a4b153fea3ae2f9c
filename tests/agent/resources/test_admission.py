"""Admission, operations under way, default bandwidths, images (spec hosts, A.7 to A.9)."""

from __future__ import annotations

import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from headroom_host_agent.resources.admission import (
    AllocationRequest,
    GpuSlots,
    InsufficientCapacityError,
    largest_fit,
    room,
    shortages,
)
from headroom_host_agent.resources.defaults import shaping
from headroom_host_agent.resources.facts import ListerFailedError, ResourceType, Source
from headroom_host_agent.resources.images import ImageStorageError
from headroom_host_agent.resources.manager import InstanceLimitError, Manager
from headroom_host_agent.resources.status import ResourceStatus
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.resources.hosts import GIB, Told, manager, vm
from tests.agent.trees import plant


def check(host: Manager, **asked: Any) -> str:  # Any: fields of the request
    """Return what is said against a request; empty when it is admitted."""
    request: dict[str, Any] = {
        "vcpus": 0,
        "memory_bytes": 0,
        "network_download_bps": 0,
        "network_upload_bps": 0,
        "disk_io_bps": 0,
        "needs_gpu": False,
    }
    try:
        host.validate_allocation(**(request | asked))
    except InsufficientCapacityError as error:
        return str(error)
    return ""


def test_a_vm_that_fits_exactly_is_admitted_and_one_more_cpu_is_not(tmp_path: Path) -> None:
    host = manager(tmp_path, Told(vms=[vm(vcpus=60)]), oversubscription_cpu=Decimal("4.0"))

    assert check(host, vcpus=4) == ""
    said = check(host, vcpus=5)
    assert said.startswith("cpu: requested 5 vCPUs, available 4 vCPUs")
    assert "allocated 60 vCPUs, limit 64 vCPUs, ratio 4.0" in said


def test_memory_is_said_in_sizes(tmp_path: Path) -> None:
    said = check(manager(tmp_path, Told(vms=[vm(memory_bytes=60 * GIB)])), memory_bytes=8 * GIB)

    for part in ("requested 8.0 GB", "available 4.0 GB", "allocated 60.0 GB", "limit 64.0 GB"):
        assert part in said


def test_both_directions_share_the_link(tmp_path: Path) -> None:
    host = manager(tmp_path, Told(vms=[vm(network_download_bps=50_000_000)]))

    with pytest.raises(InsufficientCapacityError) as caught:
        host.validate_allocation(0, 0, 10_000_000, 80_000_000, 0, False)

    (failure,) = caught.value.failures
    assert failure.to_json() == {
        "resource": "network",
        "requested": 80_000_000,
        "available": 75_000_000,
        "allocated": 50_000_000,
        "effective_limit": 125_000_000,
        "oversub_ratio": 1.0,
        "unit": "bytes/s",
        "message": str(failure),
    }
    assert "76.3 MB/s" in str(failure)


@pytest.mark.parametrize(
    ("speed", "configured", "is_admitted"),
    [
        ("10000", None, True),
        ("1000", None, False),
        ("-1", None, True),
        (None, None, True),
        (None, 125_000_000, False),
        (None, 0, False),
    ],
)
def test_an_uplink_of_unknown_speed_is_no_limit_but_zero_is(
    tmp_path: Path, speed: str | None, configured: int | None, is_admitted: bool
) -> None:
    if speed is not None:
        plant(tmp_path, {"sys/class/net/eno1/speed": speed})
    host = manager(tmp_path, capacity_network=configured, uplink_interface="eno1")

    assert (check(host, network_download_bps=125_000_001) == "") == is_admitted
    assert host.can_allocate(ResourceType.NETWORK, 125_000_001) == is_admitted


def test_an_unknown_uplink_admits_everything(tmp_path: Path) -> None:
    host = manager(tmp_path, capacity_network=None)

    assert check(host, network_download_bps=10**12) == ""


def test_nothing_fits_everywhere(tmp_path: Path) -> None:
    assert check(manager(tmp_path, Told(vms=[vm(vcpus=99)]))) == ""


def test_a_gpu_is_not_found_where_there_is_none(tmp_path: Path) -> None:
    assert check(manager(tmp_path), needs_gpu=True) == "gpu: no GPU on this host"


def test_all_that_is_short_is_named_in_order(tmp_path: Path) -> None:
    with pytest.raises(InsufficientCapacityError) as caught:
        manager(tmp_path).validate_allocation(
            32, 128 * GIB, 0, 0, 2 * 10**9, True, disk_bytes=501 * GIB
        )

    kinds = [failure.resource.value for failure in caught.value.failures]
    assert kinds == ["cpu", "memory", "disk", "disk_io", "gpu"]
    assert str(caught.value).startswith("cpu: ")
    assert caught.value.largest_fit is None  # no GPU at any size


def test_admission_is_not_blind(tmp_path: Path) -> None:
    told = Told()
    host = manager(tmp_path, told)

    told.fails = {"images"}
    assert check(host, vcpus=1) == ""
    with pytest.raises(ListerFailedError, match="images is out of order"):
        host.validate_allocation(0, 0, 0, 0, 0, False, disk_bytes=1)
    with pytest.raises(ListerFailedError):
        host.can_allocate(ResourceType.DISK, 1)
    with pytest.raises(ListerFailedError):
        host.has_sufficient_disk_for_pull()
    with pytest.raises(ListerFailedError):
        host.has_sufficient_image_storage()

    told.fails = {"instances"}
    with pytest.raises(ListerFailedError) as caught:
        host.validate_allocation(1, 0, 0, 0, 0, False)
    assert caught.value.code == "lister_failed"


def vendor_host(root: Path, *, used: int, total: int) -> None:
    for number in range(total):
        base = f"sys/bus/pci/devices/0000:3b:00.{number}/nvidia"
        plant(
            root,
            {
                f"{base}/creatable_vgpu_types": "ID : vGPU Name\n1155 : NVIDIA L40S-4Q\n",
                f"{base}/current_vgpu_type": "1155\n" if number < used else "0\n",
            },
        )


def test_a_host_whose_gpus_are_all_used_says_how_many(tmp_path: Path) -> None:
    vendor_host(tmp_path, used=4, total=4)

    said = check(manager(tmp_path), needs_gpu=True)

    assert said == "gpu: all slots are in use (mode vgpu, total 4, used 4)"


GPU = AllocationRequest(needs_gpu=True)


def test_a_gpu_under_way_is_not_given_away_twice(tmp_path: Path) -> None:
    vendor_host(tmp_path, used=0, total=1)
    host = manager(tmp_path)

    host.reserve_allocation("a", GPU)
    with pytest.raises(InsufficientCapacityError, match="none is allocatable"):
        host.reserve_allocation("b", GPU)
    host.finish_allocation("a")
    host.reserve_allocation("b", GPU)


def test_what_is_under_way_does_not_stand_against_itself(tmp_path: Path) -> None:
    host = manager(tmp_path, capacity_cpu=4)

    host.reserve_allocation("a", AllocationRequest(vcpus=4))
    host.reserve_allocation("a", AllocationRequest(vcpus=3))

    status = host.get_status(ResourceType.CPU)
    assert (status.pending, status.allocated, status.available) == (3, 0, 4)
    assert check(host, vcpus=1) == ""
    assert "allocated 3 vCPUs" in check(host, vcpus=2)


def test_a_refused_change_leaves_what_was_under_way(tmp_path: Path) -> None:
    host = manager(tmp_path, capacity_cpu=4)
    host.reserve_allocation("a", AllocationRequest(vcpus=3))

    with pytest.raises(InsufficientCapacityError):
        host.reserve_allocation("a", AllocationRequest(vcpus=5))

    assert host.get_status(ResourceType.CPU).pending == 3


def test_what_is_not_under_way_can_be_finished(tmp_path: Path) -> None:
    host = manager(tmp_path)
    host.finish_allocation("")
    host.finish_allocation("unknown")

    assert host.get_status(ResourceType.CPU).pending == 0


def test_an_operation_that_ends_during_the_look_is_seen(tmp_path: Path) -> None:
    told = Told()
    host = manager(tmp_path, told, capacity_cpu=4)
    host.reserve_allocation("a", AllocationRequest(vcpus=4))
    answers = iter([True])

    def finish_after_the_answer(name: str) -> None:
        # The list was made without the VM, then the VM appears and its operation ends.
        if name == "images" and next(answers, False):
            told.vms = [vm("a", vcpus=4)]
            host.finish_allocation("a")

    told.before = finish_after_the_answer

    assert "allocated 4 vCPUs" in check(host, vcpus=1)


def test_many_threads_never_admit_more_than_there_is(tmp_path: Path) -> None:
    host = manager(tmp_path, Told(), capacity_cpu=10)
    admitted: list[int] = []
    start = threading.Barrier(8)

    def reserve(first: int) -> None:
        start.wait()
        for number in range(first, first + 5):
            try:
                host.reserve_allocation(str(number), AllocationRequest(vcpus=1))
            except InsufficientCapacityError:
                continue
            admitted.append(number)

    threads = [threading.Thread(target=reserve, args=(100 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(admitted) == 10


def status(kind: ResourceType, limit: int, allocated: int, pending: int) -> ResourceStatus:
    return ResourceStatus(
        type=kind,
        capacity=limit,
        effective_limit=limit,
        allocated=allocated,
        pending=pending,
        oversub_ratio=Decimal(1),
        source=Source.CONFIGURED,
    )


NUMBERS = st.integers(min_value=0, max_value=60)
STATUSES = st.fixed_dictionaries(
    {
        kind: st.builds(status, st.just(kind), limit=NUMBERS, allocated=NUMBERS, pending=NUMBERS)
        for kind in list(ResourceType)[:-1]
    }
)
REQUESTS = st.builds(
    AllocationRequest,
    vcpus=NUMBERS,
    memory_bytes=NUMBERS,
    disk_bytes=NUMBERS,
    network_download_bps=NUMBERS,
    network_upload_bps=NUMBERS,
    disk_io_bps=NUMBERS,
    needs_gpu=st.booleans(),
)
GPUS = st.one_of(
    st.none(),
    st.builds(GpuSlots, mode=st.just("vgpu"), total=NUMBERS, used=NUMBERS, allocatable=NUMBERS),
)


@given(statuses=STATUSES, gpu=GPUS, request=REQUESTS)
def test_the_largest_fit_fits_and_a_little_more_does_not(
    statuses: dict[ResourceType, ResourceStatus], gpu: GpuSlots | None, request: AllocationRequest
) -> None:
    short = shortages(statuses, gpu, request)
    fit = largest_fit(statuses, gpu, request)

    for kind, known in statuses.items():
        is_short = request.amount_of(kind) > room(known)
        assert is_short == any(failure.resource == kind for failure in short)
    if not short:
        assert fit == request
    elif fit is not None:
        assert shortages(statuses, gpu, fit) == ()
        binding = [kind for kind in statuses if request.amount_of(kind) > room(statuses[kind])]
        assert any(fit.amount_of(kind) == room(statuses[kind]) for kind in binding)


@pytest.mark.parametrize(
    ("cpu", "network", "vcpus", "rate"),
    [
        (16, 1_250_000_000, 2, 312_500_000),
        (16, 1_250_000_000, 3, 468_750_000),
        (12, 1_250_000_000, 1, 208_333_333),
        (16, 1_250_000_000, 32, 5_000_000_000),
        (0, 1_250_000_000, 2, 0),
        (16, 0, 2, 0),
    ],
)
def test_a_vm_without_a_rate_gets_its_cpus_share_of_the_network(
    tmp_path: Path, cpu: int, network: int, vcpus: int, rate: int
) -> None:
    host = manager(
        tmp_path,
        capacity_cpu=cpu,
        capacity_network=network,
        oversubscription_network=Decimal("2.0"),
    )

    assert host.default_network_bandwidth(vcpus) == (rate, rate)


@pytest.mark.parametrize(
    ("cpu", "disk_io", "vcpus", "rates"),
    [
        (16, 10**9, 2, (250_000_000, 1_000_000_000)),
        (12, 10**9, 1, (166_666_666, 666_666_664)),
        (0, 10**9, 2, (0, 0)),
        (16, 0, 2, (0, 0)),
    ],
)
def test_a_vm_without_a_rate_gets_its_cpus_share_of_disk_io(
    tmp_path: Path, cpu: int, disk_io: int, vcpus: int, rates: tuple[int, int]
) -> None:
    host = manager(
        tmp_path,
        capacity_cpu=cpu,
        capacity_disk_io=disk_io,
        oversubscription_disk_io=Decimal("2.0"),
    )

    assert host.default_disk_io_bandwidth(vcpus) == rates


def test_default_rates_can_leave_the_ratio_out(tmp_path: Path) -> None:
    host = manager(
        tmp_path,
        capacity_network=1_250_000_000,
        oversubscription_network=Decimal("2.0"),
        apply_oversubscription=False,
    )

    assert host.default_network_bandwidth(2) == (156_250_000, 156_250_000)


def test_each_direction_is_defaulted_by_itself(tmp_path: Path) -> None:
    host = manager(tmp_path, capacity_network=1_600)

    request = host.with_defaults(AllocationRequest(vcpus=1, network_upload_bps=7))

    assert (request.network_download_bps, request.network_upload_bps) == (100, 7)
    assert request.disk_io_bps == 62_500_000


def test_bursts_are_multiples_of_rates() -> None:
    shaped = shaping(100, 10, download_multiplier=4, upload_multiplier=3)

    assert (shaped.download_bps, shaped.download_bucket_bytes) == (100, 400)
    assert (shaped.upload_bps, shaped.upload_ceiling_bps) == (10, 30)


@pytest.mark.parametrize(
    ("request_", "overlay_bytes", "word"),
    [
        (AllocationRequest(vcpus=17), 0, "vcpus"),
        (AllocationRequest(memory_bytes=33 * GIB), 0, "memory"),
        (AllocationRequest(), 101 * GIB, "overlay"),
        (AllocationRequest(vcpus=16, memory_bytes=32 * GIB), 100 * GIB, ""),
    ],
)
def test_a_vm_may_not_be_larger_than_one_may_be(
    tmp_path: Path, request_: AllocationRequest, overlay_bytes: int, word: str
) -> None:
    limits: dict[str, Any] = {
        "max_vcpus_per_instance": 16,
        "max_memory_per_instance": 32 * GIB,
        "max_overlay_per_instance": 100 * GIB,
    }

    manager(tmp_path).check_instance_limits(request_, overlay_bytes=overlay_bytes)
    host = manager(tmp_path, **limits)
    if word:
        with pytest.raises(InstanceLimitError, match=word):
            host.check_instance_limits(request_, overlay_bytes=overlay_bytes)
    else:
        host.check_instance_limits(request_, overlay_bytes=overlay_bytes)


@pytest.mark.parametrize(
    ("available_bytes", "is_enough"), [(5 * GIB, True), (5 * GIB - 1, False), (0, False)]
)
def test_a_pull_needs_five_gibibytes(tmp_path: Path, available_bytes: int, is_enough: bool) -> None:
    host = manager(tmp_path, Told(volumes=500 * GIB - available_bytes))

    if is_enough:
        host.has_sufficient_disk_for_pull()
        return
    with pytest.raises(ImageStorageError, match=r"5\.0 GB"):
        host.has_sufficient_disk_for_pull()


@pytest.mark.parametrize(
    ("fraction", "images_gib", "oci_gib", "said"),
    [
        ("0.2", 50, 25, ""),
        ("0.2", 75, 25, "images take 100.0 GB, the limit is 100.0 GB (20% of the disk)"),
        ("0", 74, 25, ""),
        ("0", 75, 25, "images take 100.0 GB, the limit is 100.0 GB (20% of the disk)"),
        ("0.125", 75, 0, "images take 75.0 GB, the limit is 62.5 GB (12.5% of the disk)"),
    ],
)
def test_images_take_a_share_of_the_disk(
    tmp_path: Path, fraction: str, images_gib: int, oci_gib: int, said: str
) -> None:
    told = Told(images=images_gib * GIB, oci_cache=oci_gib * GIB)
    host = manager(
        tmp_path,
        told,
        max_image_storage=Decimal(fraction),
        oversubscription_disk=Decimal(3),  # the share is of the raw capacity
    )

    assert host.current_image_storage_bytes() == (images_gib + oci_gib) * GIB
    if fraction != "0.125":
        assert host.max_image_storage_bytes() == 107_374_182_400
    if not said:
        host.has_sufficient_image_storage()
        return
    with pytest.raises(ImageStorageError) as caught:
        host.has_sufficient_image_storage()
    assert str(caught.value) == said


def test_a_host_without_a_known_disk_has_no_limit_of_images(tmp_path: Path) -> None:
    host = manager(tmp_path, Told(images=10**15), capacity_disk=0)

    host.has_sufficient_image_storage()
    assert manager(tmp_path).current_image_storage_bytes() == 0
