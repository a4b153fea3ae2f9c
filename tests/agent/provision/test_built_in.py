"""Built-in provisioners on copies of /sys (spec hosts, D.11)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headroom_host_agent.configuration import ConfigurationError, load_settings
from headroom_host_agent.provision.built_in import built_in
from headroom_host_agent.provision.built_in.base import Place
from headroom_host_agent.provision.built_in.capacity_slice import CapacitySlice
from headroom_host_agent.provision.built_in.disk_quota import FOLDER, TRASH_SECONDS, DiskQuota
from headroom_host_agent.provision.built_in.hugepages import Hugepages
from headroom_host_agent.provision.built_in.noop import Noop
from headroom_host_agent.provision.built_in.vgpu import Vgpu, device_of
from headroom_host_agent.provision.provisioners import ProvisionError, load_provisioners
from headroom_host_agent.provision.stored import Artifact
from headroom_host_agent.provision.units import Units
from headroom_host_agent.resources.gpu import assignment
from headroom_host_agent.resources.tree import read_or_none

from tests.agent.provision.workshop import GIB, Workshop, reservation
from tests.agent.resources.test_gpu import mdev_host
from tests.agent.trees import plant

CGROUPS = "sys/fs/cgroup"
HUGE = "sys/kernel/mm/hugepages/hugepages-2048kB"
NODE = "sys/devices/system/node/node1/hugepages/hugepages-2048kB"


def data(**facts: Any) -> bytes:
    return json.dumps(facts).encode()


class Bench:
    """A host below a folder with one provisioner; ``files`` is all that it holds."""

    def __init__(self, root: Path, kind: str, made: Any, *, more: Mapping[str, str]) -> None:
        self.root, self.kind, self.made = root, kind, made
        plant(root, {"proc/sys/kernel/random/boot_id": "boot\n", **more})
        (root / "data").mkdir(exist_ok=True)
        self.shop = Workshop(root, provisioners={kind: made})

    def make(self, identity: str, facts: bytes, **more: Any) -> list[tuple[str, str, str]]:
        self.shop.run(reservation(identity, self.kind, data=facts, **more))
        return self.shop.says()

    def drop(self, identity: str) -> list[tuple[str, str, str]]:
        self.shop.run(reservation(identity, self.kind, to_delete=True, seq=9))
        return self.shop.says()

    def read(self, path: str) -> str | None:
        return read_or_none(self.root / path)

    def snapshot(self) -> dict[str, str]:
        paths = (self.root / "sys").rglob("*")
        return {str(path): path.read_text() for path in paths if path.is_file()}

    def is_well(self, identity: str) -> bool:
        row = self.shop.store.row(identity)
        return bool(self.made.verify(self.shop.engine.context(row), row.reservation))


def place(root: Path, **facts: Any) -> Place:
    return Place(sysroot=root, data_dir=root / "data", **({"enforce": True} | facts))


GROUPS = {
    f"{CGROUPS}/cgroup.controllers": "cpuset cpu io memory pids\n",
    f"{CGROUPS}/cgroup.subtree_control": "",
    f"{CGROUPS}/system.slice/memory.min": str(2 * GIB),
    f"{CGROUPS}/system.slice/memory.current": str(GIB),
    f"{CGROUPS}/user.slice/memory.high": "max\n",
}


def slices(root: Path, more: Mapping[str, str] | None = None, **facts: Any) -> Bench:
    made = CapacitySlice(place(root, **facts), rmdir=shutil.rmtree)
    return Bench(root, "capacity_slice", made, more=GROUPS if more is None else more)


PARENT_MIN = f"{CGROUPS}/headroom.slice/memory.min"
SLICE = f"{CGROUPS}/headroom.slice/headroom-42_1.slice"


def test_slices_protect_memory_and_their_parent_the_sum(tmp_path: Path) -> None:
    bench = slices(tmp_path)
    big, small = {"memory": 32 * GIB}, {"memory": 16 * GIB}

    assert bench.make("42-1", data(cpu_weight=200), resources=big) == [("42-1:1:result", "ok", "")]
    assert bench.read(f"{SLICE}/memory.min") == "34359738368"
    assert bench.read(f"{SLICE}/cpu.weight") == "200"
    assert bench.read(PARENT_MIN) == "34359738368"
    result = json.loads(bench.shop.store.get("42-1").result.data)
    assert (result["slice"], result["enforced"]) == ("headroom-42_1.slice", True)

    bench.make("43-1", data(), resources=small)
    assert bench.read(PARENT_MIN) == "51539607552"

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "sys").rglob("*.min")}
    again = bench.made.provision(
        bench.shop.engine.context(bench.shop.store.row("42-1")), bench.shop.store.get("42-1")
    )
    assert again == result
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "sys").rglob("*.min")}
    assert bench.is_well("42-1")

    assert bench.drop("42-1") == [("42-1:1:deleted", "deleted", "")]
    assert not (tmp_path / SLICE).exists()
    assert bench.read(PARENT_MIN) == "17179869184"


def test_minimums_beyond_the_limit_write_nothing(tmp_path: Path) -> None:
    bench = slices(tmp_path)
    before = bench.snapshot()

    ((_, state, error),) = bench.make("42-1", data(memory_min=65 * GIB))

    assert (state, error.split(":")[0]) == ("error", "insufficient_capacity")
    assert bench.snapshot() == before


@pytest.mark.parametrize("controllers", ["cpu pids", None])
def test_a_host_without_cgroup_v2_refuses_slices(tmp_path: Path, controllers: str | None) -> None:
    more = {} if controllers is None else {f"{CGROUPS}/cgroup.controllers": controllers}
    ((_, state, error),) = slices(tmp_path, more).make("42-1", data(cpus="0-3"))
    assert (state, error.split(":")[0]) == ("error", "no_controller")
    assert "memory" in error


def test_a_slice_with_processes_stays_unless_forced(tmp_path: Path) -> None:
    bench = slices(tmp_path)
    for identity, force in (("42-1", False), ("43-1", True)):
        bench.make(identity, data(force=force), resources={"memory": GIB})
        name = identity.replace("-", "_")
        plant(
            tmp_path,
            {f"{CGROUPS}/headroom.slice/headroom-{name}.slice/cgroup.events": "populated 1\n"},
        )
    assert bench.drop("42-1") == []
    assert bench.made.in_use(Artifact(name="headroom-42_1.slice", kind="", reservation_id="42-1"))
    assert bench.read(PARENT_MIN) == str(2 * GIB)
    assert bench.drop("43-1") == [("43-1:1:deleted", "deleted", "")]
    assert bench.read(PARENT_MIN) == str(GIB)


def test_a_slice_with_processes_gets_another_size(tmp_path: Path) -> None:
    bench = slices(tmp_path)
    one = reservation("42-1", "capacity_slice", resources={"memory": 32 * GIB}, seq=1)
    bench.shop.store.take_page([one], cursor=1)
    bench.shop.run()
    plant(tmp_path, {f"{SLICE}/cgroup.events": "populated 1\nfrozen 0\n"})
    for attempt, gib, state, there in ((2, 48, "ok", 48), (3, 8, "ok", 8), (4, 900, "error", 8)):
        facts: dict[str, Any] = {"attempt": attempt, "version": attempt, "seq": attempt}
        wanted = replace(one, resources={"memory": gib * GIB}, **facts)
        bench.shop.store.take_page([wanted], cursor=attempt)
        bench.shop.says()
        bench.shop.run()
        assert [said for _, said, _ in bench.shop.says()] == [state]
        assert bench.read(f"{SLICE}/memory.min") == str(there * GIB)
        assert bench.read(PARENT_MIN) == str(there * GIB)


def test_slices_that_are_capped_have_what_is_left(tmp_path: Path) -> None:
    bench = slices(tmp_path, cap_slices=("user.slice",))
    high = f"{CGROUPS}/user.slice/memory.high"

    bench.make("42-1", data(), resources={"memory": 32 * GIB})
    assert bench.read(high) == str((64 - 32 - 1) * GIB)  # 1 GiB of system.slice is protected too
    bench.drop("42-1")
    assert bench.read(high) == str(63 * GIB)


def test_groups_of_vms_that_run_are_never_touched(tmp_path: Path) -> None:
    scope = f"{CGROUPS}/machine.slice/machine-qemu.scope"
    running = {f"{scope}/cgroup.procs": "4711\n", f"{scope}/memory.high": "max\n"}
    bench = slices(tmp_path, GROUPS | running, cap_slices=("user.slice",))
    bench.make("42-1", data(cpu_weight=5, cpus="0-3"), resources={"memory": GIB})
    bench.drop("42-1")
    assert {path: (tmp_path / path).read_text() for path in running} == running
    below = (tmp_path / CGROUPS / "machine.slice").rglob("*")
    assert len([path for path in below if path.is_file()]) == len(running)


def test_capping_vms_that_run_needs_a_word(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    text = '[capacity_slice]\ncap_slices = ["machine.slice"]\n'
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="throttles VMs"):
        load_settings(file, {})
    file.write_text(f"{text}allow_machine_slice = true\n")
    assert load_settings(file, {}).cap_slices == ("machine.slice",)


def pages(root: Path, *, here: int = 10, free: int = 10, **facts: Any) -> Bench:
    more = {
        f"{base}/{name}": f"{count}\n"
        for base in (HUGE, NODE)
        for name, count in (("nr_hugepages", here), ("free_hugepages", free))
    }
    return Bench(root, "hugepages", Hugepages(place(root, **facts)), more=more)


def test_a_pool_is_what_it_was_and_all_reservations(tmp_path: Path) -> None:
    bench = pages(tmp_path)
    facts = data(page_size="2MiB", count=100)

    assert bench.make("1-1", facts) == [("1-1:1:result", "ok", "")]
    bench.make("2-1", data(page_size="2MiB", count=20))
    assert bench.read(f"{HUGE}/nr_hugepages") == "130"
    bench.make("1-1", facts, attempt=2, seq=5)
    assert bench.read(f"{HUGE}/nr_hugepages") == "130"
    assert bench.is_well("1-1")
    assert bench.made.units(reservation("1-1", data=facts)) == Units(mru=100 * 2 * 1024**2)

    plant(tmp_path, {f"{HUGE}/free_hugepages": "100"})
    assert bench.drop("1-1")[-1][1] == "deleted"
    assert bench.read(f"{HUGE}/nr_hugepages") == "30"
    bench.drop("2-1")
    assert bench.read(f"{HUGE}/nr_hugepages") == "10"


def test_pages_of_a_node_are_its_own(tmp_path: Path) -> None:
    bench = pages(tmp_path)
    bench.make("1-1", data(page_size="2MiB", count=5, numa_node=1))
    assert (bench.read(f"{NODE}/nr_hugepages"), bench.read(f"{HUGE}/nr_hugepages")) == ("15", "10")
    ((_, state, error),) = bench.make("2-1", data(page_size="2MiB", count=5))
    assert (state, error.split(":")[0]) == ("error", "mixed_pools")


def test_fewer_pages_than_wanted_restore_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = pages(tmp_path)
    real = Path.write_text

    def kernel(path: Path, text: str, **more: Any) -> int:
        is_pool = path.name == "nr_hugepages"
        return real(path, str(min(int(text), 60)) if is_pool else text, **more)

    monkeypatch.setattr(Path, "write_text", kernel)
    ((_, state, error),) = bench.make("1-1", data(page_size="2MiB", count=100))
    assert (state, error) == ("error", "too_few_pages: got 60 pages, wanted 110")
    assert bench.read(f"{HUGE}/nr_hugepages") == "10"


def test_pages_in_use_are_not_given_back(tmp_path: Path) -> None:
    bench = pages(tmp_path)
    bench.make("1-1", data(page_size="2MiB", count=100))
    plant(tmp_path, {f"{HUGE}/free_hugepages": "40"})
    assert bench.drop("1-1") == []
    assert bench.read(f"{HUGE}/nr_hugepages") == "110"


def test_a_pool_grows_and_shrinks_under_vms_that_fill_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = pages(tmp_path)
    one = reservation("1-1", "hugepages", data=data(page_size="2MiB", count=100), seq=1)

    def want(count: int, attempt: int) -> str:
        facts: dict[str, Any] = {"attempt": attempt, "version": attempt, "seq": attempt}
        wanted = replace(one, data=data(page_size="2MiB", count=count), **facts)
        bench.shop.store.take_page([wanted], cursor=attempt)
        bench.shop.run()
        ((_, state, _),) = bench.shop.says()
        return state

    def pool() -> str | None:
        return bench.read(f"{HUGE}/nr_hugepages")

    assert (want(100, 1), pool()) == ("ok", "110")
    plant(tmp_path, {f"{HUGE}/free_hugepages": "0"})  # all are in use
    assert (want(120, 2), pool()) == ("ok", "130")
    real = Path.write_text
    monkeypatch.setattr(
        Path,
        "write_text",
        lambda path, text, **more: real(
            path, str(min(int(text), 140)) if path.name == "nr_hugepages" else text, **more
        ),
    )
    assert (want(200, 3), pool()) == ("error", "130")
    bench.make("2-1", data(page_size="2MiB", count=10))
    assert pool() == "140"  # beside what is there, not what failed
    assert (want(90, 4), pool()) == ("ok", "110")
    plant(tmp_path, {f"{HUGE}/free_hugepages": "110"})
    bench.drop("1-1")
    assert pool() == "20"


def test_after_a_boot_the_pool_is_counted_anew(tmp_path: Path) -> None:
    bench = pages(tmp_path)
    facts = data(page_size="2MiB", count=100)
    bench.make("1-1", facts)
    plant(tmp_path, {f"{HUGE}/nr_hugepages": "3", "proc/sys/kernel/random/boot_id": "other"})
    bench.make("1-1", facts, attempt=2, seq=5)
    assert bench.read(f"{HUGE}/nr_hugepages") == "103"


def vgpus(root: Path, monkeypatch: pytest.MonkeyPatch, **facts: Any) -> Bench:
    """A host with two functions, one in use, whose kernel makes and removes devices."""
    mdev_host(root, functions=2, used=1)

    def kernel(path: Path, text: str) -> None:
        if path.name == "create":
            device = path.parents[2] / text
            device.mkdir()
            (device / "remove").write_text("")
            (root / "sys/bus/mdev/devices" / text).symlink_to(device)
            (path.parent / "available_instances").write_text("0")
        if path.name == "remove":
            device = path.parent.resolve()
            (root / "sys/bus/mdev/devices" / device.name).unlink()
            shutil.rmtree(device)

    monkeypatch.setattr(assignment, "_write", kernel)
    return Bench(root, "vgpu", Vgpu(place(root, **facts)), more={})


def test_a_device_is_made_once_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = vgpus(tmp_path, monkeypatch)
    facts, device = data(profile="NVIDIA L40S-1Q"), device_of("1-1")

    assert bench.make("1-1", facts)[0][1] == "ok"
    assert (tmp_path / "sys/bus/mdev/devices" / device).exists()
    assert bench.is_well("1-1")
    assert bench.make("1-1", facts, attempt=2, seq=4)[0][1] == "ok"
    ((_, state, error),) = bench.make("2-1", facts)
    assert (state, error.split(":")[0]) == ("error", "no_free_function")
    ((_, _, error),) = bench.make("3-1", data(profile="none such"))
    assert error.split(":")[0] == "no_profile"

    (driver := tmp_path / "sys/bus/mdev/drivers/nvidia-busy").mkdir(parents=True)
    link = (tmp_path / "sys/bus/mdev/devices" / device).resolve() / "driver"
    link.symlink_to(driver)
    assert bench.drop("1-1") == []
    link.unlink()
    assert bench.drop("1-1")[0][1] == "deleted"
    assert not (tmp_path / "sys/bus/mdev/devices" / device).exists()


class Tools:
    """Keeps what tools of the host are called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.refuses = False

    def __call__(self, arguments: tuple[str, ...]) -> None:
        self.calls.append(arguments)
        if self.refuses:
            raise ProvisionError("no_project_quota", "not supported")


