"""A small region with everything that a request can touch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from commitments.domain.statuses import CommitmentStatus
from commitments.models import Commitment
from tests.factories import (
    make_assignment,
    make_group,
    make_group_capacity,
    make_host,
    make_project,
    make_quota,
    make_vm,
)
from tests.fuzz.wsgi import Answer, call
from tests.ledger import assert_ledger_holds
from tests.process_tables import reset_host_table

CHANGE = "/commitments/v1/change-commitments"
INFO = "/commitments/v1/info"
PROJECTS = ("alpha", "beta", "gamma")
ZONES = ("az-a", "az-b")
RAM, CORES = "hw_version_hana_1_ram", "hw_version_hana_1_cores"
VARIABLE_RAM, VARIABLE_CORES = "hw_version_gp_2_ram", "hw_version_gp_2_cores"
RESOURCES = (RAM, CORES, VARIABLE_RAM, VARIABLE_CORES)
LATER = datetime(2036, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A commitment of the region as Limes would know it."""

    uuid: str
    project: str
    resource: str
    zone: str
    status: str
    amount: int


def commitment_uuid(number: int) -> str:
    return f"c0ffee00-0000-4000-8000-{number:012d}"


def build_region() -> tuple[Known, ...]:
    """Make groups, hosts, VMs and quotas, and one commitment of each kind in every status."""
    make_group("hana_1", flavors=[("small", 1024, 1), ("large", 4096, 4)], quota=("ram",))
    make_group(
        "gp_2", flavors=[("gp_small", 1024, 1), ("gp_big", 8192, 2)], ram_unit_gib=2, quota=("ram",)
    )
    for zone, count in (("az-a", 4), ("az-b", 2)):
        for number in range(count):
            make_host(f"{zone}-h{number}", zone=zone, memory_gib=32, vcpus=32)
        for group in ("hana_1", "gp_2"):
            make_group_capacity(group, zone, total_vcpus=64)
    for project in PROJECTS[:2]:
        make_project(project)
        make_quota(project, quota_by_resource={RAM: 50})
    known = tuple(_commit(number, spec) for number, spec in enumerate(_specs()))
    _start_vms(known)
    reset_host_table()
    assert_ledger_holds()
    return known


def _specs() -> list[tuple[str, str, str, str]]:
    """Return project, resource, zone and status of every commitment of the region."""
    return [
        (PROJECTS[number % 2], resource, ZONES[number % 3 == 0], status)
        for resource in RESOURCES
        for number, status in enumerate(list(CommitmentStatus))
    ]


def _commit(number: int, spec: tuple[str, str, str, str]) -> Known:
    project, resource, zone, status = spec
    known = Known(
        uuid=commitment_uuid(number),
        project=project,
        resource=resource,
        zone=zone,
        status=status,
        amount=1 + number % 5,
    )
    live = {"planned", "pending", "guaranteed", "confirmed"}
    first = status if status in live else "confirmed"
    _must_accept(known, None, first)
    if first != status:
        _must_accept(known, first, status)
    return known


def _must_accept(known: Known, old: str | None, new: str) -> None:
    answer = send_change(one_change(known, old, new))
    assert answer.status == 200, answer
    assert answer.json() == {}, answer


def one_change(known: Known, old: str | None, new: str | None) -> dict[str, Any]:
    """Return the body of a request that moves one commitment from a status to another."""
    entry = {
        "uuid": known.uuid,
        "oldStatus": old,
        "newStatus": new,
        "amount": known.amount,
        "expiresAt": LATER.isoformat(),
    }
    return body_of({known.project: {known.resource: [entry]}}, zone=known.zone)


def body_of(
    by_project: dict[str, dict[str, list[dict[str, Any]]]],
    *,
    zone: str = "az-a",
    is_dry_run: bool = False,
    info_version: int | None = None,
) -> dict[str, Any]:
    """Return a request body whose totals say what its commitments say."""
    return {
        "az": zone,
        "dryRun": is_dry_run,
        "infoVersion": current_version() if info_version is None else info_version,
        "byProject": {
            project: {
                "projectMetadata": {
                    "uuid": project,
                    "name": project,
                    "domain": {"uuid": "domain-1", "name": "domain-1"},
                },
                "byResource": {
                    name: {**totals(entries), "commitments": entries}
                    for name, entries in resources.items()
                },
            }
            for project, resources in by_project.items()
        },
    }


def totals(entries: list[dict[str, Any]]) -> dict[str, int]:
    """Return the four totals of a changeset in which nothing else is committed."""
    return {
        f"total{status.title()}{when}": sum(
            entry["amount"] for entry in entries if entry[key] == status
        )
        for status in ("confirmed", "guaranteed")
        for when, key in (("Before", "oldStatus"), ("After", "newStatus"))
    }


def current_version() -> int:
    return int(call("GET", INFO).json()["version"])


def send_change(body: dict[str, Any]) -> Answer:
    return call("POST", CHANGE, orjson.dumps(body))


def _start_vms(known: tuple[Known, ...]) -> None:
    """Put VMs into slots, beside them, and on a host with a failover-like neighbour."""
    confirmed = [
        row
        for row in Commitment.objects.filter(resource_type="memory", state="confirmed")
        if row.slots.exists()
    ]
    assert confirmed
    assert known
    for row in confirmed:
        slot = row.slots.order_by("slot_index")[0]
        group_small = "small" if row.flavor_group_name == "hana_1" else "gp_small"
        vm = make_vm(
            host=slot.target_host,
            slot=slot,
            flavor_name=group_small,
            memory_gib=1,
            vcpus=1,
            project_id=row.project_id,
        )
        make_assignment(row, vm)
    first = confirmed[0].slots.order_by("slot_index")[0].target_host
    assert first is not None
    make_vm(host=first, memory_gib=1, vcpus=1, project_id="alpha")
