"""Reservations that change: made where the first is, or left as they were (spec hosts, B.4)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headroom_host_agent.provision.provisioners import HostContext, ProvisionError
from headroom_host_agent.provision.stored import State
from headroom_host_agent.provision.wire import Reservation

from tests.agent.provision.workshop import Workshop, reservation
from tests.agent.resources.hosts import Told, manager, vm


def test_a_newer_change_waits_for_its_own_job(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.store.take_page([reservation("1-1", seq=2, to_delete=True)], cursor=2)

    shop.engine.provision(reservation("1-1", seq=1))
    assert shop.files.calls == []
    assert shop.says() == []

    shop.run()
    assert shop.says() == [("1-1:1:deleted", "deleted", "")]


def test_a_change_while_a_job_runs_is_not_lost(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    going = reservation("1-1", seq=2, to_delete=True)
    shop.files.before = lambda _, __: shop.store.take_page([going], cursor=2)

    shop.run(reservation("1-1", seq=1))
    assert shop.store.unfinished()[0].to_delete

    shop.files.before = lambda _, __: None
    shop.run()
    assert shop.made() == []
    assert shop.says() == [("1-1:1:result", "ok", ""), ("1-1:1:deleted", "deleted", "")]


def changed(one: Reservation, attempt: int, data: bytes, **facts: object) -> Reservation:
    return replace(one, data=data, attempt=attempt, version=attempt, seq=attempt, **facts)  # type: ignore[arg-type]


def test_another_size_is_made_where_the_first_is(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, manager=manager(tmp_path, Told([vm(vcpus=16)])))
    one = reservation("1-1", "accounting", seq=1, resources={"cpu": 8})
    one = replace(one, data=b'{"filled":{"cpu":8}}')
    shop.store.take_page([one], cursor=1)
    shop.run()
    shop.store.take_page([changed(one, 2, b"{}", resources={"cpu": 16})], cursor=2)
    shop.run()
    assert shop.says() == [("1-1:1:result", "ok", ""), ("1-1:2:result", "ok", "")]
    shop.store.take_page([changed(one, 3, b"{}", resources={"cpu": 17})], cursor=3)
    shop.run()
    assert shop.says() == [
        ("1-1:3:result", "error",
         "insufficient_capacity: cpu: requested 17, reserved 0, limit 16"),
    ]  # fmt: skip
    # What was before is there still, and stands against others.
    shop.run(reservation("2-1", "accounting", seq=9, data=b'{"filled":{"cpu":1}}',
                         resources={"cpu": 1}))  # fmt: skip
    ((_, _, said),) = shop.says()
    assert said == "insufficient_capacity: cpu: requested 1, reserved 16, limit 16"


def test_what_a_change_cannot_make_stays_as_it_was(tmp_path: Path) -> None:
    def refuse(_: HostContext, wanted: Reservation) -> None:
        if wanted.data == b'{"n":2}':
            raise ProvisionError("too_big", "no room")

    shop = Workshop(tmp_path, files={"before": refuse})
    one = reservation("1-1", seq=1, data=b'{"n":1}')
    shop.store.take_page([one], cursor=1)
    shop.run()
    shop.store.take_page([changed(one, 2, b'{"n":2}')], cursor=2)
    shop.run()

    assert shop.says() == [
        ("1-1:1:result", "ok", ""),
        ("1-1:2:result", "error", "too_big: no room"),
    ]
    assert (shop.files.folder / "1-1").read_bytes() == b'{"n":1}'
    assert "remove 1-1" not in shop.files.calls
    assert shop.store.row("1-1").state == State.FAILED

    shop.store.take_page([changed(one, 3, b'{"n":3}')], cursor=3)
    shop.run()
    assert (shop.files.folder / "1-1").read_bytes() == b'{"n":3}'
    assert shop.says() == [("1-1:3:result", "ok", "")]
    shop.store.take_page([changed(one, 3, b'{"n":3}', to_delete=True)], cursor=4)
    shop.run(changed(one, 3, b'{"n":3}', to_delete=True))
    assert shop.made() == []
    assert shop.says()[-1] == ("1-1:3:deleted", "deleted", "")


def test_what_cannot_be_restored_either_is_said(tmp_path: Path) -> None:
    broken: list[bool] = []

    def refuse(_: HostContext, __: Reservation) -> None:
        if broken:
            raise ProvisionError("refused", "read only")

    shop = Workshop(tmp_path, files={"before": refuse})
    one = reservation("1-1", seq=1, data=b'{"n":1}')
    shop.store.take_page([one], cursor=1)
    shop.run()
    shop.says()
    broken.append(True)
    shop.store.take_page([changed(one, 2, b'{"n":2}')], cursor=2)
    shop.run()
    assert shop.says() == [
        ("1-1:2:result", "error",
         "refused: read only; what was before is not as it was: read only"),
    ]  # fmt: skip
    broken.clear()
    shop.run(changed(one, 2, b"", to_delete=True))
    assert shop.made() == []
