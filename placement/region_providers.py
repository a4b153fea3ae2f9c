"""What follows an import of a region: providers for the hosts it brought (spec placement, 8.4)."""

from __future__ import annotations

from typing import Final

from django.db import transaction

from hosts.region.registry import Phase, Step, registry
from hosts.region.run import ImportRun
from placement.services.nudges import reconcile_soon

STEP: Final = "providers of hosts"


def register() -> None:
    """Register the step of this module."""
    registry.add(Step(Phase.FINISH, 90, STEP, _reconcile_soon))


def _reconcile_soon(run: ImportRun) -> None:
    if run.is_still:
        return
    transaction.on_commit(reconcile_soon, robust=True)
