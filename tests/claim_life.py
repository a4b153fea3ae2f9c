"""What happens to a small cloud whose Placement is Headroom: moves, and what must hold after each.

Nova claims over HTTP, Limes changes commitments, lists of VMs come late, tasks run. All that a move
needs to know it reads from the database, so that several clients may make moves at once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from threading import get_ident
from typing import Any
from uuid import UUID, uuid5

from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import Reservation, ReservationKind
from capacity.nova.in_flight import end_expired
from capacity.nova.scheduling import run_scheduling
from capacity.tasks import end_in_flight
from commitments.models import Commitment
from commitments.services.compaction import compact_zone
from commitments.services.repair import repair_due_commitments
from commitments.services.verification import verify_slots
from failover.models import FailoverZone
from failover.services.evacuation import settle_evacuations
from failover.services.loop import reconcile_zone
from hosts.models import Host, Region
from hosts.region.run import ImportOptions
from hosts.services.region_import import import_region
from journal.actors import Actor
from journal.errors import HeadroomError
from placement.models import Allocation, Consumer, ProjectUsage
from placement.tasks import reconcile_hosts
from scheduling.intents import CallOptions, Intent
from scheduling.request import PlacementRequest
from scheduling.resources import GIB
from tests.claims import assert_claims_are_the_ledger
from tests.commitments.change_requests import change, decide
from tests.factories import make_group, make_host, make_project
from tests.failover.zones import require
from tests.placement.client import PlacementClient, consumer_body

ZONE = "az-a"
ACTOR = Actor(name="test")
PIPELINE = "kvm-general-purpose-load-balancing"
HOSTS = {"h0": (6, 8), "h1": (8, 8), "h2": (8, 12), "h3": (5, 5)}
#: Group, GiB, vCPUs. Two flavors are alike in all but their group.
FLAVORS = {
    "tiny": ("general", 1, 1),
    "small": ("general", 2, 2),
    "large": ("general", 4, 4),
    "alike": ("special", 2, 2),
    "thin": ("special", 1, 2),
}
PROJECTS = ("owner", "owner", "stranger")
NAMES = UUID("00000000-0000-4000-8000-0000000000aa")
VMS = tuple(str(uuid5(NAMES, f"vm {number}")) for number in range(9))
COMMITMENTS = {
    f"{letter * 8}-0000-4000-8000-000000000001": group
    for letter, group in zip("abcd", ["general", "general", "special", "general"], strict=True)
}
OWNERS = dict(zip(COMMITMENTS, ["owner", "owner", "owner", "stranger"], strict=True))
MIB_OF_GIB = 1024

Listed = dict[str, tuple[str, str]]


def project_of(vm: str) -> str:
    return PROJECTS[VMS.index(vm) % len(PROJECTS)]


def migration_of(vm: str) -> str:
    return str(uuid5(NAMES, f"migration of {vm}"))


def asked(flavor: str) -> dict[str, int]:
    _, gib, vcpus = FLAVORS[flavor]
    return {"MEMORY_MB": gib * MIB_OF_GIB, "VCPU": vcpus}


@dataclass(slots=True)
class Cloud:
    """A cloud and its moves. A move that makes no sense now does nothing.

    Attributes:
        folder: Where lists of VMs are written.
        flavors: VM to the flavor that it was asked for last.
        lists: Lists of VMs as they were taken, the newest last, with the time.
        is_alone: Whether no other client makes moves meanwhile.
    """

    folder: Path
    is_alone: bool = True
    flavors: dict[str, str] = field(default_factory=dict)
    lists: list[tuple[datetime, Listed]] = field(default_factory=list)
    uuids: dict[str, str] = field(default_factory=dict)

    def build(self, *, failover: bool) -> None:
        for project in set(PROJECTS):
            make_project(project)
        for group in ("general", "special"):
            chosen = [(name, *FLAVORS[name][1:]) for name in FLAVORS if FLAVORS[name][0] == group]
            flavors = [(name, gib * MIB_OF_GIB, vcpus) for name, gib, vcpus in chosen]
            make_group(group, flavors=flavors, ram_unit_gib=1)
        for name, (gib, vcpus) in HOSTS.items():
            self.uuids[name] = make_host(name, zone=ZONE, memory_gib=gib, vcpus=vcpus).openstack_id
        if failover:
            require(any=1)
        rebuild_host_capacity()
        reconcile_hosts()

    # What Nova does

    @staticmethod
    def client() -> PlacementClient:
        return PlacementClient(version="1.28", X_Roles="admin,service")

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """Return what a consumer holds, by name of the host."""
        names = {uuid: name for name, uuid in self.uuids.items()}
        held: defaultdict[str, dict[str, int]] = defaultdict(dict)
        rows = Allocation.objects.filter(consumer__uuid=consumer).select_related(
            "provider", "resource_class"
        )
        for row in rows.order_by("pk"):
            held[names[str(row.provider.uuid)]][row.resource_class.name] = row.used
        return dict(held)

    def body(self, vm: str, consumer: str, held: dict[str, dict[str, int]]) -> dict[str, Any]:
        known = Consumer.objects.filter(uuid=consumer).first()
        by_uuid = {self.uuids[name]: amounts for name, amounts in held.items()}
        generation = known.generation if known else None
        return consumer_body(by_uuid, generation=generation, project_id=project_of(vm))

    def put(self, vm: str, held: dict[str, dict[str, int]]) -> bool:
        return self.took(self.client().put(f"/allocations/{vm}", self.body(vm, vm, held)), vm)

    def post(self, vm: str, bodies: dict[str, Any]) -> bool:
        return self.took(self.client().post("/allocations", bodies), vm)

    def took(self, answer: Any, vm: str) -> bool:
        """Return whether a write was granted; a VM that landed is in flight nowhere."""
        allowed = {204, 409} if self.is_alone else {204, 409, 503}
        assert answer.status in allowed, answer.content
        if answer.status == 409 and self.is_alone:
            assert "Unable to allocate inventory" in answer.error["detail"], answer.content
        if self.is_alone and answer.status == 204:
            flights = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT, vm_uuid=vm)
            assert not flights.exists()
        return bool(answer.status == 204)

    def boot(self, vm: str, flavor: str, host: str) -> None:
        if not self.held(vm) and self.put(vm, {host: asked(flavor)}):
            self.flavors[vm] = flavor

    def schedule(self, vm: str, flavor: str) -> None:
        """Ask for hosts as the shipped filter does, and claim none."""
        held = self.held(vm)
        self.answer_of(vm, flavor, Intent.LIVE_MIGRATION if held else Intent.CREATE)

    def answer_of(self, vm: str, flavor: str, intent: Intent) -> tuple[str, ...]:
        group, gib, vcpus = FLAVORS[flavor]
        request = PlacementRequest(
            request_key=vm,
            memory_bytes=gib * GIB,
            vcpus=vcpus,
            project_id=project_of(vm),
            flavor_name=flavor,
            intent=intent,
            extra_specs={"capabilities:hypervisor_type": "qemu", "quota:hw_version": group},
        )
        result = run_scheduling(
            request,
            pipeline_name=PIPELINE,
            options=CallOptions(max_candidates=2),
            actor=Actor(name="nova"),
            request_id="req-1",
        )
        return result.host_names

    def boot_where_told(self, vm: str, flavor: str) -> None:
        """Boot on the best host that the scheduler answers, which grants it while all is quiet."""
        if self.held(vm):
            return
        hosts = self.answer_of(vm, flavor, Intent.CREATE)
        if hosts:
            granted = self.put(vm, {hosts[0]: asked(flavor)})
            assert granted or not self.is_alone
            if granted:
                self.flavors[vm] = flavor

    def delete(self, vm: str) -> None:
        """Delete a VM, twice, as Nova may."""
        is_there = bool(self.held(vm))
        for _ in range(2):
            status = self.client().delete(f"/allocations/{vm}").status
            assert status == (204 if is_there else 404) or not self.is_alone
            is_there = False

    def leave_for(self, vm: str, host: str, flavor: str) -> None:
        """Begin a move or resize: the migration holds the old place, the VM claims the new one."""
        migration, held = migration_of(vm), self.held(vm)
        if not held or self.held(migration):
            return
        handed = {vm: self.body(vm, vm, {}), migration: self.body(vm, migration, held)}
        if not self.post(vm, handed):
            assert not self.is_alone
            return
        if self.put(vm, {host: asked(flavor)}):
            self.flavors[vm] = flavor
        else:
            self.revert(vm)

    def confirm(self, vm: str) -> None:
        self.client().delete(f"/allocations/{migration_of(vm)}")

    def revert(self, vm: str) -> None:
        migration = migration_of(vm)
        held = self.held(migration)
        if not held:
            return
        back = {vm: self.body(vm, vm, held), migration: self.body(vm, migration, {})}
        granted = self.post(vm, back)
        assert granted or not self.is_alone
        if granted:
            amounts = next(iter(held.values()))
            self.flavors[vm] = next(name for name in FLAVORS if asked(name) == amounts)

    def evacuate(self, vm: str, host: str) -> None:
        """Claim a second host for a VM whose own is down."""
        held = self.held(vm)
        if len(held) != 1 or host in held or vm not in self.flavors:
            return
        Host.objects.filter(name__in=held).update(state="down")
        self.put(vm, {host: asked(self.flavors[vm]), **held})

    def drop_part(self, vm: str) -> None:
        """Give up the host that is down, as nova-compute does when it comes back."""
        held = self.held(vm)
        down = set(Host.objects.filter(state="down").values_list("name", flat=True))
        kept = {name: amounts for name, amounts in held.items() if name not in down}
        if len(held) > 1 and kept:
            granted = self.put(vm, kept)
            assert granted or not self.is_alone

    def swap(self, one: str, other: str) -> None:
        """Let two VMs trade places, each with its own size."""
        held, others = self.held(one), self.held(other)
        if one == other or len(held) != 1 or len(others) != 1:
            return
        (here, amounts), (there, other_amounts) = *held.items(), *others.items()
        self.post(
            one,
            {
                one: self.body(one, one, {there: amounts}),
                other: self.body(other, other, {here: other_amounts}),
            },
        )

    def claim_too_much(self, vm: str, host: str) -> None:
        if not self.held(vm):
            assert not self.put(vm, {host: {"MEMORY_MB": 99 * MIB_OF_GIB, "VCPU": 1}})

    # What Limes, hosts, lists and tasks do

    def commit(self, uuid: str, gib: int) -> None:
        """Ask for an amount, larger or smaller than what is promised now; 0 ends it."""
        known = Commitment.objects.filter(commitment_uuid=uuid, state="confirmed").exists()
        old, new = "confirmed" if known else None, "confirmed" if gib else None
        if old is new is None:
            return
        resource = f"hw_version_{COMMITMENTS[uuid]}_ram"
        now = timezone.now()
        wanted = change(uuid, gib or 1, new, old=old, expires_at=now + timedelta(days=365))
        with self.busy_is_fine():
            decide({OWNERS[uuid]: {resource: [wanted]}}, now=now)

    def host_is(self, host: str, state: str) -> None:
        Host.objects.filter(name=host).update(state=state)

    def note_list(self) -> None:
        """Take a list of VMs as Nova has it now."""
        listed, now = {}, timezone.now()
        for vm in VMS:
            held = self.held(vm)
            if held and vm in self.flavors:
                listed[vm] = (min(held), self.flavors[vm])
        self.lists.append((now, listed))

    def pass_an_hour(self) -> None:
        """Let all that was claimed and listed be an hour older, so that newer lists know of it."""
        hour = timedelta(hours=1)
        Consumer.objects.update(updated_at=F("updated_at") - hour)
        self.lists = [(taken_at - hour, listed) for taken_at, listed in self.lists]
        for region in Region.objects.exclude(taken_at=""):
            region.taken_at = (datetime.fromisoformat(region.taken_at) - hour).isoformat()
            region.save()

    def import_list(self, age: int) -> None:
        """Import the list of VMs that was taken some lists ago; 0 is now."""
        if not age:
            self.note_list()
        if not self.lists:
            return
        taken_at, listed = self.lists[-1 - min(age, len(self.lists) - 1)]
        path = self.folder / f"servers-{get_ident()}.json"
        path.write_text(
            json.dumps(
                {
                    "about": {"taken_at": taken_at.isoformat()},
                    "compute": {
                        "servers": [
                            listed_server(vm, host, flavor) for vm, (host, flavor) in listed.items()
                        ]
                    },
                }
            )
        )
        options = ImportOptions(prune=True, accepts_shrink=True)
        with self.busy_is_fine():
            import_region(files=[path], actor=ACTOR, request_id="import", options=options)

    def verify(self, minutes: int) -> None:
        now = timezone.now() + timedelta(minutes=minutes)
        with self.busy_is_fine():
            verify_slots(
                actor=ACTOR, request_id="verify", now=now, is_full=True, believes_list=True
            )

    def repair(self) -> None:
        now = timezone.now() + timedelta(hours=2)
        with self.busy_is_fine():
            repair_due_commitments(actor=ACTOR, request_id="repair", now=now)

    def compact(self) -> None:
        with self.busy_is_fine():
            compact_zone(ZONE, actor=ACTOR, request_id="compact", now=timezone.now())

    def fail_over(self) -> None:
        FailoverZone.objects.update(confirmed_at=timezone.now())
        with self.busy_is_fine():
            reconcile_zone(ZONE, request_id="failover")
            settle_evacuations(actor=ACTOR, request_id="settle", now=timezone.now())

    def end_flights(self, *, all_of_them: bool) -> None:
        end_in_flight()
        if all_of_them:
            end_expired(timezone.now() + timedelta(hours=3))

    def reconcile(self) -> None:
        reconcile_hosts()

    @contextmanager
    def busy_is_fine(self) -> Iterator[None]:
        """Several clients may stand in each other's way; one alone may not."""
        try:
            yield
        except HeadroomError:
            if self.is_alone:
                raise


