"""Host rooms that follow allocations (design, "Data").

Where ``HEADROOM_ALLOCATION_SOURCE`` is ``placement`` a write of allocations and the rooms of the
hosts it touches commit together. Lock order: rooms come after providers here, and nothing that
holds a room locks a provider.
"""

from __future__ import annotations

from typing import Final

from capacity.ledger.allocated import recount_allocated
from core.conf import headroom
from core.statements import run
from placement.models import Origin
from placement.selectors.allocated import NAME

#: Hosts of the trees that this transaction has logged as changed.
CHANGED_HOSTS: Final = f"""
SELECT DISTINCT host.id
  FROM placement_change AS change
  JOIN placement_provider AS root ON root.id = change.root_id
   AND root.origin = '{Origin.HOST.value}'
  JOIN hosts_host AS host ON host.name = root.name
 WHERE change.xid = pg_current_xact_id()::text::bigint
"""  # noqa: S608 - constants only


def rooms_follow_allocations() -> bool:
    """Return whether allocations say what VMs take on hosts."""
    return bool(headroom().allocation_source == NAME)


def count_rooms() -> None:
    """Count again what VMs take on the hosts whose trees this transaction changed."""
    if rooms_follow_allocations():
        recount_allocated([row[0] for row in run(CHANGED_HOSTS).fetchall()])
