"""Which hosts get a version of the agent next (spec hosts, D.15)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.domain.rollout import MOST_FAILING, SOAK, Look, RolledAgent, look_at

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def agent(host: str, wave: str = "bb1", **changes: Any) -> RolledAgent:
    known: dict[str, Any] = {"host": host, "wave": wave, "runs": False, "is_heard": True}
    return RolledAgent(**(known | changes))


def look(*agents: RolledAgent, waves: tuple[str, ...] = (), waited: Any = SOAK) -> Look:
    return look_at(agents, waves=waves, opened_at=NOW - waited, now=NOW)


def test_waves_follow_each_other_when_all_of_the_last_run_well() -> None:
    old = [agent("a"), agent("b"), agent("c", "bb2"), agent("d", "bb3")]
    assert look(*old).waves == ("bb1",)
    assert look(*old, waves=("bb1",)).waves == ("bb1",)
    half = [agent("a", runs=True), *old[1:]]
    assert look(*half, waves=("bb1",)).waves == ("bb1",)
    done = [agent("a", runs=True), agent("b", runs=True), *old[2:]]
    assert look(*done, waves=("bb1",), waited=SOAK / 2).waves == ("bb1",)
    assert look(*done, waves=("bb1",)).waves == ("bb1", "bb2")
    every = [agent(one.host, one.wave, runs=True) for one in old]
    found = look(*every, waves=("bb1", "bb2", "bb3"))
    assert found == Look(waves=("bb1", "bb2", "bb3"), failing=(), halts=False, is_over=True)


@pytest.mark.parametrize(
    ("changes", "halts"),
    [
        ({}, False),
        ({"problem": "disk"}, True),
        ({"is_heard": False}, True),
        ({"runs": False, "problem": "disk"}, False),  # it does not run the version
        ({"runs": False, "is_heard": False}, False),  # likewise, and it is not waited for
    ],
)
def test_one_that_fails_of_few_halts(changes: dict[str, Any], halts: bool) -> None:
    found = look(agent("a", runs=True), agent("b", **({"runs": True} | changes)), agent("c", "bb2"),
                 waves=("bb1",))  # fmt: skip
    assert found.halts is halts
    assert found.failing == (("b",) if halts else ())
    waits = changes.get("runs") is False and changes.get("is_heard", True)
    assert found.waves == (("bb1",) if halts or waits else ("bb1", "bb2"))


def test_one_of_many_does_not() -> None:
    many = [agent(f"h{number}", runs=True) for number in range(39)]
    found = look(*many, agent("sick", runs=True, problem="disk"), waves=("bb1",))
    assert (found.halts, found.failing, found.is_over) == (False, ("sick",), False)


AGENTS = st.lists(
    st.builds(
        RolledAgent,
        host=st.text("ab", min_size=1, max_size=3),
        wave=st.sampled_from(["", "bb1", "bb2", "bb3"]),
        runs=st.booleans(),
        is_heard=st.booleans(),
        problem=st.sampled_from(["", "disk"]),
    ),
    max_size=30,
)


@given(AGENTS, st.lists(st.sampled_from(["bb1", "bb2", "gone"]), unique=True))
def test_no_wave_is_opened_while_something_is_wrong(
    agents: list[RolledAgent], waves: list[str]
) -> None:
    found = look(*agents, waves=tuple(waves))
    kept = [wave for wave in waves if any(one.wave == wave for one in agents)]
    fresh = [wave for wave in found.waves if wave not in waves]
    assert list(found.waves)[: len(kept)] == kept
    assert len(fresh) <= 1
    failing = [one for one in agents if one.runs and (not one.is_heard or one.problem)]
    running = [one for one in agents if one.runs]
    assert found.halts == (len(failing) > len(running) * MOST_FAILING)
    if fresh and kept:
        assert not found.halts
        before = [one for one in agents if one.wave in kept]
        assert all(one.runs or not one.is_heard for one in before)
    if found.is_over:
        assert all(one.runs or not one.is_heard for one in agents)