def quotas(root: Path, tools: Tools, *, now: float = 1e9, **facts: Any) -> Bench:
    made = DiskQuota(place(root, **facts), run=tools, wall=lambda: now)
    return Bench(root, "disk_quota", made, more={})


def test_a_folder_has_a_quota_and_is_kept_for_a_week(tmp_path: Path) -> None:
    tools = Tools()
    bench = quotas(tmp_path, tools)
    root = tmp_path / "data" / FOLDER
    bench.make("1-1", data(size_bytes=5000, device_class="hdd"))
    bench.make("2-1", data(size_bytes=1))
    bench.make("1-1", data(size_bytes=5000, device_class="hdd"), attempt=2, seq=3)
    projects = [call[3] for call in tools.calls if call[0] == "chattr"]
    assert projects == ["1000000", "1000001", "1000000"]
    assert tools.calls[1][:6] == ("setquota", "-P", "1000000", "0", "5", "0")
    assert bench.made.units(bench.shop.store.get("1-1")) == Units(hru=5000)

    (root / "1-1/disk").write_text("data")
    bench.drop("1-1")
    bench.drop("2-1")
    assert [path.name for path in root.iterdir()] == [".trash-1-1"]
    assert (root / ".trash-1-1/disk").read_text() == "data"

    late = quotas(tmp_path, tools, now=1e9 + TRASH_SECONDS + 1)
    late.make("3-1", data(size_bytes=1, delete_data=True))
    assert [path.name for path in root.iterdir()] == ["3-1"]
    (root / "3-1/disk").write_text("data")
    late.drop("3-1")
    assert list(root.iterdir()) == []


