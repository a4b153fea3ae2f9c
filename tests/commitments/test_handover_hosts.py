"""Slots change their project only where the new one's VMs could be (spec liquid, 11.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import Reservation
from commitments.domain.changeset import CommitmentChange
from commitments.models import Commitment
from commitments.services.change import ChangeOutcome, change_commitments
from hosts.models import Aggregate, Host, HostStatus
from tests.commitments.change_requests import ACTOR, NOW, RAM, change, request
from tests.examples import few
from tests.factories import make_domain, make_group, make_host, make_project, make_vm
from tests.ledger import assert_ledger_holds
from tests.process_tables import reset_host_table

A, B, C = (f"{letter * 8}-0000-4000-8000-000000000001" for letter in "abc")
EXTERNAL = "CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE"
DOMAINS = {"alpha": "monsoon3", "beta": "iaas-customer", "gamma": "monsoon3"}

pytestmark = pytest.mark.django_db


@dataclass(frozen=True)
class Room:
    """A host, who may be on it, and how many VMs run in slots of it."""

    gib: int = 4
    tenant: str = ""
    projects: tuple[str, ...] = ()
    is_external: bool = True
    is_enabled: bool = True
    vms: int = 0

    def takes(self, project: str) -> bool:
        """Whether slots of a project may be here, one rule after the other."""
        return (
            self.is_enabled
            and self.tenant in {"", project}
            and (not self.projects or project in self.projects)
            and (self.is_external or not DOMAINS[project].startswith("iaas-"))
        )


@contextmanager
def zone(*rooms: Room) -> Iterator[None]:
    """Give one example a zone of its own, filled with slots of alpha, and take it away again."""
    savepoint = transaction.atomic()
    savepoint._from_testcase = True  # type: ignore[attr-defined]  # set by Django itself
    with savepoint:
        make_group("hana_1", flavors=[("small", 1024, 1)])
        for project, domain in DOMAINS.items():
            make_domain(f"id-of-{domain}", name=domain)
            make_project(project, domain_id=f"id-of-{domain}")
        for number, room in enumerate(rooms):
            make_host(f"h{number}", zone="az-a", memory_gib=room.gib, vcpus=room.gib)
        units = sum(room.gib for room in rooms)
        assert send({"alpha": [change(A, units)]}).rejection_reason == ""
        for number, room in enumerate(rooms):
            _settle(Host.objects.get(name=f"h{number}"), room)
        rebuild_host_capacity()
        yield
        transaction.set_rollback(True)
    reset_host_table()


def _settle(host: Host, room: Room) -> None:
    """Let some VMs run in slots of a host, and close it to others."""
    for slot in Reservation.objects.filter(target_host=host)[: room.vms]:
        make_vm(host=host, slot=slot, memory_gib=1, vcpus=1, project_id="alpha")
    uuid = f"aggregate-of-{host.name}"
    if room.tenant:
        Aggregate.objects.create(uuid=uuid, name=uuid, metadata={"filter_tenant_id": room.tenant})
    Host.objects.filter(pk=host.pk).update(
        aggregate_uuids=[uuid] if room.tenant else [],
        allowed_projects=list(room.projects),
        traits=[EXTERNAL] if room.is_external else [],
        status=HostStatus.ENABLED if room.is_enabled else HostStatus.DISABLED,
    )


def send(by_project: Mapping[str, Sequence[CommitmentChange]]) -> ChangeOutcome:
    """Send one request, each project in its domain."""
    asked = request({project: {RAM: changes} for project, changes in by_project.items()})
    projects = {
        project: replace(changes, domain_id=f"id-of-{DOMAINS[project]}")
        for project, changes in asked.by_project.items()
    }
    return change_commitments(
        replace(asked, by_project=projects), actor=ACTOR, request_id="request-1", now=NOW
    )


def transfer(units: int, project: str = "beta") -> str:
    """Move the commitment to another project as Limes does; return why not."""
    outcome = send(
        {"alpha": [change(A, units, None, old="confirmed")], project: [change(A, units)]}
    )
    return outcome.rejection_reason


def hosts_of(project: str) -> list[str]:
    rows = Reservation.objects.filter(project_id=project, target_host__isnull=False)
    return sorted(rows.values_list("target_host__name", flat=True))


@pytest.mark.parametrize(
    "closed",
    [
        pytest.param({"tenant": "alpha"}, id="aggregate of the old project"),
        pytest.param({"projects": ("alpha",)}, id="host of the old project"),
        pytest.param({"is_external": False}, id="not for customers of that domain"),
        pytest.param({"is_enabled": False}, id="disabled"),
    ],
)
class TestClosedHost:
    def test_a_transfer_places_the_slots_of_a_closed_host_anew(self, closed: dict) -> None:  # type: ignore[type-arg]
        with zone(Room(**closed)):
            make_host("h9", zone="az-a", memory_gib=4, vcpus=4, traits=[EXTERNAL])
            assert transfer(4) == ""
            assert (hosts_of("beta"), hosts_of("alpha")) == (["h9"] * 4, [])
            assert_ledger_holds()

    def test_a_transfer_is_refused_where_only_closed_hosts_have_room(self, closed: dict) -> None:  # type: ignore[type-arg]
        with zone(Room(**closed)):
            assert "insufficient capacity: 0/4" in transfer(4)
            assert (hosts_of("beta"), hosts_of("alpha")) == ([], ["h0"] * 4)

    def test_freed_slots_of_a_closed_host_go_to_nobody_else(self, closed: dict) -> None:  # type: ignore[type-arg]
        """Consumption by another project: a part of what alpha gives up is beta's."""
        with zone(Room(**closed), Room()):
            outcome = send(
                {
                    "alpha": [change(A, 8, "superseded", old="confirmed"), change(B, 4)],
                    "beta": [change(C, 4)],
                }
            )
            assert outcome.rejection_reason == ""
            assert hosts_of("beta") == ["h1"] * 4
            assert_ledger_holds()

    def test_a_large_slot_of_a_closed_host_is_not_cut(self, closed: dict) -> None:  # type: ignore[type-arg]
        with zone(Room(**closed)):
            Reservation.objects.exclude(pk=Reservation.objects.order_by("pk")[0].pk).delete()
            Reservation.objects.update(memory_bytes=4 << 30, vcpus=4)
            rebuild_host_capacity()
            outcome = send(
                {
                    "alpha": [change(A, 4, "superseded", old="confirmed"), change(B, 1)],
                    "beta": [change(C, 3)],
                }
            )
            assert "insufficient capacity: 0/3" in outcome.rejection_reason
            assert hosts_of("alpha") == ["h0"]


