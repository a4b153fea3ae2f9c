"""What a host has room for beside what it made and what VMs take (spec hosts, B.8)."""

from __future__ import annotations

from pathlib import Path

import pytest
from headroom_host_agent.provision.units import Units

from tests.agent.provision.workshop import GIB, Workshop, reservation
from tests.agent.resources.hosts import Told, manager, vm
from tests.agent.resources.test_gpu import mdev_host


def test_workloads_share_the_memory_that_the_host_does_not_need(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)  # 64 GiB
    shop.run(
        reservation("1-1", resources={"memory": 60 * GIB}),
        reservation("2-1", resources={"memory": 2 * GIB + 1}),
        reservation("3-1", resources={"memory": 2 * GIB}),
    )

    assert [(key, state) for key, state, _ in shop.says()] == [
        ("1-1:1:result", "ok"),
        ("2-1:1:result", "error"),
        ("3-1:1:result", "ok"),
    ]
    assert shop.engine.usage().units == Units(mru=62 * GIB)
    assert shop.engine.usage().workloads == {"file": 2}


def test_accounting_admits_what_the_host_has(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)  # 16 CPUs

    shop.run(
        reservation("1-1", "accounting", resources={"cpu": 12}),
        reservation("2-1", "accounting", resources={"cpu": 5}),
        reservation("3-1", "accounting", resources={"cpu": 4}),
        reservation("4-1", "accounting", resources={"cpu": 17}),
        reservation("5-1", "accounting", resources={"flux": 1}),
        reservation("6-1", "accounting", resources={"gpu": 1}),
    )

    said = [(state, error.partition(":")[0]) for _, state, error in shop.says()]
    assert said == [
        ("ok", ""),
        ("error", "insufficient_capacity"),
        ("ok", ""),
        ("error", "insufficient_capacity"),
        ("error", "unknown_resource"),
        ("error", "insufficient_capacity"),
    ]


def test_what_is_made_is_not_held_against_the_vms_that_fill_it(tmp_path: Path) -> None:
    full = Told([vm(memory_bytes=60 * GIB)])
    facts = {"resources": {"memory": 60 * GIB}}
    shop = Workshop(tmp_path, manager=manager(tmp_path, full))
    shop.store.take_page([reservation("1-1", "accounting", **facts)], cursor=1, made={"1-1"})
    shop.store.take_page([reservation("2-1", "accounting", resources={"memory": GIB})], cursor=2)

    shop.run()

    assert [(key, state) for key, state, _ in shop.says()] == [
        ("1-1:1:result", "ok"),
        ("2-1:1:result", "ok"),
    ]
    shop.run(reservation("3-1", "accounting", seq=3, resources={"disk": 1, "memory": 5 * GIB}))
    ((_, state, _),) = shop.says()
    assert state == "error"


def test_what_vms_had_filled_when_it_was_asked_for_counts_once(tmp_path: Path) -> None:
    """Of 16 CPUs VMs have 10, in slots; each slot says what of it that is."""
    shop = Workshop(tmp_path, manager=manager(tmp_path, Told([vm(vcpus=10)])))
    filled = b'{"filled":{"cpu":8},"slot":"a"}'
    shop.run(
        reservation("1-1", "accounting", data=filled, resources={"cpu": 8}),
        reservation("2-1", "accounting", data=b'{"slot":"b"}', resources={"cpu": 7}),
        reservation("3-1", "accounting", data=b'{"filled":{"cpu":2}}', resources={"cpu": 8}),
        reservation("4-1", "accounting", data=b'{"filled":{"cpu":9}}', resources={"cpu": 9}),
    )
    first, second, third, fourth = shop.says()
    assert (first[1], third[1]) == ("ok", "ok")
    assert "requested 7" in second[2]
    assert fourth[2] == "insufficient_capacity: cpu: requested 9, reserved 16, limit 16"


@pytest.mark.parametrize("filled", [b"7", b'{"cpu":"8"}', b'{"cpu":-8}', b"null", b"[]"])
def test_what_is_said_wrongly_of_being_filled_counts_for_nothing(
    tmp_path: Path, filled: bytes
) -> None:
    shop = Workshop(tmp_path, manager=manager(tmp_path, Told([vm(vcpus=10)])))
    told = b'{"filled":' + filled + b"}"
    shop.run(reservation("1-1", "accounting", data=told, resources={"cpu": 7}))
    ((_, state, _),) = shop.says()
    assert state == "error"


def gpus(root: Path) -> int:
    status = manager(root).get_gpu_status()
    assert status is not None
    return status.total_slots


def test_gpus_of_reservations_are_counted_beside_each_other(tmp_path: Path) -> None:
    mdev_host(tmp_path, functions=4, used=1)
    shop = Workshop(tmp_path)
    total = gpus(tmp_path)
    shop.run(
        reservation("1-1", "accounting", resources={"gpu": total - 1}),
        reservation("2-1", "accounting", resources={"gpu": 2}),
        reservation("3-1", "accounting", resources={"gpu": 1}),
    )
    assert shop.says() == [
        ("1-1:1:result", "ok", ""),
        ("2-1:1:result", "error",
         f"insufficient_capacity: gpu: requested 2, reserved {total - 1}, limit {total}"),
        ("3-1:1:result", "ok", ""),
    ]  # fmt: skip
