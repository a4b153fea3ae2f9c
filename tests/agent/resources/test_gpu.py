"""GPUs: what there is, what is free, how one is taken (spec hosts, A.11)."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest
from headroom_host_agent.resources.facts import DetectionError
from headroom_host_agent.resources.gpu.assignment import (
    GpuAssignmentError,
    assign_vendor,
    create_mdev,
    destroy_mdev,
    orphans,
    release_vendor,
)
from headroom_host_agent.resources.gpu.detect import get_gpu_status, passthrough_devices
from headroom_host_agent.resources.gpu.functions import (
    ProfileCache,
    framebuffer_mb,
    mdev_functions,
    vendor_functions,
)
from headroom_host_agent.resources.gpu.health import (
    clear_failures,
    read_quarantined,
    record_failure,
)

from tests.agent.trees import plant

PCI = "sys/bus/pci/devices"
ONE, TWO = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"


def mdev_host(root: Path, *, functions: int, used: int, per_function: int = 1) -> Path:
    """Plant functions of one GPU, the first of them in use."""
    for number in range(functions):
        name = f"0000:3b:00.{number + 4}"
        device = f"sys/devices/pci0000:3a/{name}"
        types = f"{device}/mdev_supported_types"
        left = 0 if number < used else per_function
        plant(
            root,
            {
                f"{types}/nvidia-1/name": "NVIDIA L40S-1Q\n",
                f"{types}/nvidia-1/description": "num_heads=4, framebuffer=1024M, max=8\n",
                f"{types}/nvidia-1/available_instances": f"{left}\n",
                f"{types}/nvidia-1/create": "",
                f"{types}/nvidia-2/name": "NVIDIA L40S-X\n",
                f"{types}/nvidia-2/description": "nothing known\n",
            },
            {
                f"sys/class/mdev_bus/{name}": device,
                f"{device}/physfn": "sys/devices/pci0000:3a/0000:3b:00.0",
            },
        )
        if number < used:
            mdev = f"{device}/{uuid.UUID(int=number)}"
            plant(
                root,
                {f"{mdev}/remove": ""},
                {f"sys/bus/mdev/devices/{uuid.UUID(int=number)}": mdev},
            )
    return root


def vendor_vf(root: Path, address: str, *, current: str = "0", gpu: str = "") -> None:
    plant(
        root,
        {
            f"{PCI}/{address}/nvidia/creatable_vgpu_types": (
                "ID    : vGPU Name\n\n1155  : NVIDIA L40S-4Q\n1157  : NVIDIA L40S-8Q\n"
            ),
            f"{PCI}/{address}/nvidia/current_vgpu_type": current + "\n",
        },
        {f"{PCI}/{address}/physfn": f"{PCI}/{gpu}"} if gpu else None,
    )


def card(
    root: Path, address: str, *, vendor: str = "10de", kind: str = "030200", driver: str = ""
) -> None:
    base = f"{PCI}/{address}"
    links = {f"{base}/iommu_group": "sys/kernel/iommu_groups/7"}
    if driver:
        links[f"{base}/driver"] = f"sys/bus/pci/drivers/{driver}"
    plant(
        root,
        {
            f"{base}/vendor": f"0x{vendor}\n",
            f"{base}/device": "0x26b9\n",
            f"{base}/class": f"0x{kind}\n",
        },
        links,
    )


def test_a_host_without_gpus_reports_none(tmp_path: Path) -> None:
    assert get_gpu_status(tmp_path) is None


def test_mediated_devices_are_slots(tmp_path: Path) -> None:
    mdev_host(tmp_path, functions=3, used=1, per_function=2)
    card(tmp_path, "0000:3b:00.0")  # the first mode that matches counts

    status = get_gpu_status(tmp_path)

    assert status is not None
    assert (status.mode, status.total_slots, status.used_slots) == ("vgpu", 3, 1)
    assert (status.allocatable_slots, status.quarantined_slots) == (2, 0)
    assert [profile.to_json() for profile in status.profiles] == [
        {"name": "NVIDIA L40S-1Q", "framebuffer_mb": 1024, "available": 4},
        {"name": "NVIDIA L40S-X", "framebuffer_mb": 0, "available": 0},
    ]


def test_functions_of_the_vendors_driver_are_slots(tmp_path: Path) -> None:
    vendor_vf(tmp_path, "0000:3b:00.4", current="1155")
    vendor_vf(tmp_path, "0000:3b:00.5")
    plant(tmp_path, {f"{PCI}/0000:3b:00.6/nvidia/creatable_vgpu_types": ""})  # no current type

    status = get_gpu_status(tmp_path)

    assert status is not None
    assert (status.mode, status.total_slots, status.used_slots) == ("vgpu", 2, 1)
    assert [
        (profile.name, profile.framebuffer_mb, profile.available) for profile in status.profiles
    ] == [
        ("NVIDIA L40S-4Q", 4096, 1),
        ("NVIDIA L40S-8Q", 8192, 1),
    ]


def test_functions_that_cannot_be_read_make_no_whole_gpus(tmp_path: Path) -> None:
    plant(tmp_path, {f"{PCI}/0000:3b:00.6/nvidia/creatable_vgpu_types": ""})
    card(tmp_path, "0000:3b:00.0")

    status = get_gpu_status(tmp_path)

    assert status is not None
    assert (status.mode, status.total_slots, status.allocatable_slots) == ("vgpu", 0, 0)
    assert "0000:3b:00.6" in status.placement_disabled_reason
    with pytest.raises(DetectionError):
        vendor_functions(tmp_path)


@pytest.mark.parametrize(
    ("name", "size_mb"),
    [
        ("NVIDIA L40S-4Q", 4096),
        ("NVIDIA A100-40C", 40960),
        ("GRID T4-16A", 16384),
        ("NVIDIA L4-24Q", 24576),
        ("NVIDIA A16", 0),
        ("NVIDIA L40S-Q", 0),
        ("", 0),
    ],
)
def test_a_types_name_tells_its_framebuffer(name: str, size_mb: int) -> None:
    assert framebuffer_mb(name) == size_mb


def test_whole_gpus_are_slots_and_their_other_functions_are_not(tmp_path: Path) -> None:
    card(tmp_path, "0000:3b:00.0", driver="vfio-pci")
    card(tmp_path, "0000:3b:00.1", kind="040300")
    card(tmp_path, "0000:3b:00.2", kind="0c0330")
    card(tmp_path, "0000:5e:00.0", kind="030000", driver="nvidia")
    card(tmp_path, "0000:af:00.0")
    card(tmp_path, "0000:d8:00.0", vendor="1002")
    plant(tmp_path, {f"{PCI}/0000:ff:00.0/vendor": "0x10de\n", f"{PCI}/odd/vendor": "0x10de\n"})

    status = get_gpu_status(tmp_path)

    assert status is not None
    assert (status.mode, status.total_slots, status.used_slots) == ("passthrough", 3, 1)
    assert status.allocatable_slots == 2
    assert status.to_json()["devices"] == [
        {
            "address": address,
            "vendor": "10de",
            "device": "26b9",
            "iommu_group": 7,
            "available": is_available,
        }
        for address, is_available in (
            ("0000:3b:00.0", False),
            ("0000:5e:00.0", True),
            ("0000:af:00.0", True),
        )
    ]
    assert len(passthrough_devices(tmp_path, ("10de", "1002"))) == 4


def test_a_function_that_failed_for_two_vms_is_not_tried_again(tmp_path: Path) -> None:
    mdev_host(tmp_path, functions=3, used=1)
    health = tmp_path / "health.json"
    for vm in ("a", "a", "b"):
        record_failure(health, "0000:3b:00.5", vm)
    record_failure(health, "0000:3b:00.6", "a")

    status = get_gpu_status(tmp_path, health_file=health)

    assert status is not None
    assert (status.total_slots, status.used_slots) == (3, 1)
    assert (status.allocatable_slots, status.quarantined_slots) == (1, 1)
    clear_failures(health, "0000:3b:00.5")
    assert read_quarantined(health) == (frozenset(), "")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"a": [1]}', '"\udcff"'])
def test_an_unreadable_health_places_nothing(tmp_path: Path, text: str) -> None:
    mdev_host(tmp_path, functions=3, used=1)
    health = tmp_path / "health.json"
    health.write_bytes(text.encode("utf-8", "surrogateescape"))

    status = get_gpu_status(tmp_path, health_file=health)

    assert status is not None
    assert (status.allocatable_slots, bool(status.placement_disabled_reason)) == (0, True)
    with pytest.raises(ValueError, match=r".+"):
        record_failure(health, "x", "y")


def test_a_mediated_device_is_made_on_a_free_function(tmp_path: Path) -> None:
    mdev_host(tmp_path, functions=3, used=1)

    made = create_mdev(tmp_path, "NVIDIA L40S-1Q", quarantined={"0000:3b:00.5"}, new_uuid=ONE)

    assert (made.function, made.mdev_uuid) == ("0000:3b:00.6", ONE)
    written = tmp_path / "sys/class/mdev_bus/0000:3b:00.6/mdev_supported_types/nvidia-1/create"
    assert written.read_text() == ONE


@pytest.mark.parametrize("profile", ["NVIDIA L40S-1Q", "NVIDIA L40S-X", "unknown"])
def test_where_nothing_is_free_no_device_is_made(tmp_path: Path, profile: str) -> None:
    mdev_host(tmp_path, functions=1, used=1)

    with pytest.raises(GpuAssignmentError, match=profile):
        create_mdev(tmp_path, profile)


def test_a_mediated_device_is_removed_once(tmp_path: Path) -> None:
    mdev_host(tmp_path, functions=1, used=1)
    remove = tmp_path / "sys/bus/mdev/devices" / str(uuid.UUID(int=0)) / "remove"

    destroy_mdev(tmp_path, str(uuid.UUID(int=0)))
    destroy_mdev(tmp_path, TWO)  # gone already

    assert remove.read_text() == "1"
    with pytest.raises(ValueError, match="hexadecimal"):
        destroy_mdev(tmp_path, "../../etc")


def test_the_least_loaded_gpu_is_taken_and_an_unknown_load_last(tmp_path: Path) -> None:
    for gpu, current in (("3b", "1157"), ("5e", "1155"), ("1a", "9999")):
        parent = f"0000:{gpu}:00.0"
        vendor_vf(tmp_path, f"0000:{gpu}:00.4", current=current, gpu=parent)
        vendor_vf(tmp_path, f"0000:{gpu}:00.5", gpu=parent)

    taken = [assign_vendor(tmp_path, "NVIDIA L40S-4Q").function for _ in range(3)]

    assert taken == ["0000:5e:00.5", "0000:3b:00.5", "0000:1a:00.5"]
    with pytest.raises(GpuAssignmentError, match="no free function"):
        assign_vendor(tmp_path, "NVIDIA L40S-4Q")
    functions, _ = vendor_functions(tmp_path)
    for function in functions:
        release_vendor(function)
    assert get_gpu_status(tmp_path).used_slots == 0  # type: ignore[union-attr]  # it has GPUs


def test_a_driver_that_takes_another_type_is_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor_vf(tmp_path, "0000:3b:00.4")
    write, written = Path.write_text, []

    def driver(self: Path, text: str, encoding: str | None = None) -> int:
        written.append(text)
        return write(self, "1157" if text == "1155" else text, encoding=encoding)

    monkeypatch.setattr(Path, "write_text", driver)

    with pytest.raises(GpuAssignmentError, match="1157"):
        assign_vendor(tmp_path, "NVIDIA L40S-4Q")
    assert written == ["1155", "0"]


def test_threads_never_take_one_function_twice(tmp_path: Path) -> None:
    for number in range(8):
        vendor_vf(tmp_path, f"0000:3b:00.{number}")
    taken: list[str] = []

    def take() -> None:
        taken.append(assign_vendor(tmp_path, "NVIDIA L40S-4Q").function)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(taken)) == 8


def test_only_our_devices_of_vms_that_do_not_run_are_orphans(tmp_path: Path) -> None:
    mdev_host(tmp_path, functions=5, used=5)
    ids = [str(uuid.UUID(int=number)) for number in range(5)]
    held = tmp_path / "sys/bus/mdev/devices" / ids[2]
    plant(held, {}, {"iommu_group": "groups/42"})
    (tmp_path / "proc/77/fd").mkdir(parents=True)
    (tmp_path / "proc/77/fd/9").symlink_to("/dev/vfio/42")
    plant(tmp_path / "sys/bus/mdev/devices" / ids[3], {}, {"driver": "drivers/foreign"})
    ours = {ids[0]: "gone", ids[1]: "running", ids[2]: "gone", ids[3]: "gone"}

    assert orphans(tmp_path, ours=ours, running={"running"}) == (ids[0],)
    assert orphans(tmp_path, ours=ours, running=None) == ()


def test_profiles_are_read_once_in_half_an_hour(tmp_path: Path) -> None:
    mdev_host(tmp_path, functions=2, used=0)
    now = [0.0]
    cache = ProfileCache(monotonic=lambda: now[0])
    functions = mdev_functions(tmp_path)
    assert cache.types_of(()) == ()  # a driver that is loading is not kept
    first = cache.types_of(functions)
    name = functions[0].path / "mdev_supported_types/nvidia-1/name"
    name.write_text("NVIDIA L40S-2Q\n", encoding="utf-8")

    now[0] = 1799.0
    assert cache.types_of(functions) == first
    assert cache.types_of(functions[1:])[0].name == "NVIDIA L40S-1Q"  # another function, read anew
    assert cache.types_of(functions)[0].name == "NVIDIA L40S-2Q"
    now[0] += 1800.0
    name.write_text("NVIDIA L40S-4Q\n", encoding="utf-8")
    assert cache.types_of(functions)[0].name == "NVIDIA L40S-4Q"
