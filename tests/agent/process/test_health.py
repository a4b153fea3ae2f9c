"""Checks of a host, and what is told of VMs and workloads (spec hosts, D.6, D.10)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from headroom_host_agent.process.health import Health

from tests.agent.process.served import Headroom, Run, served, until
from tests.agent.resources.hosts import vm
from tests.agent.trees import host_tree, plant


def seen(root: Path, **facts: object) -> dict[str, bool]:
    return {one.check: one.ok for one in Health(sysroot=root, **facts).look()}  # type: ignore[arg-type]  # by name


def test_a_fit_host_is_fit(tmp_path: Path) -> None:
    host_tree(tmp_path)
    plant(
        tmp_path,
        {
            "sys/block/sda/device/state": "running\n",
            "sys/block/nvme0n1/device/state": "live\n",
            "sys/block/md0/md/degraded": "0\n",
            "sys/fs/ext4/sda1/errors_count": "0\n",
            "sys/class/net/eno1/operstate": "up\n",
        },
    )
    allowed = os.sched_getaffinity(0)
    found = seen(tmp_path, offset_seconds=lambda: 0.2)
    assert found == {"clock": True, "disk": True, "network": True, "cpu": True}
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.parametrize(
    ("files", "check"),
    [
        ({"sys/block/sda/device/state": "offline"}, "disk"),
        ({"sys/block/md0/md/degraded": "1"}, "disk"),
        ({"sys/fs/ext4/sda1/errors_count": "3"}, "disk"),
        ({"sys/class/net/eno1/operstate": "down"}, "network"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, files: dict[str, str], check: str) -> None:
    plant(host_tree(tmp_path), files)
    assert seen(tmp_path)[check] is False


def test_a_wrong_clock_and_a_wrong_cpu_are_said(tmp_path: Path) -> None:
    found = seen(tmp_path, offset_seconds=lambda: -7200.0, digest=lambda _: "wrong")
    assert found == {"clock": False, "cpu": False}


@pytest.fixture
def headroom() -> Headroom:
    return Headroom()


@pytest.fixture
def run(tmp_path: Path, headroom: Headroom) -> Iterator[Run]:
    with served(headroom) as url:
        yield Run(tmp_path, url, headroom, report_interval_seconds=3600)


def test_vms_workloads_and_health_are_told_on_change(run: Run, headroom: Headroom) -> None:
    vms = [vm("a"), vm("b", state="Stopped")]
    run.agent.parts.store.close()
    run.agent = run.make(instances=lambda: vms)
    with run.running() as agent:
        until(lambda: "/resources" in headroom.kept)
        assert [one["check"] for one in headroom.kept["/resources"]["health"]][-1] == "cpu"
        until(lambda: headroom.beats)
        agent.report_soon()
        until(lambda: "/instances" in headroom.kept)
        rows = headroom.kept["/instances"]["instances"]
        assert [(row["uuid"], row["active"]) for row in rows] == [("a", True), ("b", False)]

        headroom.assign("1-1", resources={"cpu": 2, "memory": 1024})
        until(lambda: headroom.kept["/stats"]["workloads"] == {"file": 1})
        assert headroom.kept["/stats"]["units"] == {"cru": 2, "mru": 1024, "hru": 0, "sru": 0}


def test_vms_that_cannot_be_listed_are_not_told_of(run: Run, headroom: Headroom) -> None:
    def fails() -> list[object]:
        raise OSError("out of order")

    run.agent.parts.store.close()
    run.agent = run.make(instances=fails)
    with run.running() as agent:
        until(lambda: headroom.beats)
        agent.report_soon()
        until(lambda: "/stats" in headroom.kept)
    assert "/instances" not in headroom.kept
