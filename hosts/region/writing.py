"""How a region is written: in small transactions, each with what follows from it for the ledger.

No writer holds a zone: a part takes the rooms of the hosts that its rows are about, and the locks
of zones only where hosts come into one, leave it or go. Parts of different runs wait for each
other, so that what a part finds stored stays until it has written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, TypeVar

from django.conf import settings
from django.db import transaction

from core.jobs import tried
from hosts.region.registry import registry
from hosts.region.run import ImportRun
from journal.leases import check_leases
from journal.statements import execute

Result = TypeVar("Result")

ROWS_PER_PART: Final = 1000
ALONE: Final = """
SELECT set_config('lock_timeout', %s, true);
LOCK TABLE hosts_region IN SHARE ROW EXCLUSIVE MODE;
"""


def settle(run: ImportRun, host_ids: Collection[int]) -> None:
    """Make the rooms of hosts agree with what the open transaction wrote; a dry run takes none."""
    if host_ids and not run.options.is_dry_run:
        registry.ledger.settle(host_ids)


def write_part(
    run: ImportRun, work: Callable[[], Result], *, zones: Collection[str] = ()
) -> Result:
    """Do one small part of a run in a transaction of its own, and again after a deadlock.

    Within another part, and in a dry run, it is no transaction of its own.

    Args:
        zones: Zones whose planners have to wait.

    Raises:
        Busy: what it needs was not free in time, three times.
    """
    if run.is_in_part:
        return work()

    def attempt() -> Result:
        with transaction.atomic(durable=not run.options.is_dry_run):
            if zones and not run.options.is_dry_run:
                registry.ledger.lock_zones(zones)
            execute(ALONE, [f"{int(settings.HEADROOM.lock_timeout_seconds * 1000)}ms"])
            check_leases()
            run.is_in_part = True
            try:
                return work()
            finally:
                run.is_in_part = False

    return tried(
        attempt,
        event="import_part_tried_again",
    )
