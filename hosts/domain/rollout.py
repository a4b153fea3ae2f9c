"""A version of the host agent reaches hosts in waves (spec hosts, D.15).

Headroom says which version is wanted where; whoever keeps the host's packages installs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

#: A wave is followed by the next after so long at the earliest.
SOAK: Final = timedelta(minutes=10)
#: Of those that run the version, how many may fail.
MOST_FAILING: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledAgent:
    """One agent as it is now.

    Attributes:
        wave: Its building block, else its zone.
        runs: Whether it runs the version that is rolled out.
        is_heard: Whether its lease runs.
        problem: What is wrong with it, empty for nothing.
    """

    host: str
    wave: str
    runs: bool
    is_heard: bool
    problem: str = ""

    @property
    def fails(self) -> bool:
        """Whether it runs the version, and not well."""
        return self.runs and (not self.is_heard or bool(self.problem))

    @property
    def lags(self) -> bool:
        """Whether its wave waits for it: one that is not heard is not waited for."""
        return self.is_heard and not self.runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look at a rollout found.

    Attributes:
        waves: That may have the version now, in their order.
        failing: Hosts whose agents run it and not well.
        halts: Whether too many fail: no further host gets it then.
        is_over: Whether all run it.
    """

    waves: tuple[str, ...]
    failing: tuple[str, ...]
    halts: bool
    is_over: bool


def look_at(
    agents: Sequence[RolledAgent], *, waves: Iterable[str], opened_at: datetime, now: datetime
) -> Look:
    """Return how a rollout goes on.

    Args:
        agents: All that there are.
        waves: That may have the version already.
        opened_at: When the last of these was opened.
        now: The time.
    """
    by_wave: dict[str, list[RolledAgent]] = defaultdict(list)
    for agent in agents:
        by_wave[agent.wave].append(agent)
    known = tuple(wave for wave in waves if wave in by_wave)
    running = sum(agent.runs for agent in agents)
    failing = tuple(sorted(agent.host for agent in agents if agent.fails))
    halts = len(failing) > running * MOST_FAILING
    is_done = not any(agent.lags or agent.fails for wave in known for agent in by_wave[wave])
    others = sorted(set(by_wave) - set(known))
    if others and not halts and (not known or (is_done and now - opened_at >= SOAK)):
        known = (*known, others[0])
        is_done = False
    return Look(
        waves=known,
        failing=failing,
        halts=halts,
        is_over=bool(known) and is_done and not others and not halts,
    )