def listed_server(vm: str, host: str, flavor: str) -> dict[str, Any]:
    group, gib, vcpus = FLAVORS[flavor]
    return {
        "id": vm,
        "name": vm[:8],
        "status": "ACTIVE",
        "tenant_id": project_of(vm),
        "user_id": "u",
        "created": "2026-01-01T00:00:00Z",
        "updated": "2026-01-01T00:00:00Z",
        "flavor": {
            "original_name": flavor,
            "vcpus": vcpus,
            "ram": gib * MIB_OF_GIB,
            "disk": 0,
            "extra_specs": {
                "capabilities:hypervisor_type": "qemu",
                "quota:hw_version": group,
            },
        },
        "OS-EXT-AZ:availability_zone": ZONE,
        "OS-EXT-SRV-ATTR:host": host,
        "OS-EXT-SRV-ATTR:hypervisor_hostname": host,
        "OS-EXT-STS:vm_state": "active",
        "OS-EXT-STS:task_state": None,
        "OS-EXT-STS:power_state": 1,
        "image": "",
        "metadata": {},
    }


def assert_sound() -> None:
    """All that must hold at every instant, read from one state of the database."""
    with transaction.atomic(), connection.cursor() as cursor:
        if not connection.savepoint_ids:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        present = {str(uuid) for uuid in Consumer.objects.values_list("uuid", flat=True)}
        everyone = {*VMS, *map(migration_of, VMS)}
        assert_claims_are_the_ledger()
        assert_nobody_gone_is_seen(everyone - present)
        assert_projects_use_what_is_allocated()


def assert_nobody_gone_is_seen(gone: set[str]) -> None:
    """A VM without allocations was seen in no slot."""
    seen = Reservation.objects.filter(
        kind=ReservationKind.COMMITTED,
        allocations__state="confirmed",
        allocations__vm_uuid__in=gone,
    )
    assert not seen.exists(), list(seen)


def assert_projects_use_what_is_allocated() -> None:
    used: defaultdict[tuple[str, str], int] = defaultdict(int)
    rows = Allocation.objects.select_related("consumer__project", "resource_class")
    for row in rows.iterator():
        used[row.consumer.project.external_id, row.resource_class.name] += row.used
    kept: defaultdict[tuple[str, str], int] = defaultdict(int)
    for usage in ProjectUsage.objects.select_related("project", "resource_class"):
        if usage.resource_class is not None:
            kept[usage.project.external_id, usage.resource_class.name] += usage.used
    assert {key: amount for key, amount in kept.items() if amount} == dict(used)
