"""Every path that places a slot asks what admission asks (spec commitments, 9.5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from capacity.figures.probe_pipelines import current_probes
from capacity.figures.zone_capacity import zone_figures
from capacity.groups.reading import load_group_definitions
from capacity.guard.slot_eviction import place_elsewhere
from capacity.host_table import current_host_table
from capacity.ledger.placing import weigh_hosts
from capacity.models import (
    FlavorGroup,
    FlavorGroupSettings,
    FlavorGroupSnapshot,
    GroupCapacity,
    Reservation,
)
from capacity.nova.pipelines import ensure_shipped_pipelines
from capacity.nova.slot_requests import held_slot, places_elsewhere
from commitments.domain.timeline import HostChange, HostEdit, with_host_changes
from commitments.models import Commitment
from commitments.selectors.compaction import AskBook
from commitments.selectors.timeline import displaced_by
from commitments.services.admission import read_snapshot
from failover.domain.drain import MoveKind
from failover.selectors.drain import check_drain
from hosts.models import (
    Aggregate,
    Domain,
    Flavor,
    Host,
    HostStatus,
    Instance,
    Project,
    ServerGroup,
)
from scheduling.resources import GIB
from tests.commitments.change_requests import change, decide_ram
from tests.examples import few
from tests.factories import (
    make_commitment,
    make_domain,
    make_group,
    make_host,
    make_project,
    make_slot,
    make_vm,
)

A = "aaaaaaaa-0000-4000-8000-000000000001"
PROJECT, SOURCE, GROUP = "alpha", "src", "hana_1"
GENERAL = "kvm-general-purpose-load-balancing"
EXTERNAL = "CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE"
ACCELERATORS = "COMPUTE_ACCELERATORS"
SIZE_GIB = 8
QEMU = {"capabilities:hypervisor_type": "qemu"}
EVERY_TABLE = (
    Reservation,
    Commitment,
    Instance,
    ServerGroup,
    GroupCapacity,
    FlavorGroup,
    FlavorGroupSettings,
    FlavorGroupSnapshot,
    Flavor,
    Host,
    Aggregate,
    Project,
    Domain,
)

pytestmark = pytest.mark.django_db


@dataclass(frozen=True)
class Room:
    """A host that a slot may go to, or not."""

    arch: str = "x86_64"
    traits: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    tenants: str = ""
    is_enabled: bool = True
    free_gib: int = SIZE_GIB
    own_slot: bool = False


@dataclass(frozen=True)
class World:
    """Hosts beside the source, and a slot on it."""

    hosts: tuple[Room, ...]
    specs: tuple[tuple[str, str], ...] = ()
    domain: str | None = "monsoon3"
    pipeline: str = ""

    def make(self, settings: Any) -> Reservation:
        """Write it."""
        slots = settings.HEADROOM.slots.model_copy(
            update={"group_pipelines": {"*": self.pipeline} if self.pipeline else {}}
        )
        settings.HEADROOM = settings.HEADROOM.model_copy(update={"slots": slots})
        for table in EVERY_TABLE:
            table._default_manager.all().delete()
        make_group(GROUP, flavors=[("f", SIZE_GIB * 1024, 2)])
        Flavor.objects.update(extra_specs={**QEMU, "quota:hw_version": GROUP, **dict(self.specs)})
        Domain.objects.all().delete()
        if self.domain is not None:
            make_domain("domain-1", name=self.domain)
        make_project(PROJECT)
        commitment = make_commitment(
            "bbbbbbbb-0000-4000-8000-000000000002",
            amount_gib=SIZE_GIB,
            project_id=PROJECT,
            group=GROUP,
        )
        for number, host in enumerate(self.hosts):
            make_host(
                f"h{number}",
                memory_gib=host.free_gib,
                cpu_arch=host.arch,
                traits=list(host.traits),
                allowed_projects=list(host.projects),
                status=HostStatus.ENABLED if host.is_enabled else HostStatus.DISABLED,
            )
            if host.tenants:
                uuid = f"agg-{number}"
                Aggregate.objects.create(
                    uuid=uuid, name=uuid, metadata={"filter_tenant_id": host.tenants}
                )
                Host.objects.filter(name=f"h{number}").update(aggregate_uuids=[uuid])
            if host.own_slot:
                self._slot(commitment, f"h{number}")
        make_host(SOURCE, memory_gib=SIZE_GIB)
        return self._slot(commitment, SOURCE)

    def _slot(self, commitment: Commitment, host: str) -> Reservation:
        return make_slot(
            commitment,
            Host.objects.get(name=host),
            flavor_name="f",
            memory_gib=SIZE_GIB,
            vcpus=2,
            project_id=PROJECT,
            domain_id="domain-1",
        )

    def fits(self) -> set[str]:
        """Return the hosts that may take the slot, one rule after the other."""
        return {
            f"h{number}"
            for number, host in enumerate(self.hosts)
            if self.suits(host) and self.is_allowed(host)
        }

    def suits(self, host: Room) -> bool:
        """Whether hardware and room are those of the flavor."""
        specs = dict(self.specs)
        return (
            host.is_enabled
            and specs.get("capabilities:cpu_arch", host.arch) == host.arch
            and (specs.get("trait:T") != "required" or "T" in host.traits)
            and (specs.get("trait:T") != "forbidden" or "T" not in host.traits)
            and ("accel:device_profile" not in specs or ACCELERATORS in host.traits)
            and host.free_gib >= SIZE_GIB
            and not host.own_slot
        )

    def is_allowed(self, host: Room) -> bool:
        """Whether the project may be there."""
        return (
            self.domain is not None
            and (not self.domain.startswith("iaas-") or EXTERNAL in host.traits)
            and (not host.projects or PROJECT in host.projects)
            and (not host.tenants or host.tenants == PROJECT)
        )


rooms = st.builds(
    Room,
    arch=st.sampled_from(["x86_64", "x86_64", "aarch64"]),
    traits=st.sets(st.sampled_from([EXTERNAL, ACCELERATORS, "T"]), max_size=3).map(
        lambda traits: tuple(sorted(traits))
    ),
    projects=st.sampled_from([(), (), (PROJECT,), ("other",)]),
    tenants=st.sampled_from(["", "", PROJECT, "other"]),
    is_enabled=st.sampled_from([True, True, True, False]),
    free_gib=st.sampled_from([SIZE_GIB, SIZE_GIB, SIZE_GIB - 1]),
    own_slot=st.sampled_from([False, False, False, True]),
)
specs = st.sets(
    st.sampled_from(
        [
            ("capabilities:cpu_arch", "aarch64"),
            ("trait:T", "required"),
            ("accel:device_profile", "gpu"),
        ]
    ),
    max_size=2,
).map(lambda chosen: tuple(sorted(chosen)))
worlds = st.builds(
    World,
    hosts=st.lists(rooms, min_size=1, max_size=4).map(tuple),
    specs=specs,
    domain=st.sampled_from(["monsoon3", "monsoon3", "iaas-1", None]),
    pipeline=st.sampled_from(["", GENERAL]),
)


def evicted(slot: Reservation) -> set[str]:
    found = place_elsewhere(Host.objects.get(name=SOURCE), [slot.pk])
    return {str(decision.host_name) for decision in found.values()}


def relocated(slot: Reservation) -> set[str]:
    found = places_elsewhere([slot], [SOURCE])
    return {str(decision.host_name) for decision in found.values()}


def displaced(_slot: Reservation) -> set[str]:
    source = Host.objects.get(name=SOURCE)
    gone = HostChange(edit=HostEdit.DRAINED, host_id=source.pk, displaced=displaced_by([source.pk]))
    after = with_host_changes(read_snapshot(rooms={}, cores={}), [gone]).aftermath
    return names(moved.host_id for moved in after.rehoused)


def drained(_slot: Reservation) -> set[str]:
    report = check_drain([SOURCE], now=timezone.now()).report
    return {move.to_host for move in report.moves if move.kind is MoveKind.COMMITTED_SLOT}


def admitted(_slot: Reservation) -> set[str]:
    decide_ram(PROJECT, change(A, SIZE_GIB))
    made = Reservation.objects.filter(commitment__commitment_uuid=A, target_host__isnull=False)
    return names(made.values_list("target_host_id", flat=True))


def names(ids: Iterable[int | None]) -> set[str]:
    return set(Host.objects.filter(pk__in=list(ids)).values_list("name", flat=True))


PATHS = (evicted, relocated, displaced, drained, admitted)


@pytest.fixture
def _pipelines() -> None:
    ensure_shipped_pipelines(request_id="test")


def movable_to(slot: Reservation) -> set[str]:
    """Return the hosts to which the freeing of hosts may move a slot."""
    table, held = current_host_table(), held_slot(slot)
    ask = AskBook([held], table).ask_for(held)
    assert ask is not None
    passing, _ = weigh_hosts(table, ask)
    return {name for name, passes in zip(table.names, passing, strict=True) if passes}


def counted() -> int:
    """Return on how many hosts the capacity probe counts room for the flavor."""
    groups = [load_group_definitions()[GROUP]]
    figures = zone_figures(current_host_table(), "az-a", groups, current_probes())
    return figures.groups[GROUP].flavors[0].placeable_hosts


@pytest.mark.usefixtures("_pipelines")
def test_every_path_takes_a_host_that_admission_would_accept(settings: Any) -> None:
    @few(10, suppress_health_check=list(HealthCheck))
    @given(world=worlds)
    def check(world: World) -> None:
        slot = world.make(settings)
        allowed = world.fits()
        assert counted() == sum(world.suits(host) for host in world.hosts)
        if not world.pipeline:  # slots of a group whose pipeline spreads stay
            assert movable_to(slot) == allowed
        for path in PATHS:
            found = path(slot)
            assert found <= allowed, path.__name__
            assert len(found) == min(1, len(allowed)), path.__name__

    check()


AARCH64 = (("capabilities:cpu_arch", "aarch64"),)
CASES = {
    "architecture": World(hosts=(Room(), Room(arch="aarch64")), specs=AARCH64),
    "customer domain": World(hosts=(Room(), Room(traits=(EXTERNAL,))), domain="iaas-1"),
    "customer domain, pipeline of the group": World(
        hosts=(Room(), Room(traits=(EXTERNAL,))), domain="iaas-1", pipeline=GENERAL
    ),
    "tenants of aggregates": World(hosts=(Room(tenants="other"), Room(tenants=PROJECT))),
    "accelerators": World(
        hosts=(Room(), Room(traits=(ACCELERATORS,))), specs=(("accel:device_profile", "gpu"),)
    ),
    "own slot stays locked": World(hosts=(Room(own_slot=True), Room())),
}


@pytest.mark.usefixtures("_pipelines")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
@pytest.mark.parametrize("case", CASES)
def test_a_path_takes_the_one_host_that_will_do(settings: Any, path: Any, case: str) -> None:
    assert path(CASES[case].make(settings)) == {"h1"}


@pytest.mark.usefixtures("_pipelines")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_nowhere_is_safe_for_a_domain_that_nobody_knows(settings: Any, path: Any) -> None:
    assert path(World(hosts=(Room(),), domain=None).make(settings)) == set()


@pytest.mark.parametrize("pipeline", ["", GENERAL])
@pytest.mark.usefixtures("_pipelines")
def test_room_is_counted_where_a_slot_may_go(settings: Any, pipeline: str) -> None:
    hosts = (Room(), Room(arch="aarch64"))
    World(hosts=hosts, specs=AARCH64, pipeline=pipeline).make(settings)
    assert counted() == 1


@pytest.mark.usefixtures("_pipelines")
def test_a_drained_slot_goes_where_the_vm_in_it_may_run(settings: Any) -> None:
    slot = World(hosts=(Room(), Room())).make(settings)
    source = Host.objects.get(name=SOURCE)
    inside = make_vm("a", source, slot=slot, project_id=PROJECT, flavor_extra_specs=QEMU)
    other = Host.objects.get(name="h0")
    Host.objects.filter(pk=other.pk).update(effective_memory_bytes=64 * GIB)
    twin = make_vm("b", other, project_id=PROJECT)
    make_server_group(inside, twin)
    assert drained(slot) == {"h1"}


@pytest.mark.usefixtures("_pipelines")
def test_a_vm_of_a_host_that_goes_keeps_its_server_group(settings: Any) -> None:
    World(hosts=(Room(), Room())).make(settings)
    source = Host.objects.get(name=SOURCE)
    Reservation.objects.all().delete()
    fields: dict[str, Any] = {
        "project_id": PROJECT,
        "flavor_extra_specs": QEMU,
        "memory_gib": 1,
    }
    moving = make_vm("a", source, **fields)
    make_server_group(moving, make_vm("b", Host.objects.get(name="h0"), **fields))
    assert displaced(Reservation()) == {"h1"}


def make_server_group(*vms: Instance) -> None:
    ServerGroup.objects.create(
        openstack_id="group", policy="anti-affinity", members=[vm.openstack_id for vm in vms]
    )
