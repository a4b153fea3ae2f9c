"""How a VM is covered if its host dies, in words."""

from __future__ import annotations

from django.db import connection

from core.text import plural
from failover.choices import Uncovered
from failover.domain.patterns import required_count
from failover.selectors.zone import failover_requirements

COVER = """
SELECT (SELECT count(*) FROM capacity_reservationallocation AS member
          JOIN capacity_reservation AS held
            ON held.id = member.reservation_id AND held.kind = 'failover'
         WHERE member.vm_uuid = asked.vm_uuid),
       decision.current_count, decision.required_count, decision.reason
  FROM (SELECT %s::text AS vm_uuid) AS asked
  LEFT JOIN failover_failoverdecision AS decision ON decision.vm_uuid = asked.vm_uuid
"""


def vm_cover_text(vm_uuid: str, flavor_name: str) -> str:
    """Return how many failover reservations cover a VM, of how many it needs.

    As the decision about the VM says; without one nothing lacks.
    """
    with connection.cursor() as cursor:
        cursor.execute(COVER, [vm_uuid])
        held, current, required, reason = cursor.fetchone()
    if current is None:
        required = required_count(failover_requirements(), flavor_name)
        text = f"{held} of {required}"
        return text if held >= required else f"{text}: not decided yet, or none is owed"
    text = f"{current} of {required}: {Uncovered(reason).label}"
    uncounted = held - current
    if uncounted <= 0:
        return text
    verb = "does" if uncounted == 1 else "do"
    return f"{text}; {plural(uncounted, 'reservation')} {verb} not count"