def test_a_folder_that_was_made_again_is_kept_beside_the_one_before(tmp_path: Path) -> None:
    bench = quotas(tmp_path, Tools())
    root = tmp_path / "data" / FOLDER
    for attempt, text in enumerate(("first", "second", "third"), 1):
        bench.make("1-1", data(size_bytes=4096), attempt=attempt, seq=attempt)
        (root / "1-1/disk").write_text(text)
        ((_, state, _),) = bench.drop("1-1")
        assert state == "deleted"
    kept = {path.name: (path / "disk").read_text() for path in root.iterdir()}
    assert kept == {".trash-1-1": "first", ".trash-1-1.2": "second", ".trash-1-1.3": "third"}


def test_who_dies_while_a_folder_is_moved_aside_loses_no_day_of_its_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the folder was written long before."""
    bench = quotas(tmp_path, Tools())
    root = tmp_path / "data" / FOLDER
    bench.make("1-1", data(size_bytes=4096))
    (root / "1-1/disk").write_text("data")
    os.utime(root / "1-1", (1e8, 1e8))
    moved = Path.rename

    def die(path: Path, target: Path) -> None:
        moved(path, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", die)
    context = bench.shop.engine.context(bench.shop.store.row("1-1"))
    with pytest.raises(KeyboardInterrupt):
        bench.made.decommission(context, bench.shop.store.get("1-1"))
    monkeypatch.undo()

    quotas(tmp_path, Tools()).made._purge()
    assert (root / ".trash-1-1/disk").read_text() == "data"


@pytest.mark.parametrize(("soft", "state"), [(False, "error"), (True, "ok")])
def test_without_project_quotas_only_soft_folders_are_made(
    tmp_path: Path, soft: bool, state: str
) -> None:
    tools = Tools()
    tools.refuses = True
    bench = quotas(tmp_path, tools)
    ((_, said, _),) = bench.make("1-1", data(size_bytes=5, soft=soft))
    assert said == state
    assert (tmp_path / "data" / FOLDER / "1-1").exists() == soft


def test_the_kind_of_disk_is_that_of_its_queue(tmp_path: Path) -> None:
    bench = quotas(tmp_path, Tools())
    device = (tmp_path / "data").stat().st_dev
    queue = f"sys/dev/block/{os.major(device)}:{os.minor(device)}/queue/rotational"
    for told, kind in (("1", Units(hru=7)), ("0", Units(sru=7))):
        plant(tmp_path, {queue: f"{told}\n"})
        assert bench.made.units(reservation("1-1", data=data(size_bytes=7))) == kind


REPORTED: list[tuple[str, bytes]] = [
    ("capacity_slice", data(cpu_weight=200)),
    ("hugepages", data(page_size="2MiB", count=4)),
    ("vgpu", data(profile="NVIDIA L40S-1Q")),
    ("disk_quota", data(size_bytes=4096)),
]


@pytest.mark.parametrize(("kind", "facts"), REPORTED, ids=[kind for kind, _ in REPORTED])
def test_without_enforcement_nothing_is_written(tmp_path: Path, kind: str, facts: bytes) -> None:
    plant(tmp_path, GROUPS)
    pages(tmp_path)
    mdev_host(tmp_path, functions=1, used=0)
    found, failed = load_provisioners((kind,), built_in(place(tmp_path, enforce=False)))
    assert failed == {}
    bench = Bench(tmp_path, kind, found[kind], more={})
    before, folders = bench.snapshot(), sorted((tmp_path / "sys").rglob("*"))

    assert bench.make("42-1", facts, resources={"memory": GIB})[0][1] == "ok"
    result = json.loads(bench.shop.store.get("42-1").result.data)
    assert result["enforced"] is False
    if kind == "hugepages":
        assert result["files"] == {f"/{HUGE}/nr_hugepages": "14"}
    assert bench.is_well("42-1")
    assert bench.drop("42-1")[0][1] == "deleted"

    assert bench.snapshot() == before
    assert sorted((tmp_path / "sys").rglob("*")) == folders
    assert list((tmp_path / "data").iterdir()) == []


WRONG: list[tuple[str, bytes]] = [
    ("capacity_slice", data(cpu_weight=0)),
    ("capacity_slice", data(cpu_weight=True)),
    ("capacity_slice", data(cpus="three")),
    ("capacity_slice", data(memory_minimum=1)),
    ("hugepages", data(page_size="4KiB", count=1)),
    ("hugepages", data(page_size="2MiB")),
    ("hugepages", data(page_size="2MiB", count=1, numa_node=-1)),
    ("vgpu", data()),
    ("vgpu", data(profile="../x")),
    ("disk_quota", data(size_bytes=0)),
    ("disk_quota", data(size_bytes=1, device_class="tape")),
    ("noop", data(sleep_ms=-1)),
    ("noop", b"[]"),
]


@pytest.mark.parametrize(("kind", "facts"), WRONG)
def test_wrong_data_give_an_error_result(tmp_path: Path, kind: str, facts: bytes) -> None:
    plant(tmp_path, GROUPS)
    bench = Bench(tmp_path, kind, built_in(place(tmp_path))[kind], more={})
    before = bench.snapshot()
    ((_, state, error),) = bench.make("42-1", facts)
    assert state == "error"
    assert error.startswith(("bad_data: ", "no_profile"))
    assert bench.snapshot() == before


def test_a_type_that_is_not_enabled_is_unsupported(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "noop", Noop(place(tmp_path)), more={})
    bench.shop.run(reservation("1-1", "vgpu", data=data(profile="x")))
    assert bench.shop.says() == [("1-1:1:result", "error", "unsupported: type not supported: vgpu")]
    assert bench.make("2-1", data(fail=True))[0][2] == "asked_to_fail: it was asked to fail"
    assert bench.make("3-1", data(sleep_ms=1))[0][1] == "ok"
