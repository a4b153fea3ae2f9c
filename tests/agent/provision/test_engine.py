"""The loop over jobs, and what becomes of each (spec hosts, B.4, B.5, B.8, B.13, B.16)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from headroom_host_agent.provision.data import Field, number
from headroom_host_agent.provision.provisioners import HostContext, ProvisionError
from headroom_host_agent.provision.sources import Emit, Job
from headroom_host_agent.provision.stored import State, UnknownReservationError
from headroom_host_agent.provision.wire import EPOCH, Reservation

from config.launcher.places import this_checkout
from tests.agent.provision.workshop import GIB, NOW, Once, Workshop, reservation

PATIENCE_SECONDS = 30


def boom(_: HostContext, __: Reservation) -> None:
    raise ProvisionError("broken_disk", "boom")


def test_a_reservation_is_made_told_and_kept(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)

    shop.run(reservation("1-1", data=b'{"a":1}'))

    assert shop.made() == ["1-1"]
    assert shop.says() == [("1-1:1:result", "ok", "")]
    row = shop.store.row("1-1")
    assert row.state == State.DEPLOYED
    assert row.reservation.result.data == b'{"file":"1-1"}'
    assert [artifact.name for artifact in shop.store.artifacts()] == ["1-1"]


def test_what_was_made_is_told_again_and_not_made_again(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.run(reservation("1-1"))
    first = shop.store.next_message()
    assert first is not None
    shop.says()

    shop.run(reservation("1-1"))

    again = shop.store.next_message()
    assert again is not None
    assert (again.key, again.body) == (first.key, first.body)
    assert shop.files.calls == ["make 1-1"]


def test_a_delivery_twice_within_half_an_hour_is_silent(tmp_path: Path) -> None:
    now = [0.0]
    shop = Workshop(tmp_path, monotonic=lambda: now[0])

    class Source:
        def run(self, stop: threading.Event, emit: Emit) -> None:
            for _ in range(2):
                emit(Job(reservation=reservation("1-1", seq=1)))
                wait_for(lambda: not engine._queued and not engine._work)
                shop.says()
            now[0] = 1800.0
            emit(Job(reservation=reservation("1-1", seq=1)))

    engine = shop.engine_for(Source())
    engine.run(threading.Event())

    assert [key for key, _, _ in shop.says()] == ["1-1:1:result"]  # the third alone


def wait_for(is_so: object) -> None:
    """Wait until a function returns true."""
    assert callable(is_so)
    waiting = threading.Event()
    for _ in range(PATIENCE_SECONDS * 100):
        if is_so():
            return
        waiting.wait(0.01)
    raise AssertionError("it never became so")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"node_id": "other"}, "wrong_host: it is for the host 'other'"),
        ({"duration_ns": 0}, "no_duration: it has no duration"),
        ({"created": EPOCH}, "no_creation: it does not say when it was created"),
        ({"type": "unknown"}, "unsupported: type not supported: unknown"),
        ({"resources": {"memory": 63 * GIB}}, "no_memory: not enough free memory"),
    ],
)
def test_what_cannot_be_is_answered(tmp_path: Path, facts: Mapping[str, object], said: str) -> None:
    shop = Workshop(tmp_path)
    shop.now = None if "duration_ns" in facts or "created" in facts else NOW

    shop.run(replace(reservation("1-1"), **facts))  # type: ignore[arg-type]  # fields by name

    assert shop.says() == [("1-1:1:result", "error", said)]
    assert shop.store.row("1-1").state == State.FAILED
    assert shop.made() == []


def test_what_is_half_made_is_removed_before_the_error_is_told(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, files={"before": boom})

    shop.run(reservation("1-1"))

    assert shop.files.calls == ["make 1-1", "remove 1-1"]
    assert shop.made() == []
    assert shop.says() == [("1-1:1:result", "error", "broken_disk: boom")]


def test_a_failure_is_told_again_and_tried_again_only_as_another_attempt(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, files={"before": boom})
    shop.run(reservation("1-1", seq=1))
    shop.says()

    shop.run(reservation("1-1", seq=1))
    assert shop.says() == [("1-1:1:result", "error", "broken_disk: boom")]
    assert shop.files.calls == ["make 1-1", "remove 1-1"]

    shop.files.before = lambda _, __: None
    second = reservation("1-1", seq=2, attempt=2)
    shop.store.take_page([second], cursor=2)
    shop.run(second)
    assert shop.says() == [("1-1:2:result", "ok", "")]


def test_what_cannot_be_removed_after_a_failure_is_told(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, files={"before": boom, "fails_to_remove": {"1-1"}})

    shop.run(reservation("1-1"))

    ((_, state, error),) = shop.says()
    assert state == "error"
    assert error == "broken_disk: boom; what it left cannot be removed: 1-1 is in use"
    assert [artifact.name for artifact in shop.store.artifacts()] == ["1-1"]


def test_a_plugin_that_breaks_is_an_answer_too(tmp_path: Path) -> None:
    def breaks(_: HostContext, __: Reservation) -> None:
        raise ZeroDivisionError("by nothing")

    shop = Workshop(tmp_path, files={"before": breaks})

    shop.run(reservation("1-1"), reservation("2-1", "accounting"))

    assert shop.says() == [
        ("1-1:1:result", "error", "broken: ZeroDivisionError: by nothing"),
        ("2-1:1:result", "ok", ""),
    ]


def test_a_job_that_takes_too_long_is_told_to_end(tmp_path: Path) -> None:
    def waits(context: HostContext, _: Reservation) -> None:
        assert context.cancelled.wait(PATIENCE_SECONDS)

    shop = Workshop(tmp_path, files={"before": waits}, job_seconds=0.05)

    shop.run(reservation("1-1"))

    assert shop.says() == [("1-1:1:result", "error", "deadline: it took longer than 0.05 s")]
    assert shop.made() == []


def test_jobs_of_one_artefact_never_run_at_once(tmp_path: Path) -> None:
    first_runs, go_on = threading.Event(), threading.Event()
    running: list[str] = []

    def meets(context: HostContext, _: Reservation) -> None:
        assert context.identity not in running
        running.append(context.identity)
        if context.identity == "1-1":
            first_runs.set()
            assert go_on.wait(PATIENCE_SECONDS)
        running.remove(context.identity)

    shop = Workshop(tmp_path, files={"before": meets, "parallel": True})

    class Source:
        def run(self, stop: threading.Event, emit: Emit) -> None:
            emit(Job(reservation=reservation("1-1", seq=1)))
            assert first_runs.wait(PATIENCE_SECONDS)
            emit(Job(reservation=reservation("2-1")))
            wait_for(lambda: shop.store.exists("2-1"))  # beside the first
            emit(Job(reservation=reservation("1-1", seq=2, to_delete=True)))
            wait_for(lambda: engine._work["1-1"].waiting)
            go_on.set()

    engine = shop.engine_for(Source())
    engine.run(threading.Event())

    assert shop.files.calls == ["make 1-1", "make 2-1", "remove 1-1"]
    assert shop.made() == ["2-1"]


def test_what_has_ended_is_removed_and_told(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    short = reservation("1-1", created=NOW, duration_ns=10**9)
    shop.run(short, reservation("2-1"))
    shop.says()

    shop.now = None
    shop.run(short)  # nobody knows the time, so nothing ends
    assert shop.made() == ["1-1", "2-1"]
    shop.says()

    shop.now = NOW + timedelta(seconds=2)
    assert shop.store.get_expired(shop.now) == (shop.store.get("1-1"),)
    shop.run(short)
    assert shop.made() == ["2-1"]
    assert shop.says() == [("1-1:1:deleted", "deleted", "")]


def test_an_unknown_one_is_told_as_deleted(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)

    shop.run(reservation("1-1", to_delete=True))

    assert shop.says() == [("1-1:1:deleted", "deleted", "")]
    assert shop.files.calls == []


def test_what_is_in_use_stays_and_is_tried_again(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.run(reservation("1-1", seq=1))
    shop.says()
    shop.files.fails_to_remove = {"1-1"}

    shop.run(reservation("1-1", seq=2, to_delete=True))
    assert shop.made() == ["1-1"]
    assert shop.says() == []
    assert shop.store.row("1-1").state == State.DELETING

    shop.files.fails_to_remove = set()
    (again,) = shop.store.get_expired(None)
    shop.run(again)
    assert shop.made() == []
    assert shop.says() == [("1-1:1:deleted", "deleted", "")]


def test_a_death_is_told_before_the_removal(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.run(reservation("1-1"))
    shop.says()

    shop.engine.decommission_cached("1-1", "the disk burnt")

    assert shop.says() == [
        ("1-1:1:death", "error", "the disk burnt"),
        ("1-1:1:deleted", "deleted", ""),
    ]
    assert shop.made() == []
    with pytest.raises(UnknownReservationError):
        shop.engine.decommission_cached("1-1", "again")


def test_a_death_is_told_though_nothing_can_be_removed(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.run(reservation("1-1"))
    shop.says()
    shop.files.fails_to_remove = {"1-1"}

    shop.engine.decommission_cached("1-1", "the disk burnt")

    assert shop.says() == [("1-1:1:death", "error", "the disk burnt")]
    assert shop.store.row("1-1").state == State.DELETING


def test_a_reservation_takes_over_what_another_made(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.run(
        reservation("1-1", data=b'{"a":1}'),
        reservation("2-1", data=b'{"a":1}', reference="1-1"),
        reservation("3-1", data=b'{"a":1}', reference="2-1"),
    )

    assert shop.files.calls == ["make 1-1"]
    assert [row.reservation.id for row in shop.store.rows()] == ["3-1"]
    assert [key for key, _, _ in shop.says()] == [f"{n}-1:1:result" for n in (1, 2, 3)]

    shop.run(reservation("3-1", seq=1, to_delete=True))
    assert shop.files.calls == ["make 1-1", "remove 1-1"]
    assert shop.made() == []


def test_another_content_is_not_taken_over(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.run(reservation("1-1"), reservation("2-1", data=b'{"b":2}', reference="1-1"))

    assert shop.says()[1] == ("2-1:1:result", "error", "the content of 1-1 differs")
    assert shop.made() == ["1-1"]


def test_one_that_replaces_nothing_here_has_the_name_of_what_it_replaces(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.run(reservation("2-1", reference="1-1"))

    assert shop.made() == ["1-1"]
    shop.run(reservation("2-1", reference="1-1", seq=1, to_delete=True))
    assert shop.made() == []


def test_a_cleanup_waits_for_all_known_work(tmp_path: Path) -> None:
    calls: list[str] = []
    shop = Workshop(tmp_path, cleanup=lambda: calls.append("cleanup"))

    engine = shop.engine_for(Once())
    engine.request_cleanup()
    engine.run(threading.Event())
    assert calls == []

    shop.run()
    assert calls == ["cleanup"]


def test_usage_is_told_after_what_went_well_only(tmp_path: Path) -> None:
    told: list[Mapping[str, int]] = []
    shop = Workshop(tmp_path, on_usage=lambda usage: told.append(usage.workloads))

    shop.run(reservation("1-1"), reservation("2-1", "unknown"), reservation("3-1"))

    assert told == [{"file": 1}, {"file": 2}]


def test_counters_come_until_stopped(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    stop = threading.Event()
    counters = shop.engine.counters(stop, interval_seconds=0)

    assert next(counters).workloads == {}
    shop.run(reservation("1-1", "accounting", resources={"cpu": 2, "memory": GIB}))
    assert next(counters).units.to_json() == {"cru": 2, "mru": 1.0, "hru": 0.0, "sru": 0.0}
    stop.set()
    assert list(counters) == []


def test_after_a_boot_what_does_not_last_is_made_again(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    assert not shop.store.boot("one", persistent=["accounting"])
    shop.run(reservation("1-1"), reservation("2-1", "accounting"))
    shop.says()
    (tmp_path / "files/1-1").unlink()

    assert not shop.store.boot("one", persistent=["accounting"])
    assert shop.store.boot("two", persistent=["accounting"])
    shop.run()

    assert shop.made() == ["1-1"]
    assert shop.files.calls == ["make 1-1", "make 1-1"]


KILLS = """
import os, shutil, sys, tempfile
from pathlib import Path
from tests.agent.provision.workshop import Workshop, reservation

