"""The snapshot beside everything else, and counters of VMs (spec hosts, A.12)."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import psutil
import pytest
from headroom_host_agent.resources.facts import ResourceType
from headroom_host_agent.resources.monitor import Monitor
from headroom_host_agent.resources.utilization import (
    InstanceUtilizationInfo,
    Utilization,
    parse_stat,
    parse_statm,
    read_utilization,
)

from tests.agent.resources.hosts import GIB, Told, manager, vm
from tests.agent.trees import plant

PATIENCE_SECONDS = 30


def test_before_the_first_snapshot_there_is_none(tmp_path: Path) -> None:
    monitor = Monitor(manager(tmp_path, Told(images=3, oci_cache=4)))
    assert monitor.snapshot is None

    monitor.refresh()

    assert monitor.snapshot is not None
    assert (monitor.snapshot.image_bytes, monitor.snapshot.max_image_bytes) == (7, 100 * GIB)


def test_images_are_unknown_while_their_lister_fails(tmp_path: Path) -> None:
    told = Told()
    monitor = Monitor(manager(tmp_path, told))
    told.fails = {"images"}

    monitor.refresh()

    assert monitor.snapshot is not None
    assert monitor.snapshot.image_bytes is None


@pytest.mark.parametrize("interval_seconds", [0, -1.0])
def test_an_interval_must_be_positive(tmp_path: Path, interval_seconds: float) -> None:
    with pytest.raises(ValueError, match="interval_seconds"):
        Monitor(manager(tmp_path), interval_seconds=interval_seconds)


def test_a_monitor_refreshes_in_one_thread_however_often_it_is_started(tmp_path: Path) -> None:
    told = Told()
    host = manager(tmp_path, told)
    looks = threading.Semaphore(0)
    threads: set[int] = set()

    def looked(name: str) -> None:
        if name == "instances":
            threads.add(threading.get_ident())
            looks.release()

    told.before = looked
    monitor = Monitor(host, interval_seconds=0.001)
    monitor.start()
    monitor.start()
    for _ in range(3):
        assert looks.acquire(timeout=PATIENCE_SECONDS)
    told.vms = [vm(vcpus=5)]
    for _ in range(3):
        assert looks.acquire(timeout=PATIENCE_SECONDS)
    monitor.stop()

    assert len(threads) == 1
    assert monitor.snapshot is not None
    assert monitor.snapshot.status.resources[ResourceType.CPU].allocated == 5


def test_a_monitor_that_crashed_can_be_started_again(tmp_path: Path) -> None:
    told = Told()
    host = manager(tmp_path, told)
    crashed, looked = threading.Event(), threading.Event()

    class Broken(Monitor):
        is_broken = True

        def refresh(self) -> None:
            if self.is_broken:
                crashed.set()
                raise MemoryError
            super().refresh()
            looked.set()

    monitor = Broken(host)
    monitor.start()
    assert crashed.wait(PATIENCE_SECONDS)
    monitor.stop(timeout_seconds=PATIENCE_SECONDS)
    monitor.is_broken = False
    monitor.start()

    assert looked.wait(PATIENCE_SECONDS)
    monitor.stop()
    assert monitor.snapshot is not None


STAT = "4242 (qemu) kvm) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 9"


def test_cpu_time_is_read_after_the_last_bracket() -> None:
    assert parse_stat(STAT, ticks_per_second=100) == 3_000_000
    assert parse_stat(STAT, ticks_per_second=1000) == 300_000


@pytest.mark.parametrize("text", ["", "1 (a) S 1 2", "1 (a)" + " x" * 13])
def test_a_stat_that_is_too_short_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_stat(text, ticks_per_second=100)


def test_memory_is_counted_in_pages() -> None:
    assert parse_statm("300 20 5 1 0 9 0", page_bytes=65536) == (20 * 65536, 300 * 65536)
    with pytest.raises(ValueError, match="two fields"):
        parse_statm("300")


def info(pid: int | None, tap: str) -> InstanceUtilizationInfo:
    return InstanceUtilizationInfo(
        id="a",
        name="a",
        hypervisor_pid=pid,
        tap_device=tap,
        allocated_vcpus=1,
        allocated_memory_bytes=1,
    )


def test_what_a_tap_received_the_vm_sent(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "proc/7/stat": STAT,
            "proc/7/statm": "3 2 0 0 0 0 0",
            "sys/class/net/tap7/statistics/rx_bytes": "11\n",
            "sys/class/net/tap7/statistics/tx_bytes": "22\n",
        },
    )
    page, ticks = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")

    assert read_utilization(info(7, "tap7"), tmp_path) == Utilization(
        cpu_microseconds=300 * 1_000_000 // ticks,
        rss_bytes=2 * page,
        vms_bytes=3 * page,
        sent_bytes=11,
        received_bytes=22,
    )


@pytest.mark.parametrize(("pid", "tap"), [(None, ""), (8, ""), (None, "tap8"), (8, "tap8")])
def test_what_is_gone_counts_zero_with_one_line_at_debug_level(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, pid: int | None, tap: str
) -> None:
    caplog.set_level("DEBUG")

    assert read_utilization(info(pid, tap), tmp_path) == Utilization()
    assert len(caplog.records) == (pid is not None or tap != "")


def test_this_process_is_read_as_another_library_does() -> None:
    found = read_utilization(info(os.getpid(), ""))

    assert found.cpu_microseconds > 0
    assert found.vms_bytes >= found.rss_bytes > 0
    assert found.rss_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
