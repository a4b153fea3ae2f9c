"""What must hold in a whole region at every instant, and what a failover pass must leave.

The checks of tests look at every row here, each in one state of the database. They count one row
after the other, so that they can contradict the statements that count at once.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from django.db import connection, transaction

from capacity.models import HostCapacity, Reservation, ReservationAllocation, ReservationKind
from commitments.models import Commitment
from failover.domain.drill import simulate
from failover.domain.drill_state import DrillState
from failover.models import FailoverDecision, FailoverReservation
from failover.selectors.drills import drill_state
from failover.selectors.zone import failover_zones
from hosts.models import Instance
from journal.clock import database_now
from placement.models import Allocation, Inventory
from tests.claim_life import assert_projects_use_what_is_allocated
from tests.claims import (
    assert_rooms_follow_allocations,
    assert_slots_block_by_the_rule,
    assert_vms_in_slots_hold_allocations,
    committed_slots,
    held_by_consumers,
)
from tests.ledger import (
    assert_accepted_commitments_have_their_slots,
    assert_resources_add_up,
    assert_rooms_add_up,
)
from tests.placement.client import drift

PAIRS_OF_ZONE: Final = 2_000
TOLD: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check found.

    Attributes:
        looked_at: How many rows or cases it looked at.
        problem: What is wrong; empty where nothing is.
    """

    name: str
    looked_at: int
    seconds: float
    problem: str = ""


def look(*, is_settled: bool) -> list[Checked]:
    """Check one state of the database.

    Args:
        is_settled: Whether failover has done all that it can.
    """
    found = []
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        for name, check in (*ALWAYS.items(), *(SETTLED.items() if is_settled else ())):
            found.append(_checked(name, check))
    return found


def _checked(name: str, check: Callable[[], int]) -> Checked:
    began, looked_at, problem = time.perf_counter(), 0, ""
    try:
        looked_at = check()
    except AssertionError as error:
        problem = str(error)[:TOLD] or "an assertion without words"
    return Checked(
        name=name, looked_at=looked_at, seconds=time.perf_counter() - began, problem=problem
    )


def _rooms() -> int:
    assert_rooms_add_up()
    return HostCapacity.objects.count()


def _resources() -> int:
    assert_resources_add_up()
    return Reservation.objects.filter(kind=ReservationKind.COMMITTED).count()


def _commitments() -> int:
    assert_accepted_commitments_have_their_slots()
    return Commitment.objects.count()


def _blocks() -> int:
    assert_slots_block_by_the_rule()
    return Reservation.objects.filter(kind=ReservationKind.COMMITTED).count()


def _allocations() -> int:
    held = held_by_consumers()
    assert_rooms_follow_allocations(held)
    assert_vms_in_slots_hold_allocations(held, committed_slots())
    return len(held)


def _inventories() -> int:
    different = drift()
    assert not different, different[:5]  # noqa: S101 - a check of tests
    return Inventory.objects.count()


def _projects() -> int:
    assert_projects_use_what_is_allocated()
    return Allocation.objects.count()


def _failover_rows() -> int:
    held = set(
        Reservation.objects.filter(kind=ReservationKind.FAILOVER).values_list("pk", flat=True)
    )
    known = set(FailoverReservation.objects.values_list("reservation_id", flat=True))
    assert held == known, held ^ known  # noqa: S101 - as above
    return len(held)


def _failover_rules() -> int:
    """Look at each VM: its host, its slots' hosts and those of all who share one differ."""
    hosts, users = _failover_users()
    of_vm: defaultdict[str, list[int]] = defaultdict(list)
    for slot, vms in users.items():
        for uuid in vms:
            of_vm[uuid].append(slot)
    for uuid, slots in of_vm.items():
        named: list[int | None] = []
        for slot in slots:
            named += [hosts[slot], *(host for one, host in users[slot].items() if one != uuid)]
        named.append(users[slots[0]][uuid])
        assert len(set(named)) == len(named), f"VM {uuid} and its slots: hosts {named}"  # noqa: S101 - as above
    return len(of_vm)


def _failover_users() -> tuple[dict[int, int | None], Mapping[int, dict[str, int | None]]]:
    """Return the host of each failover slot, and where its users were when they joined."""
    hosts: dict[int, int | None] = dict(
        Reservation.objects.filter(kind=ReservationKind.FAILOVER).values_list(
            "pk", "target_host_id"
        )
    )
    users: defaultdict[int, dict[str, int | None]] = defaultdict(dict)
    rows = ReservationAllocation.objects.filter(reservation__kind=ReservationKind.FAILOVER)
    for slot, uuid, host in rows.values_list("reservation_id", "vm_uuid", "vm_host_id").iterator():
        users[slot][uuid] = host
    return hosts, users


def _covered() -> int:
    """Whoever has fewer slots than are owed to him is told of, with a reason."""
    told = set(FailoverDecision.objects.values_list("vm_uuid", flat=True))
    state = _drill_state()
    short = {
        uuid
        for uuid, vm in state.vms.items()
        if len(state.slots_of.get(uuid, ())) < vm.required_count
    }
    running = set(Instance.objects.values_list("openstack_id", flat=True))
    assert not (short & running) - told, sorted(short - told)[:5]  # noqa: S101 - as above
    return len(state.vms)


def _survivable() -> int:
    """Every lost host, and many lost pairs, leave a private place to whoever is covered for it."""
    state = _drill_state()
    usable = {
        uuid: sum(
            state.slots[name].is_usable
            and vm.size.fits_into(state.slots[name].size)
            and state.hosts[state.slots[name].host].keeps_promises
            and state.hosts[state.slots[name].host].is_alive
            for name in state.slots_of.get(uuid, ())
        )
        for uuid, vm in state.vms.items()
    }
    cases = 0
    for failed in _failures(state):
        saved = {row.vm for row in simulate(state, failed).assignments if row.is_private}
        owed = [uuid for host in failed for uuid in state.vms_on.get(host, ())]
        lost = {uuid for uuid in owed if usable[uuid] >= len(failed)} - saved
        assert not lost, f"hosts {failed} lose {sorted(lost)[:5]}"  # noqa: S101 - as above
        cases += 1
    return cases


def _failures(state: DrillState) -> Iterator[tuple[str, ...]]:
    draw = Random(30)  # noqa: S311 - the same pairs in each run
    of_zone: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(state.hosts):
        yield (name,)
        of_zone[state.hosts[name].zone].append(name)
    for names in of_zone.values():
        for _ in range(PAIRS_OF_ZONE if len(names) > 1 else 0):
            yield tuple(draw.sample(names, 2))


def _drill_state() -> DrillState:
    return drill_state(failover_zones(), now=database_now())


ALWAYS: Final[Mapping[str, Callable[[], int]]] = {
    "rooms are the sums of slots, and no host is over its capacity": _rooms,
    "network, disk I/O and GPUs are the sums of slots": _resources,
    "accepted commitments have all their slots": _commitments,
    "slots block what the rule says of their VMs": _blocks,
    "rooms are the sums of allocations, VMs in slots hold some": _allocations,
    "use of inventories is the sum of allocations": _inventories,
    "usage of projects is the sum of allocations": _projects,
    "failover slots are whole": _failover_rows,
    "rules of failover hold for each VM": _failover_rules,
}
SETTLED: Final[Mapping[str, Callable[[], int]]] = {
    "VMs have the failover slots owed to them, or a reason": _covered,
    "lost hosts and pairs leave a private place to each covered VM": _survivable,
}
