"""What agents see on their hosts: VMs, and what of ours they have made (spec hosts, D.6).

An agent's list of VMs is kept where hosts' own lists are (:mod:`hosts.feed.reported`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import jsonschema_rs
from django.db import transaction
from django.db.models import Count, Q, Sum
from headroom_host_agent.provision.signing.v2 import canonical_json

from hosts.agents.bodies import AMOUNT, generated_at, list_of, object_of, valid, wrong
from hosts.agents.errors import AgentConflict
from hosts.agents.keys import actor_of
from hosts.agents.models import AgentMode, HostAgent
from hosts.agents.workload_models import Workload
from hosts.agents.workloads import lock_agent
from hosts.domain.vm_list import ReportedVM
from hosts.domain.workloads import OPEN, UNITS_OF_DATA, WorkloadState
from hosts.feed.reported import keep_reported_instances
from hosts.models import Host, Instance
from journal.clock import database_now
from journal.services import Change, record_changes

MOST_VMS: Final = 10_000
MOST_TYPES: Final = 200
UNITS: Final = ("cru", "mru", "hru", "sru")
_NAME: Final = {"type": "string", "maxLength": 255}
_UUID: Final = {"type": "string", "minLength": 1, "maxLength": 64}
_TIME: Final = {"type": "string", "maxLength": 64}


_VM: Final = object_of({"uuid": _UUID, "name": _NAME, "active": {"type": "boolean"}})
_VMS: Final = list_of(_VM, MOST_VMS)
_LIST: Final = jsonschema_rs.validator_for(object_of({"instances": _VMS, "generated_at": _TIME}))
_CHANGE: Final = jsonschema_rs.validator_for(
    object_of(
        {
            "added": _VMS,
            "removed": list_of(_UUID, MOST_VMS),
            "base_digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            "generated_at": _TIME,
        }
    )
)
_STATS: Final = jsonschema_rs.validator_for(
    object_of(
        {
            "units": object_of(dict.fromkeys(UNITS, AMOUNT)),
            "workloads": {
                "type": "object",
                "additionalProperties": AMOUNT,
                "maxProperties": MOST_TYPES,
                "propertyNames": {"maxLength": 64},
            },
            "generated_at": _TIME,
        },
        {"digest": {"type": "string", "maxLength": 64}},
    )
)


def store_instances(agent: HostAgent, sent: object) -> None:
    """Keep the whole list of VMs of an agent's host; an older one than is kept changes nothing.

    An empty list is believed only where the cloud lists no VM on the host either: a lister that
    fails, or that looks at the wrong place, sees none as well.

    Raises:
        AgentRefused: It is no list; the first field that is wrong is named.
        AgentConflict: It is empty, and the cloud has VMs there.
    """
    document = valid(_LIST, sent)
    _keep(agent, _vms(document["instances"]), document)


def change_instances(agent: HostAgent, sent: object) -> None:
    """Change the list of VMs of an agent's host; refused as the whole list is.

    Raises:
        AgentRefused: The list would be longer than a whole one may be.
        AgentConflict: It does not build on the list that is kept: the whole list is needed. Or
            nothing would be left of it, and the cloud has VMs there.
    """
    document = valid(_CHANGE, sent)
    stored = Host.objects.filter(name=agent.host_name).values_list("reported_instances", flat=True)
    known = stored.first()
    if known is None or instances_digest(known) != document["base_digest"]:
        raise AgentConflict("the change is of another list than is kept", code="digest_mismatch")
    vms = _vms({"uuid": vm["id"], "name": vm["name"], "active": vm["active"]} for vm in known)
    for name in document["removed"]:
        vms.pop(name, None)
    vms |= _vms(document["added"])
    if len(vms) > MOST_VMS:
        raise wrong("added", f"the list would have {len(vms)} VMs, {MOST_VMS} at most")
    _keep(agent, vms, document)


def instances_digest(stored: Iterable[Mapping[str, Any]]) -> str:
    """Return the digest of a list: SHA-256 of canonical JSON of [uuid, name, active] by uuid."""
    rows = sorted([vm["id"], vm["name"], vm["active"]] for vm in stored)
    return hashlib.sha256(canonical_json(rows)).hexdigest()


def _keep(agent: HostAgent, vms: Mapping[str, ReportedVM], document: Mapping[str, Any]) -> None:
    seen_at = generated_at(document, database_now())
    is_newer = Q(instances_at__isnull=True) | Q(instances_at__lte=seen_at)
    if agent.mode == AgentMode.NONE or not HostAgent.objects.filter(is_newer, pk=agent.pk).exists():
        return
    if not vms:
        listed = Instance.objects.filter(host__name=agent.host_name).count()
        if listed:
            raise AgentConflict(
                f"the list is empty, and the cloud has {listed} VMs on the host",
                code="empty_list_unproven",
                vms=listed,
            )
    keep_reported_instances({agent.host_name: list(vms.values())})
    HostAgent.objects.filter(is_newer, pk=agent.pk).update(instances_at=seen_at)


def store_stats(agent: HostAgent, sent: object, *, request_id: str) -> None:
    """Keep what an agent has made, and compare it with what it told us that it made.

    Nothing is written over by it. While something is open or changed since, there is nothing to
    compare. A difference that is new, or over, is an audit entry.

    Raises:
        AgentRefused: A field is missing or wrong; it is named.
    """
    document = valid(_STATS, sent)
    seen_at = generated_at(document, database_now())
    with transaction.atomic():
        row = lock_agent(agent.pk)
        if row.stats_at is not None and row.stats_at > seen_at:
            return
        before = row.stats_drift
        row.stats = {"units": document["units"], "workloads": document["workloads"]}
        row.stats_at = seen_at
        if not _is_unsettled(row, seen_at):
            row.stats_drift = _drift(row, document)
        row.save(update_fields=["stats", "stats_at", "stats_drift"])
        if (before or {}) == (row.stats_drift or {}):
            return
        change = Change(
            action="host_stats_drifted" if row.stats_drift else "host_stats_agree",
            object_type="host",
            object_id=row.host_name,
            before=before,
            after=row.stats_drift,
        )
        record_changes([change], actor=actor_of(row), request_id=request_id)


def _is_unsettled(agent: HostAgent, generated_at: datetime) -> bool:
    unsettled = [*OPEN, WorkloadState.DELETING]
    moving = Q(state__in=[state.value for state in unsettled]) | Q(state_since__gt=generated_at)
    return agent.workloads.filter(moving).exists()


def expected_of(agent: HostAgent) -> dict[str, Any]:
    """Return units (CPUs, else bytes) and workloads by type that an agent told us that it made."""
    made = Workload.objects.filter(agent=agent, state=WorkloadState.DEPLOYED.value).order_by()
    sums = made.values_list("type").annotate(
        count=Count("pk"), cru=Sum("cpus"), mru=Sum("memory_bytes"), disk=Sum("disk_bytes")
    )
    units = dict.fromkeys(("cru", "mru", "disk"), 0)
    counts = {}
    for kind, count, *amounts in sums:
        counts[kind] = count
        if kind not in UNITS_OF_DATA:
            for name, amount in zip(units, amounts, strict=True):
                units[name] += int(amount)
    for kind, data in made.filter(type__in=UNITS_OF_DATA).values_list("type", "data"):
        for name, amount in UNITS_OF_DATA[kind](data).items():
            units[name] += amount
    return {"units": units, "workloads": counts}


def _drift(agent: HostAgent, document: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return what differs -> what we expect, and what the agent says."""
    expected, units = expected_of(agent), document["units"]
    told = {"cru": units["cru"], "mru": units["mru"], "disk": units["hru"] + units["sru"]}
    told |= {f"workloads.{name}": count for name, count in document["workloads"].items() if count}
    wanted: dict[str, int] = dict(expected["units"])
    wanted |= {f"workloads.{kind}": count for kind, count in expected["workloads"].items()}
    return {
        name: [wanted.get(name, 0), told.get(name, 0)]
        for name in sorted({*wanted, *told})
        if wanted.get(name, 0) != told.get(name, 0)
    }


def _vms(listed: Iterable[Mapping[str, Any]]) -> dict[str, ReportedVM]:
    return {
        vm["uuid"]: ReportedVM(vm_uuid=vm["uuid"], name=vm["name"], is_active=vm["active"])
        for vm in listed
    }
