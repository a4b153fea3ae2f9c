"""Slots that the agents of their hosts will not make go elsewhere (spec hosts, D.8, D.14)."""

from __future__ import annotations

import pytest

from capacity.ledger.readiness import agree_with_agents
from capacity.models import LeavingRoom, Reservation
from commitments.models import CommitmentEvent
from commitments.services.verification import VerificationReport
from hosts.agents.models import AgentMode, HostAgent, HostLease
from hosts.agents.workload_models import Workload
from hosts.domain.workloads import MOST_ATTEMPTS
from hosts.models import Host
from tests.capacity.test_agent_slots import follow
from tests.commitments.slot_worlds import accepted_slot, put_into, verify, vm_on
from tests.hosts.agents.agents import enrolled
from tests.ledger import assert_rooms_add_up

pytestmark = pytest.mark.django_db


@pytest.fixture
def slot(host_1: Host) -> Reservation:
    """Return a slot that an agent was asked to make."""
    enrolled("host-1")
    HostAgent.objects.update(mode=AgentMode.ENFORCE)
    HostLease.objects.update(liveness="up")
    made = accepted_slot(host_1)
    look()
    return made


def look() -> None:
    follow()
    agree_with_agents()


def stands(slot: Reservation) -> tuple[str, bool | None]:
    slot.refresh_from_db()
    return (slot.target_host.name if slot.target_host else "", slot.is_ready)


def test_a_slot_leaves_an_agent_that_is_down_and_did_not_make_it(
    slot: Reservation, host_new: Host
) -> None:
    assert verify() == VerificationReport()
    assert stands(slot) == ("host-1", None)
    HostLease.objects.update(liveness="suspect")
    assert verify() == VerificationReport()
    HostLease.objects.update(liveness="down")
    Workload.objects.update(state="lost")

    assert verify(is_full=False).events == {"slots_moved": 1}

    assert stands(slot) == ("host-new", True)
    assert_rooms_add_up()
    event = CommitmentEvent.objects.get()
    assert event.action == "slot_left_agent"
    assert event.reason == "slot 0: moved to host-new: host host-1 has an agent that is down"
    look()
    assert [row.state for row in Workload.objects.all()] == ["deleting"]
    HostLease.objects.update(liveness="up")
    look()
    assert verify() == VerificationReport()
    assert Workload.objects.count() == 1


def test_what_an_agent_made_stays_when_it_is_down(slot: Reservation, host_new: Host) -> None:
    Workload.objects.update(state="deployed")
    look()
    HostLease.objects.update(liveness="down")
    assert verify() == VerificationReport()
    assert stands(slot) == ("host-1", True)


def test_a_slot_leaves_an_agent_that_failed_for_good(slot: Reservation, host_new: Host) -> None:
    for attempt in range(1, MOST_ATTEMPTS + 1):
        Workload.objects.update(state="failed", error="no pages", attempt=attempt)
        agree_with_agents()
        assert stands(slot) == ("host-1", False)
        moves = {"slots_moved": 1} if attempt == MOST_ATTEMPTS else {}
        assert verify().events == moves
    assert stands(slot) == ("host-new", True)
    assert not LeavingRoom.objects.exists()
    (line,) = CommitmentEvent.objects.values_list("reason", flat=True)
    assert line.endswith("host host-1 has an agent that could not make it")
    assert_rooms_add_up()


def test_a_slot_without_another_place_stays_and_is_made_when_the_agent_is_back(
    slot: Reservation,
) -> None:
    HostLease.objects.update(liveness="down")
    Workload.objects.update(state="lost")
    assert verify() == VerificationReport()
    assert stands(slot) == ("host-1", None)
    HostLease.objects.update(liveness="up")
    look()
    row = Workload.objects.get()
    assert (row.state, row.attempt) == ("pending", 2)


def test_a_slot_with_vms_stays_with_them(slot: Reservation, host_1: Host, host_new: Host) -> None:
    put_into(slot, vm_on(host_1).openstack_id, minutes=30, is_confirmed=True)
    HostLease.objects.update(liveness="down")
    assert verify() == VerificationReport()
