"""What the ledger offers to a project is granted by the claim (issue of one ledger question)."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.nova.in_flight import InFlightAsk, hold_in_flight
from hosts.models import Host
from placement.tasks import reconcile_hosts
from scheduling.resources import ResourceVector
from tests.examples import few
from tests.factories import (
    make_commitment,
    make_group,
    make_host,
    make_reservation,
    make_slot,
    make_vm,
)
from tests.placement.client import PlacementClient, placement_settings, uuid

pytestmark = pytest.mark.django_db

GIB = 1 << 30
FLAVORS = (("tiny", 1024, 1), ("wide", 1024, 2), ("deep", 2048, 1))
OTHER_FLAVORS = (("other", 2048, 2),)


class Slot(NamedTuple):
    """A slot on a host: whose, of which group, its size, and the VM seen or awaited in it."""

    project: str
    group: str
    gib: int
    vcpus: int
    inside_gib: int
    is_seen: bool


slots = st.builds(
    Slot,
    st.sampled_from(["owner", "stranger"]),
    st.sampled_from(["general", "special"]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 3),
    st.booleans(),
)
hosts = st.tuples(st.lists(slots, max_size=3), st.integers(0, 2), st.integers(0, 3))


@pytest.fixture
def placement(settings: Any) -> PlacementClient:
    placement_settings(settings, host_inventories="host", enforce_new_defaults=False)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"allocation_source": "placement"})
    return PlacementClient(X_Roles="admin,service")


@few(25)
@given(
    world=st.lists(hosts, min_size=1, max_size=3),
    flavor=st.sampled_from(FLAVORS),
    project=st.sampled_from(["owner", "stranger", "nobody"]),
    knows=st.booleans(),
)
def test_a_host_that_is_offered_is_granted(
    placement: PlacementClient,
    world: list[tuple[list[Slot], int, int]],
    flavor: tuple[str, int, int],
    project: str,
    knows: bool,
) -> None:
    """Also where the claim has to tell the group from the amounts alone."""
    savepoint = transaction.savepoint()
    try:
        made = _make(placement, world)
        _, mib, vcpus = flavor
        vm = uuid()
        ask = InFlightAsk(
            vm_uuid=vm,
            resources=ResourceVector(memory_bytes=mib << 20, vcpus=vcpus),
            intent="create",
            project_id=project,
            flavor_group_name="general",
        )
        trial = transaction.savepoint()
        hold = hold_in_flight(ask, candidates=[host.name for host in made], request_id="test")
        offered = () if hold is None else hold.host_ids
        if not knows:
            transaction.savepoint_rollback(trial)
        for host in made:
            attempt = transaction.savepoint()
            asked = {host.openstack_id: {"MEMORY_MB": mib, "VCPU": vcpus}}
            answer = placement.allocate(vm, asked, project_id=project)
            if host.pk in offered:
                assert answer.status == 204, answer.content
            transaction.savepoint_rollback(attempt)
    finally:
        transaction.savepoint_rollback(savepoint)


def _make(placement: PlacementClient, world: list[tuple[list[Slot], int, int]]) -> list[Host]:
    """Make hosts that hold all that is in them, with some room more."""
    groups = {
        "general": make_group("general", flavors=FLAVORS),
        "special": make_group("special", flavors=OTHER_FLAVORS),
    }
    made = []
    for number, (listed, spare, free) in enumerate(world):
        gib = sum(max(slot.gib, slot.inside_gib) for slot in listed) + spare + free
        vcpus = sum(max(slot.vcpus, slot.inside_gib) for slot in listed) + spare + free
        host = make_host(f"host{number}", memory_gib=max(gib, 1), vcpus=max(vcpus, 1))
        made.append(host)
        if spare:
            make_reservation(host, memory_gib=spare, vcpus=spare)
        for slot in listed:
            commitment = make_commitment(group=groups[slot.group], project_id=slot.project)
            row = make_slot(commitment, host, memory_gib=slot.gib, vcpus=slot.vcpus)
            if slot.inside_gib:
                make_vm(
                    host=host,
                    memory_gib=slot.inside_gib,
                    vcpus=slot.inside_gib,
                    project_id=slot.project,
                    slot=row,
                    slot_state="confirmed" if slot.is_seen else "expected",
                )
    rebuild_host_capacity()
    reconcile_hosts()
    return made
