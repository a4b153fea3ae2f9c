"""A small cloud whose claims are the ledger, called as Nova calls it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.utils import timezone

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import Reservation, ReservationAllocation, ReservationKind
from hosts.models import Host
from placement.tasks import reconcile_hosts
from tests.claims import assert_claims_are_the_ledger
from tests.factories import (
    make_commitment,
    make_group,
    make_host,
    make_reservation,
    make_slot,
)
from tests.placement.client import (
    Answer,
    PlacementClient,
    consumer_body,
    placement_settings,
)

GIB = 1 << 30
OWNER, STRANGER = "owner", "stranger"
SMALL = {"VCPU": 2, "MEMORY_MB": 8192}
LARGE = {"VCPU": 4, "MEMORY_MB": 16384}
FLAVORS = (("small", 8192, 2), ("large", 16384, 4))


class Cloud:
    """A client with the calls that Nova makes, and two hosts: one is held by the owner."""

    def __init__(self) -> None:
        self.client = PlacementClient(X_Roles="admin,service")
        self.held = make_host("held", memory_gib=16, vcpus=4)
        self.free = make_host("free", memory_gib=16, vcpus=4)
        make_group("general", flavors=FLAVORS)
        self.commitment = make_commitment(group="general", project_id=OWNER, amount_gib=16)
        self.slot = make_slot(
            self.commitment, self.held, flavor_name="large", memory_gib=16, vcpus=4
        )
        rebuild_host_capacity()
        reconcile_hosts()

    def claim(
        self,
        vm: str,
        *hosts: Host,
        project: str = OWNER,
        asks: dict[str, int] | None = None,
        generation: int | None = None,
    ) -> int:
        held = {host.openstack_id: asks or SMALL for host in hosts}
        answer = self.client.allocate(vm, held, generation=generation, project_id=project)
        return self.checked(answer).status

    def delete(self, vm: str) -> int:
        return self.checked(self.client.delete(f"/allocations/{vm}")).status

    def post(self, body: dict[str, Any]) -> int:
        return self.checked(self.client.post("/allocations", body, version="1.28")).status

    @staticmethod
    def checked(answer: Answer) -> Answer:
        assert_claims_are_the_ledger()
        return answer

    def inside(self) -> dict[str, int]:
        """Return GiB of each VM in the slot."""
        rows = ReservationAllocation.objects.filter(reservation=self.slot)
        return {row.vm_uuid: row.memory_bytes // GIB for row in rows}

    def blocked_gib(self) -> int:
        return Reservation.objects.get(pk=self.slot.pk).blocked_memory_bytes // GIB


def body(
    vm_host: Host | None, asks: dict[str, int], generation: int | None, project: str = ""
) -> dict[str, Any]:
    held = {vm_host.openstack_id: asks} if vm_host else {}
    return consumer_body(held, generation=generation, project_id=project or OWNER)


def make_flight(host: Host, vm: str, **fields: Any) -> Reservation:
    defaults: dict[str, Any] = {
        "memory_gib": 8,
        "vcpus": 2,
        "confirmed_host": None,
        "end_time": timezone.now() + timedelta(minutes=15),
        "placement_id": uuid4(),
        "project_id": OWNER,
        "flavor_group_name": "general",
    }
    kind = ReservationKind.IN_FLIGHT
    return make_reservation(host, kind=kind, vm_uuid=vm, **{**defaults, **fields})


def use_source(settings: Any, name: str) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"allocation_source": name})


def cloud_of_claims(settings: Any) -> Cloud:
    """Have claims be the ledger, in a cloud of two hosts."""
    placement_settings(settings, host_inventories="host", enforce_new_defaults=False)
    use_source(settings, "placement")
    return Cloud()
