"""Heartbeats of an agent (spec hosts, D.3, D.9)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from headroom_host_agent.server.client import RefusedError, ServerError
from headroom_host_agent.server.heart import Heart
from headroom_host_agent.server.identity import Enrolled, Identity, load_identity, new_identity
from headroom_host_agent.server.refusals import EndedError

TAKEN: Mapping[str, object] = {"heartbeat_s": 10, "lease_ttl_s": 30, "liveness": "up"}
CUT = ServerError("cut")


def refused(code: str, **details: object) -> RefusedError:
    return RefusedError(409, code, "", details)


class Told:
    """Answers heartbeats as it is told; the clock goes on with each pause."""

    def __init__(self, folder: Path, *answers: Mapping[str, object] | Exception) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[Identity, Mapping[str, object]]] = []
        self.pauses: list[float] = []
        self.seconds = 0.0
        identity = replace(new_identity(), host_id="h", kid="k", fence_epoch=1)
        self.folder, self.enrolled = folder, Enrolled(folder, identity)
        self.heart = Heart(
            self,  # type: ignore[arg-type]  # what it calls of a client
            self.enrolled,
            boot_id="b",
            takes_over=True,
            monotonic=lambda: self.seconds,
            wait=self.wait,
        )

    def beat(self, identity: Identity, facts: Mapping[str, object]) -> Mapping[str, object]:
        self.sent.append((identity, facts))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.seconds += seconds
        if not self.answers:
            event.set()
        return event.is_set()

    def run(self) -> None:
        self.heart.run(threading.Event())


def test_it_comes_when_the_server_says_and_sooner_after_a_failure(tmp_path: Path) -> None:
    slow = {"heartbeat_s": 20, "lease_ttl_s": 75}
    told = Told(tmp_path, TAKEN, CUT, refused("invalid_heartbeat"), slow, {"heartbeat_s": "x"})

    told.run()

    wanted = [10, 2.5, 2.5, 20, 20]
    pairs = zip(told.pauses, wanted, strict=True)
    assert all(0.9 * w <= p <= w for p, w in pairs), told.pauses
    facts = [facts for _, facts in told.sent]
    assert [one["takeover"] for one in facts] == [True, False, False, False, False]
    assert len({one["run_id"] for one in facts}) == 1
    assert all(one["uptime_s"] for one in facts)


def test_the_lease_counts_from_when_the_heartbeat_was_sent(tmp_path: Path) -> None:
    told = Told(tmp_path, TAKEN, CUT)
    assert not told.heart.holds_lease()
    assert told.heart.beat()

    told.seconds = 29
    assert told.heart.holds_lease()
    assert not told.heart.beat()
    told.seconds = 30
    assert not told.heart.holds_lease()


def test_a_new_epoch_is_kept_before_it_is_used(tmp_path: Path) -> None:
    told = Told(tmp_path, refused("stale_epoch", fence_epoch=3), TAKEN)

    assert told.heart.beat()

    assert [identity.fence_epoch for identity, _ in told.sent] == [1, 3]
    kept = load_identity(tmp_path)
    assert kept is not None
    assert (kept.fence_epoch, kept) == (3, told.enrolled.identity)
    told.enrolled.enter_epoch(2)
    assert told.enrolled.identity.fence_epoch == 3


@pytest.mark.parametrize("epoch", [None, "3", 1, 0])
def test_an_epoch_that_is_none_is_not_entered(tmp_path: Path, epoch: object) -> None:
    told = Told(tmp_path, refused("stale_epoch", fence_epoch=epoch))

    assert not told.heart.beat()

    assert told.enrolled.identity.fence_epoch == 1


@pytest.mark.parametrize("code", ["key_revoked", "unknown_key", "wrong_host"])
def test_it_ends_when_nothing_more_is_taken(tmp_path: Path, code: str) -> None:
    with pytest.raises(EndedError, match=code):
        Told(tmp_path, TAKEN, refused(code)).run()


def test_it_ends_when_another_run_took_its_lease(tmp_path: Path) -> None:
    with pytest.raises(EndedError):
        Told(tmp_path, TAKEN, refused("run_superseded")).run()


def test_it_waits_for_the_end_of_a_lease_that_it_never_had(tmp_path: Path) -> None:
    superseded = [refused("run_superseded") for _ in range(12)]
    Told(tmp_path, *superseded, TAKEN).run()

    with pytest.raises(EndedError):
        Told(tmp_path, *superseded * 3).run()
