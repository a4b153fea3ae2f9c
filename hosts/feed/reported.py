"""What hypervisors report of themselves: the one entry for their own lists of VMs.

Nova's list says where VMs are; a host that reports as well is compared with it, or believed
instead (``failover``, *Where VMs are*). This entry asks nobody: without a source that calls it,
such as a watch on Hypervisor objects or an agent on the host, no host reports anything.

Source: spec hosts, C.2 (``instances``) and C.7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import orjson
from django.db import transaction

from core.chunks import in_chunks
from core.jobs import tried
from hosts.domain.vm_list import ReportedVM
from hosts.models import Host
from journal.outages import is_retryable
from journal.statements import fetch_rows

HOSTS_PER_PART: Final = 1000
#: Rows are locked by name, as by whoever writes what the cloud says of them.
KEEP_REPORTED: Final = """
WITH told AS (
    SELECT host.id, said.vms
      FROM hosts_host AS host
      JOIN unnest(%(names)s::text[], %(lists)s::jsonb[]) AS said(name, vms)
        ON said.name = host.name
     WHERE host.reported_instances IS DISTINCT FROM said.vms
     ORDER BY host.name
       FOR NO KEY UPDATE OF host
)
UPDATE hosts_host AS host
   SET reported_instances = told.vms, updated_at = statement_timestamp()
  FROM told
 WHERE host.id = told.id
RETURNING host.name
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedResult:
    """What became of reports.

    Attributes:
        changed: Hosts whose list differs from the one before, by name.
        unknown: Hosts that nothing is known of; their lists were dropped. They come again with
            the next report, after a pass over hosts.
    """

    changed: tuple[str, ...]
    unknown: tuple[str, ...]


def keep_reported_instances(lists: Mapping[str, Sequence[ReportedVM] | None]) -> ReportedResult:
    """Keep the lists of VMs that hosts report themselves; the last word on a host stands.

    A list that is the same writes nothing. No room changes with it, only where failover takes VMs
    to be, which has brakes of its own against hosts that suddenly report none. Locks: the rows of
    changed hosts, by name, a thousand at the most. It opens its transactions itself.

    Args:
        lists: Host name -> all VMs that it has defined, running or not, in any order; empty for a
            host without VMs, None for one that reports no more. Hosts left out stay as they are.

    Raises:
        OperationalError: A row was not free in time, three times; lists of earlier parts are kept.
    """
    names = sorted(lists)
    changed: list[str] = []
    for part in in_chunks(names, HOSTS_PER_PART):
        told = {name: _stored(lists[name]) for name in part}
        changed += tried(
            partial(_keep, told), again_after=is_retryable, event="reported_tried_again"
        )
    known = set(Host.objects.filter(name__in=names).values_list("name", flat=True))
    return ReportedResult(
        changed=tuple(sorted(changed)),
        unknown=tuple(name for name in names if name not in known),
    )


def _keep(told: Mapping[str, str | None]) -> list[str]:
    parameters = {"names": list(told), "lists": list(told.values())}
    with transaction.atomic(durable=True):
        return [name for (name,) in fetch_rows(KEEP_REPORTED, parameters)]


def _stored(vms: Sequence[ReportedVM] | None) -> str | None:
    """Return a list as its column holds it, by uuid; a VM that stands twice runs if one says so."""
    if vms is None:
        return None
    by_uuid = {vm.vm_uuid: vm for vm in sorted(vms, key=lambda vm: (vm.is_active, vm.name))}
    return orjson.dumps(
        [
            {"id": vm_uuid, "name": vm.name, "active": vm.is_active}
            for vm_uuid, vm in sorted(by_uuid.items())
        ]
    ).decode()
