"""Slots on hosts whose agents make them are ready once they are made (spec hosts, D.1).

One statement compares slots with what the agents of their hosts said, and writes what differs, so
that running it twice, late or beside itself is harmless. It locks slots and nothing after them; a
slot that somebody else has locked is left for the next look.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from django.conf import settings

from capacity.models import Reservation
from capacity.models.choices import ReadyReason
from hosts.agents.modes import does_any_enforce
from journal.statements import execute

LONGEST_WORDS: Final = 500
#: As the partial index has them: a slot that stands otherwise and is not ready has other troubles.
OF_AGENTS: Final = (ReadyReason.AWAITS_AGENT, ReadyReason.AGENT_FAILED)
OURS: Final = f"('{ReadyReason.AWAITS_AGENT.value}', '{ReadyReason.AGENT_FAILED.value}')"
#: Slots of hosts whose agents make them, with what was asked last for their present size.
ASKED: Final = """
SELECT slot.id, host.name AS host_name, agent.id AS agent_id, made.state, made.error, made.tries
  FROM hosts_hostagent AS agent
  JOIN hosts_host AS host ON host.name = agent.host_name
  JOIN capacity_reservation AS slot ON slot.target_host_id = host.id AND slot.kind = 'committed'
  LEFT JOIN LATERAL (
       SELECT work.state, work.error, work.attempt - work.first_attempt + 1 AS tries
         FROM hosts_workload AS work
        WHERE work.owner_kind = 'slot' AND work.owner_id = slot.id::text
          AND work.agent_id = agent.id AND NOT work.to_delete AND work.type = %(type)s
          AND (work.cpus, work.memory_bytes) = (slot.vcpus, slot.memory_bytes)
        ORDER BY work.id DESC LIMIT 1) AS made ON true
 WHERE agent.mode = 'enforce' AND agent.decommissioned_at IS NULL
"""
# First what waits for an agent, then what an agent does not have to make any more.
_AGREE: Final = f"""
WITH asked AS ({ASKED} {{which}}), wanted AS (
    SELECT id, CASE state WHEN 'deployed' THEN true WHEN 'failed' THEN false END AS is_ready,
           CASE state WHEN 'deployed' THEN %(active)s WHEN 'failed' THEN %(failed)s
                      ELSE %(awaits)s END AS reason,
           CASE state WHEN 'deployed' THEN ''
                      WHEN 'failed' THEN left('the agent of ' || host_name || ' did not make it: '
                                              || error, %(longest)s)
                      ELSE 'the agent of ' || host_name || ' has not made it yet' END AS message
      FROM asked
     UNION ALL
    SELECT slot.id, true, %(active)s, ''
      FROM capacity_reservation AS slot
     WHERE slot.ready_reason IN {OURS} AND slot.target_host_id IS NOT NULL {{which}}
       AND NOT EXISTS (SELECT FROM hosts_hostagent AS agent
                         JOIN hosts_host AS host ON host.name = agent.host_name
                        WHERE host.id = slot.target_host_id AND agent.mode = 'enforce'
                          AND agent.decommissioned_at IS NULL)
), differing AS (
    SELECT slot.id, wanted.is_ready, wanted.reason, wanted.message
      FROM capacity_reservation AS slot JOIN wanted ON wanted.id = slot.id
     WHERE slot.ready_reason IN {OURS}
           AND (slot.is_ready, slot.ready_reason, slot.ready_message)
               IS DISTINCT FROM (wanted.is_ready, wanted.reason, wanted.message)
        OR slot.is_ready AND wanted.is_ready IS NOT TRUE
     ORDER BY slot.id FOR NO KEY UPDATE OF slot SKIP LOCKED
)
UPDATE capacity_reservation AS slot
   SET is_ready = differing.is_ready, ready_reason = differing.reason,
       ready_message = differing.message, updated_at = statement_timestamp(),
       ready_changed_at = CASE WHEN slot.is_ready IS DISTINCT FROM differing.is_ready
                               THEN statement_timestamp() ELSE slot.ready_changed_at END
  FROM differing WHERE differing.id = slot.id
"""  # noqa: S608 - our own text


def slot_type() -> str:
    """Return the provisioner that agents make slots with."""
    chosen: str = settings.HEADROOM.agents.slot_type
    return chosen


def let_agents_make(slots: Collection[Reservation]) -> None:
    """Have slots that were just written wait for the agents that make them.

    Where no agent makes slots, as in most regions, this is one small statement, or none.

    Args:
        slots: As they are written, locked by the caller.
    """
    if any(slot.ready_reason in OF_AGENTS for slot in slots) or (slots and does_any_enforce()):
        agree_with_agents([slot.pk for slot in slots])


def agree_with_agents(slot_ids: Collection[int] | None = None) -> int:
    """Have slots be ready as far as the agents of their hosts made them, where these make slots.

    What is not ready for another reason stays so. Where no agent makes slots, nothing changes but
    what an agent had to make before.

    Args:
        slot_ids: Which, locked by the caller; every slot when left out.

    Returns:
        How many changed.
    """
    return execute(
        _AGREE.format(which="" if slot_ids is None else "AND slot.id = ANY (%(slot_ids)s)"),
        {
            "type": slot_type(),
            "active": ReadyReason.ACTIVE.value,
            "failed": ReadyReason.AGENT_FAILED.value,
            "awaits": ReadyReason.AWAITS_AGENT.value,
            "longest": LONGEST_WORDS,
            "slot_ids": sorted(slot_ids or ()),
        },
    )
