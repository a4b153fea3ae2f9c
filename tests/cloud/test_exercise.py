from __future__ import annotations

from typing import Any

import pytest

from cloud.exercise import StepEnd, differences, draw_flavors, row
from cloud.layout import FLAVORS
from cloud.said import problems_in

PROVIDERS = {"node1": "uuid-1", "node1_gpu0": "uuid-1-gpu", "node10": "uuid-10"}
GOOD = {"uuid-1": {"VCPU": 2, "MEMORY_MB": 8192, "DISK_GB": 20}}


def server(flavor: str = "g_c2_m8") -> dict[str, Any]:
    name = {"original_name": flavor}
    return {"name": "vm", "flavor": name, "OS-EXT-SRV-ATTR:host": "node1"}


def test_allocations_like_the_flavor_on_the_host_are_right() -> None:
    assert differences(server(), GOOD, PROVIDERS) == ""


def test_a_nested_provider_of_the_host_counts_with_it() -> None:
    held = {
        "uuid-1": {"VCPU": 8, "MEMORY_MB": 65536, "DISK_GB": 100},
        "uuid-1-gpu": {"VGPU": 1},
    }
    assert differences(server("gpu_c8_m64_v1"), held, PROVIDERS) == ""


@pytest.mark.parametrize(
    "held",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"uuid-10": GOOD["uuid-1"]}, id="on another host"),
        pytest.param({**GOOD, "uuid-10": GOOD["uuid-1"]}, id="on two hosts"),
        pytest.param({"uuid-1": {**GOOD["uuid-1"], "VCPU": 1}}, id="too little"),
        pytest.param({"uuid-1": {**GOOD["uuid-1"], "VGPU": 1}}, id="a resource too many"),
    ],
)
def test_other_allocations_are_told(held: dict[str, dict[str, int]]) -> None:
    assert differences(server(), held, PROVIDERS).startswith("vm ")


def test_every_kind_of_flavor_is_booted_and_the_same_each_time() -> None:
    drawn = draw_flavors(52)
    assert len(drawn) == 52
    assert {flavor.name for flavor in drawn} == {flavor.name for flavor in FLAVORS if flavor.weight}
    assert drawn == draw_flavors(52)


def test_errors_and_tracebacks_of_a_log_are_problems_and_nothing_else_is() -> None:
    lines = [
        '{"event": "started", "level": "info"}',
        '{"event": "looked_twice", "level": "warning"}',
        '{"event": "task_failed", "level": "error", "exception": "Traceback\\nValueError: x"}',
        "[INFO] Started worker-1",
        "Traceback (most recent call last):",
        "{not json",
    ]
    assert problems_in(lines) == [
        "task_failed ValueError: x",
        "Traceback (most recent call last):",
    ]


def test_a_row_of_the_table_says_how_a_step_ended() -> None:
    good = StepEnd(title="boot", is_good=True, text="52 servers", seconds=61.25)
    bad = StepEnd(title="boot", is_good=False, text="no", seconds=1)
    assert row(good).split() == ["ok", "boot", "61.2", "s", "52", "servers"]
    assert row(bad).startswith("FAILED")
