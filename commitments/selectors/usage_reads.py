"""What a usage run reads: projects that changed, VMs in order, assignments as they are stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from capacity.groups.flavor_groups import groups_of_flavors
from capacity.groups.reading import load_group_definitions
from commitments.domain.assignment import Place, SizedVM
from core.changes import changed_rows, is_forgotten, is_unseen
from hosts.domain.vm import ABSENT_STATUSES
from journal.statements import fetch_rows, fetch_value

SEPARATOR = "\x1f"

# A VM counts for its project, and for the one whose commitment still covers it; a host for the
# projects of its VMs, since its zone is theirs. What a run wrote itself is no reason to run again:
# only its own transaction has that number.
CHANGED_PROJECTS = f"""
WITH vm AS MATERIALIZED (
    SELECT openstack_id, project_id, changed_xid
      FROM {changed_rows("hosts_instance", "one", since="%(since)s")}
),
changed AS (
    SELECT project_id, changed_xid FROM vm
    UNION
    SELECT owner.project_id, vm.changed_xid
      FROM vm JOIN commitments_instanceassignment AS held ON held.vm_uuid = vm.openstack_id
      JOIN commitments_commitment AS owner ON owner.id = held.commitment_id
     WHERE owner.project_id <> vm.project_id
    UNION
    SELECT vm.project_id, host.changed_xid
      FROM {changed_rows("hosts_host", "host", since="%(since)s")}
      JOIN hosts_instance AS vm ON vm.host_id = host.id
    UNION
    SELECT project_id, changed_xid
      FROM {changed_rows("commitments_commitment", "held", since="%(since)s")}
    UNION
    SELECT project_id, changed_xid FROM commitments_projectdeparture
     WHERE {is_unseen("changed_xid", since="%(since)s")}
    UNION
    SELECT project_id, NULL FROM commitments_projectusage WHERE is_due OR next_change_at <= %(now)s
)
SELECT DISTINCT changed.project_id
  FROM changed
  LEFT JOIN commitments_projectusage AS usage ON usage.project_id = changed.project_id
 WHERE (changed.changed_xid IS NULL OR usage.written_xid IS NULL
        OR changed.changed_xid <> usage.written_xid)
   AND (usage.project_id IS NOT NULL
        OR EXISTS (SELECT FROM commitments_commitment AS one
                    WHERE one.project_id = changed.project_id
                      AND (one.accepted_spec IS NOT NULL
                           OR one.last_usage_reconcile_at IS NOT NULL)))
 ORDER BY 1
"""  # noqa: S608 - constants only

LAST_CHECK = f"""
SELECT snapshot FROM commitments_usagecheck
 WHERE group_fingerprint = %s AND NOT {is_forgotten("snapshot")}
"""  # noqa: S608 - constants only

ALL_PROJECTS = """
SELECT project_id FROM commitments_commitment
 WHERE accepted_spec IS NOT NULL OR last_usage_reconcile_at IS NOT NULL
UNION
SELECT project_id FROM commitments_projectusage
 ORDER BY 1
"""

VMS = """
SELECT vm.openstack_id, vm.memory_bytes, vm.vcpus,
       coalesce(nullif(host.zone, ''), vm.zone), vm.flavor_name
  FROM hosts_instance AS vm JOIN hosts_host AS host ON host.id = vm.host_id
 WHERE vm.project_id = %s AND vm.zone <> '' AND vm.status <> ALL (%s)
 ORDER BY vm.nova_created_at NULLS FIRST, vm.memory_bytes DESC, vm.openstack_id COLLATE "C"
"""

STORED = """
SELECT commitment_id, resource_type, string_agg(vm_uuid, chr(31) ORDER BY position, id)
  FROM commitments_instanceassignment WHERE commitment_id = ANY (%s)
 GROUP BY commitment_id, resource_type
"""


def groups_by_flavor() -> Mapping[str, str]:
    """Return flavor name -> name of its flavor group, retired groups included.

    Raises:
        NotReady: flavor groups were not extracted yet.
    """
    return groups_of_flavors(load_group_definitions(include_retired=True).values())


def last_check(group_fingerprint: str) -> str:
    """Return the snapshot of the last whole run; empty when there is none to go on from.

    Nor is there when what changed since was forgotten.

    Args:
        group_fingerprint: Of the present flavor groups: with others, everything is looked at.
    """
    return str(fetch_value(LAST_CHECK, [group_fingerprint]) or "")


def changed_projects(since: str, now: datetime) -> list[str]:
    """Return projects whose VMs or commitments changed, began or ended, or that are still due.

    Costs the changes and not the region.

    Args:
        since: Text of the snapshot of the last run.

    Source: spec commitments, 14.6, 14.7.
    """
    return [
        project_id for (project_id,) in fetch_rows(CHANGED_PROJECTS, {"since": since, "now": now})
    ]


def all_projects() -> list[str]:
    """Return every project that has or had commitments in force."""
    return [project_id for (project_id,) in fetch_rows(ALL_PROJECTS)]


def vms_by_place(project_id: str, group_of: Mapping[str, str]) -> dict[Place, list[SizedVM]]:
    """Return a project's VMs by zone of their host and flavor group, in the order of assignment.

    The same VMs as those of the usage report (spec commitments, 14.3; liquid, 9.1).

    Args:
        group_of: Mapping flavor name -> flavor group; VMs of other flavors are left out.
    """
    by_place: defaultdict[Place, list[SizedVM]] = defaultdict(list)
    for uuid, memory_bytes, vcpus, zone, flavor_name in fetch_rows(
        VMS, [project_id, list(ABSENT_STATUSES)]
    ):
        group = group_of.get(flavor_name)
        if group is not None:
            by_place[zone, group].append((uuid, memory_bytes, vcpus))
    return by_place


def stored_assignments(commitment_ids: Sequence[int]) -> dict[int, dict[str, str]]:
    """Return commitment key -> resource type -> uuids of its VMs in order, joined by SEPARATOR."""
    stored: defaultdict[int, dict[str, str]] = defaultdict(dict)
    for commitment_id, resource_type, uuids in fetch_rows(STORED, [list(commitment_ids)]):
        stored[commitment_id][resource_type] = uuids
    return stored
