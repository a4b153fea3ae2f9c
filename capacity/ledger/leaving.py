"""Room of slots that left a host stays held until its agent gave it back (spec hosts, D.12).

Huge pages that an agent set aside are taken until it frees them, whatever we decided. What a slot
blocked is held on, with the network, disk I/O and GPUs that it held, so that leaving never takes
more than there was; where the same transaction needs that room for another slot, it is not held,
since agents remove before they make. It ends when the agent says so, and with its mode, its end, or
its being down: no host waits for ever.

Locks: rooms by key, then rows of this table, then the other resources of their hosts; no slot, no
agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

import structlog
from django.db import transaction
from django.db.models import Sum

from capacity.ledger.rooms import lock_rooms, move_blocks, recount_committed
from capacity.locks import set_lock_timeout
from capacity.models import LeavingRoom, ReservationKind
from core.chunks import in_chunks
from core.jobs import tried
from hosts.agents.modes import does_any_enforce
from journal.statements import execute, fetch_rows
from scheduling.needs import Needs
from scheduling.resources import ZERO, ResourceVector

log = structlog.get_logger(__name__)

HOSTS_PER_PART: Final = 100
_HEARD: Final = """
agent.mode = 'enforce' AND agent.decommissioned_at IS NULL
AND EXISTS (SELECT FROM hosts_hostlease AS lease
             WHERE lease.agent_id = agent.id AND lease.liveness <> 'down')
"""
_HOLD: Final = f"""
INSERT INTO capacity_leavingroom
       (workload_id, host_id, memory_bytes, vcpus, network_bps, disk_io_bps, gpus,
        commitment_key)
SELECT DISTINCT ON (gone.slot_id, gone.host_id)
       work.id, gone.host_id, gone.memory_bytes, gone.vcpus,
       slot.held_network_bps, slot.held_disk_io_bps, slot.held_gpus, slot.commitment_id
  FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
           AS gone(slot_id, host_id, memory_bytes, vcpus)
  JOIN capacity_reservation AS slot ON slot.id = gone.slot_id
  JOIN hosts_host AS host ON host.id = gone.host_id
  JOIN hosts_hostagent AS agent ON agent.host_name = host.name
  JOIN hosts_workload AS work ON work.agent_id = agent.id AND work.owner_kind = 'slot'
   AND work.owner_id = gone.slot_id::text AND work.state <> 'deleted'
   AND (work.state <> 'failed' OR work.is_made)
 WHERE {_HEARD}
 ORDER BY gone.slot_id, gone.host_id, work.id DESC
    ON CONFLICT (workload_id) DO NOTHING
RETURNING id, host_id, memory_bytes, vcpus
"""  # noqa: S608 - our own text
_WITHOUT_BLOCKS: Final = """
WITH kept AS (
    UPDATE capacity_leavingroom SET memory_bytes = 0, vcpus = 0
     WHERE id = ANY (%(ids)s) AND network_bps + disk_io_bps + gpus > 0)
DELETE FROM capacity_leavingroom
 WHERE id = ANY (%(ids)s) AND network_bps + disk_io_bps + gpus = 0
"""
# A slot that came back before the agent was asked to remove it is held by itself again.
_OVER: Final = f"""
  FROM capacity_leavingroom AS held
  JOIN hosts_workload AS work ON work.id = held.workload_id
  JOIN hosts_hostagent AS agent ON agent.id = work.agent_id
 WHERE work.state = 'deleted' OR NOT ({_HEARD})
    OR NOT work.to_delete AND EXISTS (
       SELECT FROM capacity_reservation AS slot
        WHERE slot.id::text = work.owner_id AND slot.target_host_id = held.host_id)
"""
_HOSTS_OVER: Final = f"SELECT DISTINCT held.host_id {_OVER} ORDER BY 1"
_END: Final = f"""
DELETE FROM capacity_leavingroom
 WHERE host_id = ANY (%s) AND id IN (SELECT held.id {_OVER})
"""  # noqa: S608 - our own text


class Left(NamedTuple):
    """What a slot blocked on a host that it leaves; the room was given back just now."""

    slot_id: int
    host_id: int
    block: ResourceVector


def hold_left_rooms(left: Iterable[Left]) -> None:
    """Hold the room of slots that leave hosts, where agents have it still.

    To be called in the transaction that gave it back, which has locked the rooms, before the slots
    are written or deleted: what they hold besides memory and vCPUs is read from their rows.
    """
    gone = [one for one in left if one.block != ZERO]
    if not gone or not does_any_enforce():
        return
    columns: list[Sequence[int]] = [
        [one.slot_id for one in gone],
        [one.host_id for one in gone],
        [one.block.memory_bytes for one in gone],
        [one.block.vcpus for one in gone],
    ]
    rows = fetch_rows(_HOLD, columns)
    full = move_blocks(ReservationKind.COMMITTED, _sums(row[1:] for row in rows)) if rows else ()
    if full:
        execute(_WITHOUT_BLOCKS, {"ids": [pk for pk, host, _, _ in rows if host in full]})


def leaving_room(host_id: int) -> ResourceVector:
    """Return what is held on a host until its agent gave it back."""
    rows = LeavingRoom.objects.filter(host_id=host_id).values_list(
        "host_id", "memory_bytes", "vcpus"
    )
    return _sums(rows).get(host_id, ZERO)


def leaving_others(host_id: int) -> Needs:
    """Return what is held of network, disk I/O and GPUs until an agent gave it back."""
    rows = LeavingRoom.objects.filter(host_id=host_id)
    sums = rows.aggregate(network=Sum("network_bps"), disk_io=Sum("disk_io_bps"), gpu=Sum("gpus"))
    return Needs(**{name: int(amount or 0) for name, amount in sums.items()})


def give_back_left_rooms() -> int:
    """Give back what agents freed, and what is not waited for any more.

    It opens its transactions itself, each for some hosts. Two at once do no harm.

    Returns:
        How many slots had held it.

    Raises:
        Busy: a room was not free in time, three times.
    """
    hosts = [host_id for (host_id,) in fetch_rows(_HOSTS_OVER, [])]
    ended = 0
    for part in in_chunks(hosts, HOSTS_PER_PART):
        ended += tried(partial(_give_back, part), event="leaving_rooms_tried_again")
    if ended:
        log.info("leaving_rooms_given_back", count=ended)
    return ended


def _give_back(host_ids: Sequence[int]) -> int:
    with transaction.atomic(durable=True):
        set_lock_timeout()
        lock_rooms(host_ids)
        count = execute(_END, [list(host_ids)])
        # Not by difference: a release that knows no such rows may have counted without them.
        recount_committed(host_ids)
    return count


def _sums(rows: Iterable[Sequence[int]]) -> dict[int, ResourceVector]:
    sums: dict[int, ResourceVector] = {}
    for host_id, memory_bytes, vcpus in rows:
        block = ResourceVector(memory_bytes=memory_bytes, vcpus=vcpus)
        sums[host_id] = sums.get(host_id, ZERO) + block
    return sums