modules = ("engine.py", "store.py", "store_rows.py", "workshop.py")

def kill_after(lines):
    left = [lines]
    def trace(frame, event, argument):
        if not frame.f_code.co_filename.endswith(modules):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
        return trace
    sys.settrace(trace)

def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        sys.settrace(None)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

memory = "/dev/shm"  # a kill of a process loses nothing there, and it is quick
base = Path(tempfile.mkdtemp(dir=memory if os.path.isdir(memory) else sys.argv[1]))
wanted = reservation("1-1", seq=1)
gone = reservation("1-1", seq=2, to_delete=True)
for lines in range(10**6):
    folder = base / str(lines)
    folder.mkdir()
    def first():
        shop = Workshop(folder)
        kill_after(lines)
        shop.store.take_page([wanted], cursor=1)
        shop.engine.provision(wanted)
        message = shop.store.next_message()
        shop.store.told(message)
        shop.store.take_page([gone], cursor=2)
        shop.engine.decommission(gone)
    def second():
        shop = Workshop(folder)
        if shop.store.cursor < 1:
            shop.store.take_page([wanted], cursor=1)
        for one in shop.store.unfinished():
            (shop.engine.decommission if one.to_delete else shop.engine.provision)(one)
        said = [(key, state) for key, state, _ in shop.says()]
        row = shop.store.find("1-1")
        if row is None:  # it went: the server is told so, once
            assert said in ([("1-1:1:deleted", "deleted")], [
                ("1-1:1:result", "ok"), ("1-1:1:deleted", "deleted")]), said
            assert shop.made() == [], shop.made()
            assert shop.store.artifacts() == ()
        else:  # it is there: told unless that was answered
            assert row.state == "deployed" and shop.made() == ["1-1"]
            assert said in ([], [("1-1:1:result", "ok")]), said
    code = child(first)
    assert child(second) == 0, lines
    if code == 0:
        print(lines)
        shutil.rmtree(base)
        break
    assert code == 9, code