def test_slots_of_open_hosts_stay_where_they_are() -> None:
    with zone(Room(tenant="alpha", gib=2), Room(gib=2)):
        make_host("h9", zone="az-a", memory_gib=2, vcpus=2, traits=[EXTERNAL])
        stay = set(Reservation.objects.filter(target_host__name="h1").values_list("pk", flat=True))
        assert transfer(4) == ""
        assert hosts_of("beta") == ["h1", "h1", "h9", "h9"]
        kept = Reservation.objects.filter(target_host__name="h1").values_list("pk", flat=True)
        assert set(kept) == stay


rooms = st.builds(
    Room,
    gib=st.integers(1, 4),
    tenant=st.sampled_from(["", "", "alpha", "beta"]),
    projects=st.sampled_from([(), (), ("alpha",), ("alpha", "beta")]),
    is_external=st.sampled_from([True, True, False]),
    is_enabled=st.sampled_from([True, True, True, False]),
    vms=st.integers(0, 2),
)


@given(filled=st.lists(rooms, min_size=1, max_size=4), project=st.sampled_from(["beta", "gamma"]))
@few(15)
def test_a_transfer_is_accepted_if_and_only_if_open_hosts_have_room(
    filled: list[Room], project: str
) -> None:
    """The oracle counts slots of one unit on hosts that the rules allow, one host at a time."""
    spare = Room(gib=3)
    with zone(*filled):
        make_host("h9", zone="az-a", memory_gib=spare.gib, vcpus=spare.gib, traits=[EXTERNAL])
        units = sum(room.gib for room in filled)
        open_rooms = [room for room in [*filled, spare] if room.takes(project)]
        has_room = sum(room.gib - min(room.vms, room.gib) for room in open_rooms) >= units
        before = slots_by_host()
        assert (transfer(units, project) == "") is has_room
        allowed = {f"h{n}" for n, room in enumerate(filled) if room.takes(project)} | {"h9"}
        assert set(hosts_of(project)) <= allowed
        if has_room:
            assert hosts_of("alpha") == []
            for name, slots in before.items():
                assert name not in allowed or slots <= slots_by_host().get(name, set()), name
        else:
            assert slots_by_host() == before
        assert Commitment.objects.get().project_id == (project if has_room else "alpha")
        assert_ledger_holds()


def slots_by_host() -> dict[str, set[int]]:
    """Return the slots without VMs, by host."""
    found: dict[str, set[int]] = {}
    rows = Reservation.objects.filter(allocations__isnull=True, target_host__isnull=False)
    for name, key in rows.values_list("target_host__name", "pk"):
        found.setdefault(name, set()).add(key)
    return found
