"""Commitments that are due for repair, the repair, and looks at what it left."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from capacity.models import Reservation
from commitments.domain.statuses import ResourceType
from commitments.models import Commitment
from commitments.services.repair import RepairReport, repair_due_commitments
from journal.actors import task_actor
from scheduling.resources import GIB
from tests.commitments.change_requests import NOW

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
FLAVOR_GIB = 4


def repair(now: Any = NOW) -> RepairReport:
    return repair_due_commitments(actor=task_actor("test"), request_id="repair-1", now=now)


def due(
    uuid: str = A, gib: int = FLAVOR_GIB, state: str = "confirmed", **fields: Any
) -> Commitment:
    """Make a commitment of `hana_1` in az-a that the next repair looks at."""
    defaults: dict[str, Any] = {
        "flavor_group_name": "hana_1",
        "resource_type": ResourceType.MEMORY,
        "requested_amount": gib * GIB,
        "zone": "az-a",
        "project_id": "alpha",
        "state": state,
        "end_time": NOW + timedelta(days=1),
        "next_reconcile_at": NOW,
    }
    return Commitment.objects.create(commitment_uuid=uuid, **{**defaults, **fields})


def change_spec(row: Commitment, now: Any = NOW, **fields: Any) -> None:
    """Write another desired state, as the syncer does."""
    Commitment.objects.filter(pk=row.pk).update(
        **fields, generation=row.generation + 1, next_reconcile_at=now
    )
    row.refresh_from_db()


def make_all_due(now: Any = NOW) -> None:
    Commitment.objects.update(next_reconcile_at=now)


def conditions() -> list[tuple[bool | None, str]]:
    """Return status and reason of every commitment, by uuid."""
    rows = Commitment.objects.order_by("commitment_uuid")
    return list(rows.values_list("ready_status", "ready_reason"))


def slots() -> list[tuple[str | None, int]]:
    """Return host and GiB of every slot, by commitment and number."""
    rows = Reservation.objects.order_by("commitment__commitment_uuid", "slot_index")
    return [
        (name, memory_bytes // GIB)
        for name, memory_bytes in rows.values_list("target_host__name", "memory_bytes")
    ]


def use_payg(settings: Any, *, is_on: bool = True) -> None:
    """Cover running VMs with new slots, or not."""
    changed = settings.HEADROOM.slots.model_copy(update={"payg_pre_allocation": is_on})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"slots": changed})
