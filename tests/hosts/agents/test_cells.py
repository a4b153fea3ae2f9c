"""NUMA cells as agents report them (spec hosts, D.2)."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from hosts.agents.cell_models import HostCell
from hosts.agents.models import AgentMode
from hosts.agents.modes import set_mode
from hosts.region.described_cells import DescribedCell, keep_described_cells
from tests.console.api.conftest import _tokens, walked  # noqa: F401 - a fixture
from tests.factories import make_host
from tests.hosts.agents.agents import enrolled, report, signed
from tests.hosts.agents.workloads import ANN

pytestmark = pytest.mark.django_db
GIB = 1 << 30


def cell(number: int, *, pinned: tuple[int, ...] = (), pages: int = 0, free: int = 0) -> Any:
    pool = {"page_size_bytes": GIB, "total": pages, "free": free, "bytes": pages * GIB}
    return {
        "cell": number,
        "cpus": [number * 2, number * 2 + 1],
        "pinned_cpus": list(pinned),
        "memory_bytes": 64 * GIB,
        "hugepages": [pool | {"available": free}] if pages else [],
    }


def kept(name: str = "h1") -> dict[tuple[int, str], tuple[int, int]]:
    rows = HostCell.objects.filter(host__name=name)
    return {(row.cell, row.resource): (row.capacity, row.allocated) for row in rows}


def test_cells_are_kept_as_they_were_reported_last() -> None:
    make_host("h1")
    make_host("h2")
    agents = {name: enrolled(name) for name in ("h1", "h2")}
    two = [cell(0, pinned=(0, 99), pages=16, free=10), cell(1)]
    for name, numa in (("h1", two), ("h2", [cell(0)])):
        assert signed(agents[name], report(numa=numa)).send().status_code == 204

    assert kept() == {
        (0, "cpu"): (2, 1),
        (0, "memory"): (64 * GIB, 16 * GIB),
        (0, "hugepages"): (16 * GIB, 6 * GIB),
        (1, "cpu"): (2, 0),
        (1, "memory"): (64 * GIB, 0),
    }
    told = walked("/api/v1/hosts/h1/cells?limit=2")
    assert [(one["cell"], one["resource"]) for one in told] == sorted(kept())
    (only,) = walked("/api/v1/hosts/h1/cells?resource=hugepages")
    assert only == {
        "cell": 0, "resource": "hugepages", "capacity": 16 * GIB,
        "effective_capacity": 16 * GIB, "allocated": 6 * GIB,
    }  # fmt: skip
    before = list(HostCell.objects.order_by("pk").values())
    assert signed(agents["h1"], report(numa=two)).send().status_code == 204
    assert list(HostCell.objects.order_by("pk").values()) == before

    assert signed(agents["h1"], report(numa=[cell(1, pinned=(2, 3))])).send().status_code == 204
    assert kept() == {(1, "cpu"): (2, 2), (1, "memory"): (64 * GIB, 0)}
    assert kept("h2") == {(0, "cpu"): (2, 0), (0, "memory"): (64 * GIB, 0)}


def test_a_report_that_is_older_changes_no_cell() -> None:
    make_host("h1")
    agent = enrolled("h1")
    signed(agent, report(numa=[cell(0)])).send()
    old = report(numa=[], generated_at="2020-01-01T00:00:00Z")
    assert signed(agent, old).send().status_code == 204
    assert kept() == {(0, "cpu"): (2, 0), (0, "memory"): (64 * GIB, 0)}


def test_whatever_a_host_says_of_its_cells_is_no_failure_of_ours() -> None:
    make_host("h1")
    agent = enrolled("h1")
    odd = cell(0, pages=1, free=5) | {"cpus": [1, 1, 1], "pinned_cpus": [1, 1]}
    huge = cell(1, pages=1) | {"cell": 2**63 - 1}
    huge["hugepages"] = [huge["hugepages"][0] | {"bytes": 2**63 - 1}] * 3
    assert signed(agent, report(numa=[odd, odd, huge])).send().status_code == 204
    assert kept()[0, "cpu"] == (1, 1)
    assert kept()[0, "hugepages"] == (GIB, 0)
    assert kept()[2**63 - 1, "memory"] == (64 * GIB, 2**63 - 1)


def test_cells_of_an_agent_that_is_not_asked_any_more_are_forgotten() -> None:
    make_host("h1")
    agent = enrolled("h1")
    signed(agent, report(numa=[cell(0)])).send()
    set_mode("h1", AgentMode.NONE, actor=ANN, request_id="r")
    assert kept() == {}
    signed(agent, report(numa=[cell(0)])).send()
    assert kept() == {}


def test_what_may_be_promised_of_a_cell_follows_the_ratio_of_its_host() -> None:
    make_host("h1", vcpus_ratio=Decimal("1.25"), memory_ratio=Decimal("1.5"))
    signed(enrolled("h1"), report(numa=[cell(0, pages=1)])).send()
    told = walked("/api/v1/hosts/h1/cells")
    assert {one["resource"]: one["effective_capacity"] for one in told} == {
        "cpu": 2,  # 2.5, rounded down
        "memory": 96 * GIB,
        "hugepages": GIB,
    }


def test_what_an_object_says_of_cells_counts_before_its_agent() -> None:
    make_host("h1", memory_ratio=Decimal(2))
    make_host("h2")
    agent = enrolled("h1")
    signed(agent, report(numa=[cell(0), cell(1)])).send()
    signed(enrolled("h2"), report(numa=[cell(0)])).send()
    said = (
        DescribedCell(cell=0, resource="cpu", capacity=8, effective=12, allocated=3),
        DescribedCell(cell=0, resource="memory", capacity=4 * GIB),
    )
    assert keep_described_cells({"h1": said, "gone": said}) == 1
    assert kept() == {(0, "cpu"): (8, 3), (0, "memory"): (4 * GIB, 0)}
    told = walked("/api/v1/hosts/h1/cells")
    assert [one["effective_capacity"] for one in told] == [12, 8 * GIB]
    assert keep_described_cells({"h1": said}) == 0
    signed(agent, report(numa=[cell(1)])).send()
    assert kept() == {(0, "cpu"): (8, 3), (0, "memory"): (4 * GIB, 0)}
    set_mode("h1", AgentMode.NONE, actor=ANN, request_id="r")
    assert kept()
    set_mode("h1", AgentMode.OBSERVE, actor=ANN, request_id="r")

    assert keep_described_cells({"h1": (), "h2": ()}) == 1
    assert kept() == {}
    assert kept("h2") == {(0, "cpu"): (2, 0), (0, "memory"): (64 * GIB, 0)}
    signed(agent, report(numa=[cell(1)])).send()
    assert kept() == {(1, "cpu"): (2, 0), (1, "memory"): (64 * GIB, 0)}
