"""Region files that are imported beside the feed."""

from __future__ import annotations

from typing import Final

from hosts.feed.state import is_fed, vms_are_of
from hosts.models import Region
from hosts.region.identity import ABOUT
from hosts.region.registry import Phase, Step, registry
from hosts.region.run import ImportRun
from hosts.region.servers import SERVERS

BEFORE_ALL: Final = 4


def register() -> None:
    """Register the step of files that hold VMs."""
    registry.add(Step(Phase.WRITE, BEFORE_ALL, "age of VMs", _tell_age, after=frozenset({SERVERS})))


def _tell_age(run: ImportRun) -> None:
    if run.live is None and is_fed():
        about = run.stash.get(ABOUT, {})
        vms_are_of(Region(taken_at=about.get("taken_at", "")).listed_at)
