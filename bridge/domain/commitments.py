"""Commitments as objects (spec commitments, 2 and 13.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bridge.domain.kinds import Naming, ObjectKind
from bridge.domain.objects import Condition, Json, Rendered, present, resources
from bridge.domain.quantities import memory_quantity, timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentRow:
    """A commitment with what covers it; amounts are bytes or cores.

    Attributes:
        accepted_spec: As the platform stores it: keys as in Kubernetes, amounts as numbers.
        vm_uuids: Covered VMs in order.
    """

    source_id: int
    uuid: str
    scheduling_domain: str
    group: str
    resource_type: str
    amount: int
    zone: str
    project_id: str
    domain_id: str
    start_time: datetime | None
    end_time: datetime | None
    confirmed_at: datetime | None
    state: str
    allow_rejection: bool
    creator_request_id: str
    accepted_spec: Mapping[str, Any] | None
    accepted_at: datetime | None
    last_reconcile_at: datetime | None
    used_memory_bytes: int
    used_vcpus: int
    last_usage_reconcile_at: datetime | None
    has_current_usage: bool | None
    summary: str
    condition: Condition
    vm_uuids: tuple[str, ...] = ()
    part_ids: tuple[int, ...] = ()


def render_commitment(row: CommitmentRow, naming: Naming) -> Rendered:
    """Return a commitment as a CommittedResource (spec commitments, 2.1)."""
    spec = present(
        {
            "commitmentUUID": row.uuid,
            "schedulingDomain": row.scheduling_domain,
            "flavorGroupName": row.group,
            "resourceType": row.resource_type,
            "amount": amount_quantity(row.resource_type, row.amount),
            "availabilityZone": row.zone,
            "projectID": row.project_id,
            "domainID": row.domain_id,
            "startTime": timestamp(row.start_time),
            "endTime": timestamp(row.end_time),
            "confirmedAt": timestamp(row.confirmed_at),
            "state": row.state,
            "allowRejection": row.allow_rejection,
        }
    )
    status = present(
        {
            "acceptedSpec": _accepted(row.accepted_spec),
            "acceptedAt": timestamp(row.accepted_at),
            "lastReconcileAt": timestamp(row.last_reconcile_at),
            "assignedInstances": list(row.vm_uuids),
            "usedResources": resources(memory_bytes=row.used_memory_bytes, vcpus=row.used_vcpus),
            "lastUsageReconcileAt": timestamp(row.last_usage_reconcile_at),
            "statusSummary": row.summary,
        }
    )
    key = f"reservations.{naming.group}/creator-request-id"
    return Rendered(
        kind=ObjectKind.COMMITTED_RESOURCE,
        source_id=row.source_id,
        name=naming.object_name(f"commitment-{row.uuid}"),
        zone=row.zone,
        spec=spec,
        status=status,
        condition=row.condition,
        annotations={key: row.creator_request_id} if row.creator_request_id else {},
        has_current_usage=row.has_current_usage,
        part_ids=row.part_ids,
    )


_ACCEPTED_TIMES: Final = ("startTime", "endTime", "confirmedAt")
_ACCEPTED_TEXTS: Final = (
    "commitmentUUID",
    "schedulingDomain",
    "flavorGroupName",
    "resourceType",
    "availabilityZone",
    "projectID",
    "domainID",
    "state",
    "allowRejection",
)


def _accepted(stored: Mapping[str, Any] | None) -> Json | None:
    """Return the accepted spec with the fields that the schema knows; None when there is none."""
    if stored is None:
        return None
    found = {key: stored.get(key) for key in _ACCEPTED_TEXTS}
    for key in _ACCEPTED_TIMES:
        if stored.get(key):
            found[key] = timestamp(datetime.fromisoformat(str(stored[key])))
    if (amount := stored.get("amount")) is not None:
        found["amount"] = amount_quantity(str(stored.get("resourceType")), int(amount))
    return present(found)


def amount_quantity(resource_type: str, amount: int) -> str:
    """Return the amount of a commitment: bytes with a suffix, or cores."""
    return memory_quantity(amount) if resource_type == "memory" else str(amount)
