"""Slots that the agents of their hosts will not make: they are placed elsewhere (spec D.8, D.14).

What an agent made stays where it is when that agent is silent, since silence proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from capacity.ledger.readiness import ASKED, OURS, slot_type
from hosts.domain.workloads import MOST_ATTEMPTS
from journal.statements import fetch_rows

_UNMADE: Final = f"""
SELECT asked.id, CASE WHEN lease.liveness = 'down' THEN 'has an agent that is down'
                      ELSE 'has an agent that could not make it' END
  FROM ({ASKED} AND slot.zone = %(zone)s AND slot.ready_reason IN {OURS}) AS asked
  JOIN hosts_hostlease AS lease ON lease.agent_id = asked.agent_id
 WHERE lease.liveness = 'down' AND asked.state IS DISTINCT FROM 'deployed'
    OR asked.state = 'failed' AND asked.tries >= %(most)s
"""  # noqa: S608 - our own text


def unmade_slots(zone: str) -> Mapping[int, str]:
    """Return the slots of a zone that wait for an agent that is down or failed for good.

    Returns:
        Mapping key of the slot -> what is wrong with its host.
    """
    parameters = {"zone": zone, "type": slot_type(), "most": MOST_ATTEMPTS}
    return dict(fetch_rows(_UNMADE, parameters))
