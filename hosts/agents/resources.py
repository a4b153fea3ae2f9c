"""Network, disk I/O and GPUs of hosts, as their agents report them (spec hosts, A.1, D.12).

What is reserved of them is the ledger's alone and stays as it is. Locks: the rows of one host in
the fixed order of the resources, and nothing after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from hosts.agents.models import AgentMode, HostAgent
from hosts.agents.resource_models import HostResource, OtherResource, ResourceSource

#: After a CTE ``kept`` with the name of the host, if the report is newer than what is kept.
STORE_RESOURCES: Final = """
INSERT INTO hosts_hostresource AS place
       (host_id, resource, capacity, effective_capacity, allocated, source, is_stale)
SELECT host.id, told.resource, told.capacity, told.effective_capacity, told.allocated, told.source,
       told.is_stale <> 0
  FROM kept JOIN hosts_host AS host ON host.name = kept.host_name
 CROSS JOIN unnest(%(resources)s::text[], %(capacities)s::bigint[], %(effective)s::bigint[],
                   %(allocated)s::bigint[], %(sources)s::text[], %(stale)s::int[])
       WITH ORDINALITY AS told (resource, capacity, effective_capacity, allocated, source, is_stale,
                                place)
 ORDER BY told.place
    ON CONFLICT (host_id, resource) DO UPDATE
   SET capacity = excluded.capacity, effective_capacity = excluded.effective_capacity,
       allocated = excluded.allocated, source = excluded.source, is_stale = excluded.is_stale
 WHERE (place.capacity, place.effective_capacity, place.allocated, place.source, place.is_stale)
       IS DISTINCT FROM (excluded.capacity, excluded.effective_capacity, excluded.allocated,
                         excluded.source, excluded.is_stale)
RETURNING 1
"""


class Told(NamedTuple):
    """What a report says of one resource."""

    resource: str
    capacity: int
    effective_capacity: int
    allocated: int
    source: str
    is_stale: int


def resource_columns(agent: HostAgent, report: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
    """Return what a report says of network, disk I/O and GPUs, as parameters.

    Nothing is known of them from an agent that is not asked for anything.
    """
    told = [_rate(report, name) for name in ("network", "disk_io")] + [_gpus(report)]
    if agent.mode == AgentMode.NONE:
        told = [one._replace(source=ResourceSource.UNKNOWN.value) for one in told]
    names = ("resources", "capacities", "effective", "allocated", "sources", "stale")
    return dict(zip(names, (list(column) for column in zip(*told, strict=True)), strict=True))


def forget_resources(host_name: str) -> None:
    """Refuse no slot any more for what an agent said of its host; what slots hold stays counted."""
    known = HostResource.objects.filter(host__name=host_name)
    for row in known.exclude(source=ResourceSource.UNKNOWN).order_by("pk"):
        HostResource.objects.filter(pk=row.pk).update(source=ResourceSource.UNKNOWN)


def _rate(report: Mapping[str, Any], name: str) -> Told:  # Any: JSON
    status = report[name]
    return Told(
        resource=OtherResource(name).value,
        capacity=status["capacity"],
        effective_capacity=status["effective_limit"],
        allocated=status["allocated"],
        source=status["source"],
        is_stale=int(status["stale"]),
    )


def _gpus(report: Mapping[str, Any]) -> Told:  # Any: JSON
    """Return the GPUs; what is neither used nor may be handed out is no capacity for slots."""
    status = report.get("gpu")
    if status is None:
        return Told(OtherResource.GPU.value, 0, 0, 0, ResourceSource.DETECTED.value, 0)
    used = status["used_slots"]
    return Told(
        resource=OtherResource.GPU.value,
        capacity=status["total_slots"],
        effective_capacity=min(status["total_slots"], used + status["allocatable_slots"]),
        allocated=used,
        source=ResourceSource.DETECTED.value,
        is_stale=0,
    )
