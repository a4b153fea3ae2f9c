"""Scheduler, LIQUID, capacity and claims ask the ledger one question (ADR 0029)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from capacity.figures.probe_pipelines import current_probes
from capacity.figures.zone_capacity import zone_figures
from capacity.groups.reading import load_group_definitions
from capacity.host_table import current_host_table
from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import HostCapacity, Reservation
from hosts.agents.models import HostLease
from hosts.models import Host
from placement.tasks import reconcile_hosts
from scheduling.resources import GIB, ZERO, ResourceVector
from tests.api.scheduler_client import DATA, READ_ONLY, NovaClient
from tests.blocked_twice import blocked_twice_by_row
from tests.commitments.change_requests import change, decide
from tests.examples import few
from tests.factories import (
    make_commitment,
    make_group,
    make_host,
    make_project,
    make_reservation,
    make_slot,
    make_vm,
)
from tests.failover.drill_rows import make_failover_slot
from tests.hosts.agents.agents import enrolled, fence_host
from tests.ledger import KINDS
from tests.placement.client import PlacementClient, placement_settings, uuid
from tests.process_tables import reset_host_table, reset_snapshot

pytestmark = pytest.mark.django_db

FLAVORS = {"tiny": (1, 1), "wide": (1, 2), "deep": (2, 1), "large": (4, 4)}
PROJECTS = ("owner", "stranger")


COMMITMENT = "aaaaaaaa-0000-4000-8000-000000000001"


class Hold(NamedTuple):
    """Something on a host: a VM, or a hold of a kind, whose and of which group."""

    kind: str
    project: str
    group: str
    gib: int
    vcpus: int


class Room(NamedTuple):
    """A host: what is on it, what is free, and by how much it is over-subscribed then."""

    holds: list[Hold]
    free_gib: int = 0
    free_vcpus: int = 0
    lost_gib: int = 0


holds = st.builds(
    Hold,
    st.sampled_from(["slot", "slot", "slot with VM", "flight", "failover", "VM"]),
    st.sampled_from(PROJECTS),
    st.sampled_from(["general", "special"]),
    st.integers(1, 4),
    st.integers(1, 4),
)
rooms = st.builds(
    Room,
    st.lists(holds, max_size=4),
    st.integers(0, 4),
    st.integers(0, 4),
    st.sampled_from([0, 0, 0, 1, 3]),
)


@pytest.fixture
def placement(settings: Any) -> PlacementClient:
    placement_settings(settings, host_inventories="host", enforce_new_defaults=False)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"allocation_source": "placement"})
    return PlacementClient(X_Roles="admin,service")


@contextmanager
def as_in_a_test_case() -> Iterator[None]:
    """Take back all that is written; services may open durable transactions inside."""
    block = transaction.atomic()
    block._from_testcase = True  # type: ignore[attr-defined]  # set by Django itself
    with block:
        yield
        transaction.set_rollback(True)
    reset_host_table()
    reset_snapshot()


def make_hosts(placement: PlacementClient, world: list[Room]) -> list[Host]:
    """Make hosts that had room for all that is on them; VMs hold allocations."""
    for name in PROJECTS:
        make_project(name)
    make_group("general", flavors=[(name, gib * 1024, n) for name, (gib, n) in FLAVORS.items()])
    make_group("special", flavors=[("other", 2048, 2)])
    made: list[Host] = []
    vms: list[tuple[str, Host, str, dict[str, int]]] = []
    for number, room in enumerate(world):
        host = make_host(
            f"h{number}",
            memory_gib=max(1, sum(one.gib for one in room.holds) + room.free_gib),
            vcpus=max(1, sum(one.vcpus for one in room.holds) + room.free_vcpus),
        )
        made.append(host)
        for hold in room.holds:
            vms += [(vm, host, hold.project, size) for vm, size in make_hold(host, hold)]
    reconcile_hosts()
    for vm, host, project, size in vms:
        answer = placement.allocate(vm, {host.openstack_id: size}, project_id=project)
        assert answer.status == 204, answer.content
    for host, room in zip(made, world, strict=True):
        left = max(0, host.effective_memory_bytes - room.lost_gib * GIB)
        Host.objects.filter(pk=host.pk).update(effective_memory_bytes=left)
    rebuild_host_capacity()
    reset_host_table()
    reset_snapshot()
    return made


def make_hold(host: Host, hold: Hold) -> Iterator[tuple[str, dict[str, int]]]:
    """Make a hold; yield the VM that is there and what it has to claim."""
    size: dict[str, Any] = {"memory_gib": hold.gib, "vcpus": hold.vcpus}
    if hold.kind.startswith("slot"):
        commitment = make_commitment(group=hold.group, project_id=hold.project)
        slot = make_slot(commitment, host, **size)
        if hold.kind == "slot with VM":
            vm = make_vm(openstack_id=uuid(), host=host, slot=slot, memory_gib=1, vcpus=1)
            yield vm.openstack_id, {"MEMORY_MB": 1024, "VCPU": 1}
    elif hold.kind == "flight":
        make_reservation(
            host,
            kind="in_flight",
            vm_uuid=uuid(),
            confirmed_host=None,
            project_id=hold.project,
            flavor_group_name=hold.group,
            end_time=timezone.now(),
            placement_id=uuid4(),
            **size,
        )
    elif hold.kind == "VM":
        yield uuid(), {"MEMORY_MB": hold.gib * 1024, "VCPU": hold.vcpus}
    else:
        make_failover_slot(f"failover {uuid()}", host, [], memory_gib=hold.gib)


def offered(
    vm: str, hosts: list[Host], flavor: str, project: str, *, holds_room: bool
) -> list[str]:
    """Ask the external scheduler over HTTP."""
    nova = NovaClient(hosts=tuple(host.name for host in hosts))
    gib, vcpus = FLAVORS[flavor]
    body = nova.body(
        project_id=project,
        instance_uuid=vm,
        availability_zone=None,
        options=None if holds_room else READ_ONLY,
    )
    if holds_room:
        body["options"] = {"max_candidates": 0, "skip_history": True}
    asked = body["spec"][DATA]["flavor"][DATA]
    asked |= {"memory_mb": gib * 1024, "vcpus": vcpus, "name": flavor}
    asked["extra_specs"] = {"capabilities:hypervisor_type": "qemu", "quota:hw_version": "general"}
    return nova.hosts(body)


@few(20, suppress_health_check=list(HealthCheck))
@given(
    world=st.lists(rooms, min_size=1, max_size=3),
    flavor=st.sampled_from(sorted(FLAVORS)),
    project=st.sampled_from([*PROJECTS, "nobody"]),
    holds_room=st.booleans(),
)
def test_what_the_scheduler_offers_is_granted_and_what_is_refused_is_not_offered(
    placement: PlacementClient, world: list[Room], flavor: str, project: str, holds_room: bool
) -> None:
    with as_in_a_test_case():
        hosts = make_hosts(placement, world)
        gib, vcpus = FLAVORS[flavor]
        vm = uuid()
        names = offered(vm, hosts, flavor, project, holds_room=holds_room)
        for host in hosts:
            attempt = transaction.savepoint()
            asked = {host.openstack_id: {"MEMORY_MB": gib * 1024, "VCPU": vcpus}}
            answer = placement.allocate(vm, asked, project_id=project)
            assert answer.status == 204 or host.name not in names, answer.content
            transaction.savepoint_rollback(attempt)


def test_what_a_dry_run_grants_is_granted_and_holds_for_claims(
    placement: PlacementClient, settings: Any
) -> None:
    liquid = settings.HEADROOM.liquid.model_copy(update={"dry_run_mode": "exact"})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"liquid": liquid})

    @few(20, suppress_health_check=list(HealthCheck))
    @given(world=st.lists(rooms, min_size=1, max_size=3), gib=st.integers(1, 8))
    def check(world: list[Room], gib: int) -> None:
        with as_in_a_test_case():
            make_hosts(placement, world)
            wanted = {"owner": {"hw_version_general_ram": [change(COMMITMENT, gib)]}}
            promised = not decide(wanted, is_dry_run=True).rejection_reason
            granted = not decide(wanted).rejection_reason
            assert granted is promised
            slots = Reservation.objects.filter(commitment__commitment_uuid=COMMITMENT)
            assert bool(slots) is granted
            for slot in slots.select_related("target_host"):
                assert slot.target_host is not None
                asked = {"MEMORY_MB": slot.memory_bytes >> 20, "VCPU": slot.vcpus}
                answer = placement.allocate(
                    uuid(), {slot.target_host.openstack_id: asked}, project_id="owner"
                )
                assert answer.status == 204, answer.content

    check()


@few(20, suppress_health_check=list(HealthCheck))
@given(world=st.lists(rooms, min_size=1, max_size=3))
def test_a_host_that_capacity_counts_takes_a_claim(
    placement: PlacementClient, world: list[Room]
) -> None:
    with as_in_a_test_case():
        hosts = make_hosts(placement, world)
        groups = [load_group_definitions()["general"]]
        figures = zone_figures(current_host_table(), "az-a", groups, current_probes())
        for flavor in figures.groups["general"].flavors:
            gib, vcpus = FLAVORS[flavor.flavor_name]
            asked = {"MEMORY_MB": gib * 1024, "VCPU": vcpus}
            taken = 0
            for host in hosts:
                attempt = transaction.savepoint()
                answer = placement.allocate(uuid(), {host.openstack_id: asked}, project_id="x")
                taken += answer.status == 204
                transaction.savepoint_rollback(attempt)
            assert flavor.placeable_hosts <= taken, flavor


@few(20, suppress_health_check=list(HealthCheck))
@given(
    world=st.lists(rooms.map(lambda room: room._replace(lost_gib=0)), min_size=1, max_size=3),
    flavor=st.sampled_from(sorted(FLAVORS)),
)
@example(
    world=[
        Room([Hold("slot", "owner", "general", 2, 2), Hold("flight", "owner", "general", 2, 2)])
    ],
    flavor="wide",
)
def test_engines_differ_by_what_slots_and_vms_in_flight_block_together(
    placement: PlacementClient, world: list[Room], flavor: str
) -> None:
    """Who owns nothing is offered, and capacity counts, what is free by the sums.

    A claim may take besides what a slot and a VM in flight into it block both, since that is
    promised once. A change request takes room by the sums, and what is published it must grant.
    """
    with as_in_a_test_case():
        hosts = make_hosts(placement, world)
        gib, vcpus = FLAVORS[flavor]
        asked = ResourceVector(memory_bytes=gib * GIB, vcpus=vcpus)
        free = {room.host_id: free_by_sums(room) for room in HostCapacity.objects.all()}
        shared = blocked_twice_by_row(list(free))
        fitting = {host.name for host in hosts if asked.fits_into(free[host.pk])}
        names = offered(uuid(), hosts, flavor, "nobody", holds_room=False)
        assert set(names) == fitting
        groups = [load_group_definitions()["general"]]
        figures = zone_figures(current_host_table(), "az-a", groups, current_probes())
        counted = {one.flavor_name: one for one in figures.groups["general"].flavors}
        assert counted[flavor].placeable_hosts == len(fitting)
        for host in hosts:
            attempt = transaction.savepoint()
            answer = placement.allocate(
                uuid(),
                {host.openstack_id: {"MEMORY_MB": gib * 1024, "VCPU": vcpus}},
                project_id="nobody",
            )
            transaction.savepoint_rollback(attempt)
            room = free[host.pk] + shared.get(host.pk, ZERO)
            assert (answer.status == 204) is asked.fits_into(room), answer.content


@few(20, suppress_health_check=list(HealthCheck))
@given(
    covered=st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=3),
    home_is=st.sampled_from(["up", "down", "fenced", "silent"]),
)
def test_both_know_which_host_of_a_vm_is_lost(
    placement: PlacementClient, covered: list[tuple[int, bool]], home_is: str
) -> None:
    """Places that failover holds for a VM are its own where its host is lost, and only there."""
    with as_in_a_test_case():
        rooms = [Room([], free, free) for free, _ in covered]
        home, *others = make_hosts(placement, [Room([], 8, 8), *rooms])
        vm, size = uuid(), {"MEMORY_MB": 4096, "VCPU": 4}
        assert placement.allocate(vm, {home.openstack_id: size}, project_id="owner").status == 204
        row = make_vm(
            host=home,
            openstack_id=vm,
            flavor_name="large",
            memory_gib=4,
            vcpus=4,
            project_id="owner",
        )
        places = [host for host, (_, is_held) in zip(others, covered, strict=True) if is_held]
        for host in places:
            Host.objects.filter(pk=host.pk).update(
                effective_memory_bytes=F("effective_memory_bytes") + 4 * GIB,
                effective_vcpus=F("effective_vcpus") + 4,
            )
            spare = make_failover_slot(f"of {host.name}", host, [row], memory_gib=4)
            Reservation.objects.filter(pk=spare.pk).update(vcpus=4, blocked_vcpus=4)
        rebuild_host_capacity()
        reconcile_hosts()
        lose(home, home_is)
        reset_host_table()
        names = offered(vm, [home, *others], "large", "owner", holds_room=False)
        is_lost = home_is in {"down", "fenced"}
        assert (home.name in names) is not is_lost
        for host, (free, is_held) in zip(others, covered, strict=True):
            attempt = transaction.savepoint()
            answer = placement.allocate(
                vm, {host.openstack_id: size}, project_id="owner", generation=1
            )
            transaction.savepoint_rollback(attempt)
            assert (answer.status == 204) is (host.name in names), answer.content
            assert (host.name in names) is (free == 4 or (is_held and is_lost))


def lose(host: Host, how: str) -> None:
    """Let a host be up, down or fenced, or let its agent be silent for so long as to be down."""
    if how == "down":
        Host.objects.filter(pk=host.pk).update(state="down")
    elif how == "fenced":
        fence_host(host.name)
    elif how == "silent":
        enrolled(host.name)
        HostLease.objects.update(liveness="down")


def free_by_sums(room: HostCapacity) -> ResourceVector:
    """Return what a host has beside what VMs and holds take, each in full."""
    kinds = ("allocated", *KINDS)
    return ResourceVector(
        memory_bytes=room.effective_memory_bytes
        - sum(getattr(room, f"{kind}_memory_bytes") for kind in kinds),
        vcpus=room.effective_vcpus - sum(getattr(room, f"{kind}_vcpus") for kind in kinds),
    )
