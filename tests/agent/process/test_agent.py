"""The whole agent against a server of its wire (spec hosts, D.7 to D.10)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from headroom_host_agent import VERSION
from headroom_host_agent.process.settings import LeaseLoss
from headroom_host_agent.server.refusals import EndedError

from tests.agent.process.served import Headroom, Run, served, until


@pytest.fixture
def headroom() -> Headroom:
    return Headroom()


@pytest.fixture
def run(tmp_path: Path, headroom: Headroom) -> Iterator[Run]:
    with served(headroom) as url:
        yield Run(tmp_path, url, headroom)


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        (LeaseLoss.HOLD, ["1-1", "2-1"]),
        (LeaseLoss.STOP_NEW, ["1-1"]),
        (LeaseLoss.RELEASE, []),
    ],
)
def test_what_is_left_without_a_lease(
    tmp_path: Path, headroom: Headroom, policy: LeaseLoss, left: list[str]
) -> None:
    headroom.lease_seconds = 0.5
    facts = {"on_lease_loss": policy, "release_after_seconds": 1, "expire_interval_seconds": 1}
    with served(headroom) as url:
        run = Run(tmp_path, url, headroom, **facts)
        headroom.assign("1-1")
        headroom.assign("2-1")
        with run.running() as agent:
            until(lambda: len(headroom.told) == 2)
            headroom.answers["/heartbeat"] = (503, {})
            until(lambda: not agent.heart.holds_lease())
            # What ends now by the server's word, and what is asked for now.
            ended = replace(headroom.rows["2-1"], created=datetime.now(UTC), duration_ns=1)
            headroom.assign("2-1", created=ended.created, duration_ns=1)
            headroom.assign("3-1")
            until(lambda: agent.parts.store.exists("3-1"))
            until(lambda: sorted(path.name for path in run.files.folder.iterdir()) == left)
            looked = len(headroom.polls)
            headroom.assign("4-1", to_delete=True)
            until(lambda: len(headroom.polls) > looked)
            assert sorted(path.name for path in run.files.folder.iterdir()) == left
        assert "make 3-1" not in run.files.calls
    if policy is LeaseLoss.RELEASE:
        assert ("error", 1) in headroom.said("1-1")


def test_a_server_that_holds_too_many_is_asked_again_when_it_says(
    run: Run, headroom: Headroom
) -> None:
    headroom.answers["/reservations"] = (429, {"error": {"code": "busy", "message": ""}})
    with run.running():
        until(lambda: headroom.beats)
        del headroom.answers["/reservations"]
        headroom.assign("1-1")
        until(lambda: headroom.said("1-1") == [("ok", 1)])


def test_what_is_asked_for_is_made_told_and_removed(run: Run, headroom: Headroom) -> None:
    headroom.assign("1-1")
    with run.running():
        until(lambda: headroom.said("1-1") == [("ok", 1)])
        headroom.assign("2-1", kind="unheard of")
        until(lambda: headroom.said("2-1") == [("error", 1)])
        headroom.assign("1-1", to_delete=True)
        until(lambda: headroom.said("1-1") == [("ok", 1), ("deleted", 1)])
    assert run.files.calls == ["make 1-1", "remove 1-1"]
    assert run.errors == []


def test_the_version_that_is_wanted_is_kept_for_whoever_installs_it(
    run: Run, headroom: Headroom
) -> None:
    path = run.folder / "wanted-version"
    with run.running():
        until(lambda: headroom.beats)
        assert headroom.beats[0]["version"] == VERSION
        assert headroom.beats[0]["can"] == ["resize"]
        headroom.wanted_version = "1.1.0"
        until(lambda: run.agent.wanted_version == "1.1.0")
        assert path.read_text(encoding="utf-8") == "1.1.0\n"
        for odd in ("../../etc", "1 2", ["1"], "x" * 65, None, ""):
            headroom.wanted_version = "1.1.1"
            until(lambda: run.agent.wanted_version == "1.1.1")
            headroom.wanted_version = odd
            until(lambda: run.agent.wanted_version == "")
            assert not path.exists()
    assert run.errors == []


def test_an_agent_that_starts_again_goes_on_from_its_number(run: Run, headroom: Headroom) -> None:
    headroom.assign("1-1")
    with run.running():
        until(lambda: headroom.said("1-1") == [("ok", 1)])
    run.agent = run.make()
    headroom.polls.clear()
    with run.running():
        headroom.assign("2-1")
        until(lambda: headroom.said("2-1") == [("ok", 1)])
    assert headroom.polls[0] == 1
    assert headroom.said("1-1") == [("ok", 1)]


def test_a_new_epoch_compares_all_and_removes_what_has_a_tombstone(
    run: Run, headroom: Headroom
) -> None:
    for identity in ("1-1", "2-1", "3-1"):
        headroom.assign(identity)
    with run.running():
        until(lambda: len(headroom.told) == 3)
        with headroom.lock:
            headroom.gone["2-1"] = headroom.rows.pop("2-1")
            del headroom.rows["3-1"]  # as in a database that was restored
        headroom.fence()
        until(lambda: headroom.said("2-1")[1:] == [("deleted", 1)])
        until(lambda: headroom.beats[-1]["resynced"])
    assert sorted(path.name for path in run.files.folder.iterdir()) == ["1-1", "3-1"]
    assert not run.agent.parts.store.is_resyncing
    assert run.agent.parts.enrolled.identity.fence_epoch == 2
    assert False in [beat["resynced"] for beat in headroom.beats]


@pytest.mark.parametrize("how", ["number", "history"])
def test_a_database_that_was_restored_removes_nothing(
    run: Run, headroom: Headroom, how: str
) -> None:
    for identity in ("1-1", "2-1", "3-1", "4-1", "5-1"):
        headroom.assign(identity)
    with run.running() as agent:
        until(lambda: len(headroom.told) == 5)
        with headroom.lock:
            headroom.rows.clear()
            headroom.seq = 2 if how == "number" else headroom.seq
            headroom.timeline = "b" if how == "history" else headroom.timeline
            headroom.lock.notify_all()
        until(lambda: agent.parts.store.resyncs == 1 and not agent.parts.store.is_resyncing)
        agent.engine.request_cleanup()
        headroom.assign("9-1", user_id="another")
        until(lambda: headroom.said("9-1") == [("ok", 1)])
    assert len(list(run.files.folder.iterdir())) == 6
    assert len(agent.parts.store.rows()) == 6


def test_a_new_epoch_drops_what_was_not_begun(run: Run, headroom: Headroom) -> None:
    store = run.agent.parts.store
    headroom.answers["/heartbeat"] = (503, {})
    headroom.assign("1-1")
    with run.running():
        until(lambda: store.exists("1-1"))
        with headroom.lock:
            del headroom.rows["1-1"]
        headroom.fence()
        until(lambda: not store.is_resyncing and store.resyncs == 1)
        del headroom.answers["/heartbeat"]
        headroom.assign("2-1")
        until(lambda: headroom.said("2-1") == [("ok", 1)])
    assert run.files.calls == ["make 2-1"]
    assert headroom.said("1-1") == []


def test_what_was_made_is_removed_though_a_change_of_it_waited(
    run: Run, headroom: Headroom
) -> None:
    headroom.assign("1-1")
    with run.running() as agent:
        until(lambda: headroom.said("1-1") == [("ok", 1)])
        headroom.answers["/heartbeat"] = (503, {})
        headroom.lease_seconds = 0.1
        headroom.assign("2-1")
        until(lambda: agent.parts.store.exists("2-1"))
        headroom.assign("1-1", attempt=2)
        until(lambda: agent.parts.store.get("1-1").attempt == 2)
        headroom.assign("1-1", attempt=2, to_delete=True)
        del headroom.answers["/heartbeat"]
        until(lambda: ("deleted", 2) in headroom.said("1-1"))
    assert not (run.files.folder / "1-1").exists()


def test_nothing_is_begun_without_a_lease(run: Run, headroom: Headroom) -> None:
    headroom.answers["/heartbeat"] = (503, {})
    headroom.assign("1-1")
    with run.running() as agent:
        until(lambda: agent.parts.store.exists("1-1"))
        headroom.assign("2-1", kind="unheard of")
        until(lambda: agent.parts.store.exists("2-1"))
        assert headroom.told == []
        del headroom.answers["/heartbeat"]
        until(lambda: headroom.said("1-1") == [("ok", 1)])
        until(lambda: headroom.said("2-1") == [("error", 1)])


def test_a_forged_reservation_is_never_made(run: Run, headroom: Headroom) -> None:
    headroom.assign("1-1")
    with run.running():
        until(lambda: headroom.said("1-1") == [("ok", 1)])
        headroom.forges = True
        headroom.assign("2-1")
        until(lambda: headroom.polls.count(1) > 2)
        headroom.forges = False
        until(lambda: headroom.said("2-1") == [("ok", 1)])


def test_a_result_that_is_not_taken_now_is_told_later(run: Run, headroom: Headroom) -> None:
    headroom.answers["/reservations/1-1/result"] = (503, {})
    headroom.assign("1-1")
    with run.running() as agent:
        until(lambda: agent.parts.store.outbox_depth() == 1)
        until(lambda: headroom.beats[-1]["outbox_depth"] == 1)
    run.agent = run.make()
    del headroom.answers["/reservations/1-1/result"]
    with run.running():
        until(lambda: headroom.said("1-1") == [("ok", 1)])
    assert run.files.calls == ["make 1-1"]


@pytest.mark.parametrize("path", ["/heartbeat", "/reservations", "/resources"])
def test_a_host_that_was_decommissioned_ends_and_removes_nothing(
    run: Run, headroom: Headroom, path: str
) -> None:
    headroom.assign("1-1")
    with run.running() as agent:
        until(lambda: headroom.said("1-1") == [("ok", 1)])
        error: dict[str, Any] = {"code": "decommissioned", "message": ""}
        headroom.answers[path] = (410, {"error": error})
        if path == "/resources":
            agent.reporter.report_soon()
        headroom.assign("2-1")
        until(agent.stop.is_set)
    assert [type(error) for error in run.errors] == [EndedError]
    assert (run.files.folder / "1-1").exists()


def test_an_agent_that_is_stopped_ends_a_held_poll_at_once(run: Run, headroom: Headroom) -> None:
    with run.running() as agent:
        until(lambda: headroom.polls)
        agent.stop.set()
    assert run.errors == []


def test_what_drifts_is_told_and_made_again_as_the_next_attempt(
    tmp_path: Path, headroom: Headroom
) -> None:
    with served(headroom) as url:
        run = Run(tmp_path, url, headroom, verify_interval_seconds=1)
        verify, asked = run.files.verify, []

        def looked_at(context: Any, reservation: Any) -> bool:
            asked.append(context.identity)
            if context.identity == "2-1":
                raise OSError("no answer")
            return verify(context, reservation)

        run.files.verify = looked_at  # type: ignore[method-assign]  # of this object alone
        for identity in ("1-1", "2-1", "3-1"):
            headroom.assign(identity)
        with run.running():
            until(lambda: len(headroom.told) == 3)
            run.files.fails_to_remove.add("3-1")
            for identity in ("1-1", "3-1"):
                (run.files.folder / identity).unlink()

            until(lambda: len(headroom.told) == 5)
            assert headroom.said("1-1") == headroom.said("3-1") == [("ok", 1), ("error", 1)]
            texts = {one["error"] for _, one in headroom.told if one["state"] == "error"}
            assert texts == {"drifted: it is not any more as it was made"}
            headroom.assign("1-1", attempt=2)
            until(lambda: headroom.said("1-1")[-1] == ("ok", 2))
            assert (run.files.folder / "1-1").exists()
            before = asked.count("2-1")
            until(lambda: asked.count("2-1") > before + 1)
        assert headroom.said("2-1") == [("ok", 1)]
        assert len(headroom.told) == 6