"""


def test_a_kill_at_any_line_neither_loses_nor_doubles(tmp_path: Path) -> None:
    root = this_checkout().root
    path = os.pathsep.join([str(root), str(root / "clients/agent")])

    said = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", KILLS, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={"PYTHONPATH": path, "PATH": os.environ["PATH"]},
        cwd=root,
    )

    assert said.returncode == 0, said.stderr
    assert int(said.stdout) > 100


def test_a_lost_store_makes_nothing_twice_under_whatever_name(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    shop.run(reservation("1-1"), reservation("2-1", reference="1-1"))
    assert shop.made() == ["1-1"]
    (tmp_path / "agent.sqlite").unlink()

    again = Workshop(tmp_path)
    again.store.take_page([reservation("2-1", reference="1-1")], cursor=1, made={"2-1"})
    again.run()
    assert again.made() == ["1-1"]
    assert again.says() == [("2-1:1:result", "ok", "")]

    (tmp_path / "agent.sqlite").unlink()
    last = Workshop(tmp_path)
    last.store.take_page([reservation("2-1", reference="1-1", to_delete=True)], cursor=1)
    last.run()
    assert last.made() == []
    assert last.says() == [("2-1:1:deleted", "deleted", "")]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"size":0}', "bad_data: size: must be bytes, from 1"),
        (b"{}", "bad_data: size: must be bytes, from 1"),
        (b'{"size":1,"more":1}', "bad_data: unknown fields: more"),
        (b"[]", "bad_data: the data must be an object"),
    ],
)
def test_data_that_break_the_schema_of_a_plug_in_are_answered(
    tmp_path: Path, data: bytes, said: str
) -> None:
    schema = {"size": Field(number(1), "bytes, from 1", is_needed=True)}
    shop = Workshop(tmp_path, files={"data_schema": schema})

    shop.run(reservation("1-1", data=data), reservation("2-1", data=b'{"size":1}'))

    assert shop.says() == [("1-1:1:result", "error", said), ("2-1:1:result", "ok", "")]
    assert shop.files.calls == ["make 2-1"]
