"""A recorded Nova plays its life cycles: claims are the ledger after each call (placement, 8.4).

The recording holds 1,405 calls of a real Nova 34: boots, cold and live migrations, resizes with
confirmation and revert, shelving, evacuation and deletions.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import AllocationState, Reservation, ReservationAllocation
from hosts.models import Host
from placement.models import Allocation, Consumer
from placement.tasks import reconcile_hosts
from tests.claims import assert_claims_are_the_ledger, held_by_consumers
from tests.factories import make_commitment, make_group, make_host, make_slot
from tests.placement.client import PlacementClient, placement_settings

pytestmark = pytest.mark.django_db(transaction=True)

RECORDING = Path(__file__).parents[1] / "data" / "nova34-placement-traffic.jsonl.gz"
GIB = 1 << 30
#: Flavors of the recorded cloud that fit general hosts: name, MiB, vCPUs.
FLAVORS = (
    ("g_c1_m2", 2048, 1),
    ("g_c2_m4", 4096, 2),
    ("g_c2_m8", 8192, 2),
    ("g_c4_m16", 16384, 4),
    ("g_c8_m32", 32768, 8),
    ("g_c16_m64", 65536, 16),
)
Call = dict[str, Any]  # Any: recorded JSON


def recorded_calls() -> list[Call]:
    with gzip.open(RECORDING, "rt") as lines:
        return [json.loads(line) for line in lines]


def make_recorded_hosts(calls: list[Call]) -> dict[str, Host]:
    """Make the hosts whose providers the recorded nova-computes create, by UUID."""
    totals = {
        call["path"].split("/")[2]: call["body"]["inventories"]
        for call in calls
        if call["method"] == "PUT" and call["path"].endswith("/inventories")
    }
    made = {}
    for call in calls:
        if call["method"] == "POST" and call["path"] == "/resource_providers":
            body = call["body"]
            memory, vcpus = (totals[body["uuid"]].get(name) for name in ("MEMORY_MB", "VCPU"))
            if memory:
                made[body["uuid"]] = make_host(
                    body["name"],
                    zone=body["name"][-4:],
                    openstack_id=body["uuid"],
                    memory_gib=(memory["total"] - memory["reserved"]) // 1024,
                    vcpus=int((vcpus["total"] - vcpus["reserved"]) * vcpus["allocation_ratio"]),
                )
    return made


@pytest.fixture
def nova(settings: Any) -> PlacementClient:
    placement_settings(settings, host_inventories="api", enforce_new_defaults=False)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"allocation_source": "placement"})
    return PlacementClient(X_Roles="admin,service")


def play(nova: PlacementClient, call: Call) -> None:
    """Make a recorded call and expect the recorded status."""
    _, _, version = (call["version"] or "placement 1.0").partition(" ")
    answer = nova.call(call["method"], call["path"], call["body"], version=version)
    assert answer.status == call["status"], (call["method"], call["path"], answer.content)


def last_write() -> str:
    """Return where the database's log of writes ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_insert_lsn()::text")
        return str(cursor.fetchone()[0])


def is_claim(call: Call) -> bool:
    return bool(call["path"].startswith("/allocations") and call["method"] != "GET")


def played(nova: PlacementClient) -> Iterator[Call]:
    """Play the recording up to its end; the hosts are known before the first claim.

    Each call is yielded after it was made. The project whose VMs are recorded has a commitment
    with a slot of each flavor on each general host.
    """
    calls = recorded_calls()
    hosts = make_recorded_hosts(calls)
    (project,) = {
        call["body"]["project_id"] for call in calls if call["method"] == "PUT" and is_claim(call)
    }
    is_ready = False
    for call in calls:
        if is_claim(call) and not is_ready:
            rebuild_host_capacity()
            reconcile_hosts()
            commit_slots(project, hosts.values())
            is_ready = True
        play(nova, call)
        yield call


def commit_slots(project_id: str, hosts: Any) -> None:
    group = make_group("gp", flavors=FLAVORS)
    chosen = sorted(
        (host for host in hosts if host.total_memory_bytes < 600 * GIB), key=lambda host: host.name
    )
    for host in chosen:
        commitment = make_commitment(
            group=group,
            project_id=project_id,
            zone=host.zone,
            requested_amount=sum(mib for _, mib, _ in FLAVORS) << 20,
        )
        for name, mib, vcpus in FLAVORS:
            make_slot(commitment, host, flavor_name=name, memory_gib=mib // 1024, vcpus=vcpus)


def vms_in_slots() -> set[tuple[str, int]]:
    rows = ReservationAllocation.objects.filter(state=AllocationState.CONFIRMED)
    return set(rows.values_list("vm_uuid", "reservation__target_host_id"))


def vms_on_committed_hosts() -> set[tuple[str, int]]:
    """Return who holds something on hosts with slots: one of each flavor, as was booted there."""
    committed = set(Reservation.objects.values_list("target_host_id", flat=True))
    return {(vm, host_id) for host_id, vm in held_by_consumers() if host_id in committed}


def test_after_each_call_of_a_real_nova_claims_are_the_ledger(nova: PlacementClient) -> None:
    gone: set[str] = set()
    claimed, checked_at = 0, ""
    for call in played(nova):
        if is_claim(call):
            held = {str(uuid) for uuid in Consumer.objects.values_list("uuid", flat=True)}
            named = set(call["body"] or {}) if call["method"] == "POST" else set()
            named |= {call["path"].split("/")[2]} if call["method"] != "POST" else set()
            gone = (gone | named) - held
            claimed += 1
            assert vms_in_slots() == vms_on_committed_hosts(), call
        if checked_at != (written := last_write()):  # a read writes nothing
            assert_claims_are_the_ledger(gone)
            checked_at = written
    assert claimed == 71
    assert not Allocation.objects.exists()


@pytest.mark.parametrize("table", ["capacity_hostcapacity", "capacity_reservation"])
def test_the_checker_sees_a_ledger_that_is_off(nova: PlacementClient, table: str) -> None:
    column = "allocated_vcpus" if table == "capacity_hostcapacity" else "blocked_vcpus"
    for call in played(nova):
        if is_claim(call):
            break
    assert_claims_are_the_ledger()
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {column} = {column} + 1")  # noqa: S608
    with pytest.raises(AssertionError):
        assert_claims_are_the_ledger()
