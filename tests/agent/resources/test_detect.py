"""CPUs, memory and disk of a Linux host (spec hosts, A.3)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest
from headroom_host_agent.resources.detect import (
    detect_cpu,
    detect_disk,
    detect_memory,
    reference_cpus,
)
from headroom_host_agent.resources.facts import DetectionError, Source
from headroom_host_agent.resources.tree import parse_list
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.trees import plant, processors

UNEVEN = "\n\n".join(
    f"processor : {number}\nphysical id : {socket}\nsiblings : {siblings}"
    for socket, siblings, numbers in ((0, 16, range(16)), (1, 8, range(16, 24)))
    for number in numbers
)
CPUS = [
    ("two sockets", processors(32, siblings=16, sockets=2), None, 32, 32),
    ("no physical id", processors(8, siblings=8), None, 8, 8),
    ("ARM", processors(4), None, 4, 4),
    ("empty", "", None, 1, 1),
    ("uneven sockets", UNEVEN, None, 32, 24),
    ("a CPU is offline", processors(17), "0-15,17\n", 17, 17),
    ("siblings without processor lines", "physical id: 0\nsiblings: 6\n", None, 6, 6),
    ("an unreadable list", processors(3), "what\n", 3, 3),
]


@pytest.mark.parametrize(
    ("cpuinfo", "online", "reference", "ours"), [row[1:] for row in CPUS], ids=[r[0] for r in CPUS]
)
def test_cpus_are_counted(
    tmp_path: Path, cpuinfo: str, online: str | None, reference: int, ours: int
) -> None:
    root = plant(tmp_path, {"proc/cpuinfo": cpuinfo})
    if online is not None:
        plant(root, {"sys/devices/system/cpu/online": online})

    found = detect_cpu(root)

    assert (found.amount, found.source) == (ours, Source.DETECTED)
    assert reference_cpus(cpuinfo) == reference


def test_a_host_without_cpuinfo_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DetectionError, match="cpuinfo"):
        detect_cpu(tmp_path)


def test_a_pinned_agent_says_that_it_sees_less(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(
        tmp_path,
        {
            "sys/devices/system/cpu/online": "0-7\n",
            "proc/self/status": "Name:\tagent\nCpus_allowed_list:\t0-1,8-127\n",
            "proc/self/cgroup": "0::/system.slice/agent.service\n",
            "sys/fs/cgroup/system.slice/agent.service/cpu.max": "max 100000\n",
            "sys/fs/cgroup/system.slice/cpu.max": "150000 100000\n",
        },
    )

    found = detect_cpu(tmp_path)

    assert found.amount == 8
    assert found.details == {"affinity": 2, "cgroup_cpu_max": "1.50"}
    assert len(caplog.records) == 1


def test_cpus_that_were_never_there_are_no_affinity(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(
        tmp_path,
        {
            "sys/devices/system/cpu/online": "0-1\n",
            "proc/self/status": "Cpus_allowed_list:\t0-127\n",
        },
    )

    assert detect_cpu(tmp_path).details["affinity"] == 2
    assert not caplog.records


@given(numbers=st.frozensets(st.integers(min_value=0, max_value=300)))
def test_a_list_of_cpus_is_read_as_it_was_written(numbers: frozenset[int]) -> None:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)

    assert parse_list(text) == numbers


@given(text=st.text(alphabet="0123456789-, x", max_size=8))
def test_no_list_of_cpus_fails_otherwise_than_with_a_value_error(text: str) -> None:
    try:
        numbers = parse_list(text)
    except ValueError:
        return
    assert all(number >= 0 for number in numbers)


def test_memory_is_memtotal_in_bytes_and_names_huge_pages(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "proc/meminfo": "MemFree: 1 kB\nMemTotal:       16384000 kB\n",
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "512\n",
            "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "500\n",
        },
    )

    found = detect_memory(tmp_path)

    assert found.amount == 16_777_216_000
    assert found.details == {
        "hugepages": [{"page_size_bytes": 2 * 1024**2, "total": 512, "free": 500, "bytes": 1024**3}]
    }


@pytest.mark.parametrize(
    ("meminfo", "words"),
    [
        ("MemTotal: many kB\n", "cannot parse MemTotal"),
        ("MemTotal:\n", "cannot parse MemTotal"),
        ("MemFree: 1 kB\n", "MemTotal not found"),
        ("", "MemTotal not found"),
    ],
)
def test_memory_that_cannot_be_read_is_an_error(tmp_path: Path, meminfo: str, words: str) -> None:
    plant(tmp_path, {"proc/meminfo": meminfo})

    with pytest.raises(DetectionError, match=words):
        detect_memory(tmp_path)


def test_a_host_without_meminfo_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DetectionError, match="meminfo"):
        detect_memory(tmp_path)


def test_a_disk_has_the_size_of_its_file_system_with_roots_blocks(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)

    assert detect_disk(tmp_path).amount == found.f_blocks * found.f_frsize
    assert found.f_blocks >= found.f_bavail


def test_a_missing_data_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DetectionError, match="nowhere"):
        detect_disk(tmp_path / "nowhere")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and /sys of this machine")
def test_this_machine_is_described_as_another_library_does() -> None:
    assert detect_cpu().amount == psutil.cpu_count()
    assert detect_memory().amount == psutil.virtual_memory().total
