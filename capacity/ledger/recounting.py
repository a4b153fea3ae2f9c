"""Rooms follow ``HEADROOM_ALLOCATION_SOURCE`` where it was changed.

Each room says from which source it was counted, so nobody has to be told of the change, and whoever
is killed goes on where it was. A process with the old setting, which still runs, makes rooms say so
whenever it counts them; they are counted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog
from django.db import transaction

from capacity.ledger.allocated import chosen_source
from capacity.ledger.moving import hold_moving_vms_of
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.locks import set_lock_timeout
from core.chunks import in_chunks
from core.jobs import tried
from journal.statements import fetch_rows

log = structlog.get_logger(__name__)

ROOMS_PER_PART: Final = 500
COUNTED_OTHERWISE: Final = """
SELECT host_id, counted_from FROM capacity_hostcapacity
 WHERE counted_from IS DISTINCT FROM %s ORDER BY host_id
"""


def counted_otherwise() -> dict[int, str | None]:
    """Return the hosts whose rooms were counted from another source than the one in force.

    Returns:
        Mapping key of the host -> that source; None where it is not known.
    """
    return dict(fetch_rows(COUNTED_OTHERWISE, [chosen_source()]))


def follow_source() -> int:
    """Count those rooms anew, and hold what moves where the source in force does not count it.

    It opens its transactions itself, each for some hosts. Two at once do no harm.

    Returns:
        How many hosts there were.

    Raises:
        Busy: a room was not free in time, three times.
    """
    former = counted_otherwise()
    for part in in_chunks(list(former), ROOMS_PER_PART):
        tried(
            partial(_count, part),
            event="recount_tried_again",
        )
    if former:
        log.info("rooms_recounted", count=len(former))
    return len(former)


def _count(host_ids: Sequence[int]) -> None:
    with transaction.atomic(durable=True):
        set_lock_timeout()
        hold_moving_vms_of(host_ids)
        rebuild_host_capacity(host_ids)
