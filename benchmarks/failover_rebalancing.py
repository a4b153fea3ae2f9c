"""``bench failover``: the exchange of every reservation of a zone that grew costly."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connection, transaction
from django.test.utils import override_settings
from django.utils import timezone
from rich.console import Console

from benchmarks.failover_region import fill_failover_region
from benchmarks.measures import Measure, measure
from capacity.ledger.rooms import rebuild_host_capacity
from failover.models import FailoverZone
from failover.selectors.drills import drill_state
from failover.selectors.zone import failover_zones
from failover.services.loop import reconcile_zone
from failover.services.rebalancing import rebalance_zone
from failover.services.shadow_plans import compute_shadow_plan
from journal.actors import Actor
from tests.process_tables import reset_host_table

HOSTS, VMS, REQUIRED = 600, 12_000, 2
FEW_USERS = 8
UNLIMITED = 1 << 30

# One VM in five goes to a host drawn by hash: all of a host's to the same one.
SHUFFLE = """
UPDATE hosts_instance AS vm SET host_id = other.id, host_name = other.name
  FROM (SELECT id, row_number() OVER (ORDER BY id) AS place FROM hosts_host) AS seat
  JOIN (SELECT id, name, row_number() OVER (ORDER BY md5(id::text)) AS place FROM hosts_host)
       AS other USING (place)
 WHERE vm.host_id = seat.id AND abs(hashtext(vm.openstack_id)) % 5 = 0
"""


def rebalancing_rows() -> list[Measure]:
    """Cover a zone with few users per reservation, move VMs, and rebalance it with the limit."""
    size = f"{HOSTS} hosts, {VMS} VMs, 1 zone"
    Console().print(f"{size}, rebalancing")
    reset_host_table()
    fill_failover_region(HOSTS, VMS, zones=1, required=REQUIRED)
    (zone,) = failover_zones()
    with _users_limited_to(FEW_USERS):
        reconcile_zone(zone, request_id="bench")
        _shuffle()
        FailoverZone.objects.update(confirmed_at=timezone.now())
        reconcile_zone(zone, request_id="bench")
    started = time.perf_counter()
    row = compute_shadow_plan(zone, request_id="bench", now=timezone.now())
    planned = time.perf_counter()
    done = rebalance_zone(
        zone,
        actor=Actor(name="bench"),
        request_id="bench",
        now=timezone.now(),
        most_steps=UNLIMITED,
    )
    ended = time.perf_counter()
    if done.done != VMS or done.refused or done.blocked:
        raise RuntimeError(f"not all VMs exchanged their reservations: {done}")
    _check(zone)
    whole = row.vm_memory_bytes / 100
    return [
        measure("shadow plan of a zone", size, planned - started, "s"),
        measure("exchange of all reservations of a zone", size, ended - planned, "s"),
        measure("reserved share before the exchange", size, done.reserved_before / whole, "%"),
        measure("reserved share after the exchange", size, done.reserved_after / whole, "%"),
    ]


@contextmanager
def _users_limited_to(users: int) -> Iterator[None]:
    """Let no more VMs share a reservation."""
    before = settings.HEADROOM
    failover = before.failover.model_copy(update={"max_users_per_reservation": users})
    chosen = before.model_copy(update={"failover": failover})
    with override_settings(HEADROOM=chosen):  # who keeps the settings is told
        yield


def _shuffle() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(SHUFFLE)
        rebuild_host_capacity()


def _check(zone: str) -> None:
    """Look at every VM's list of hosts, at its reservations and at the rooms."""
    state = drill_state([zone], now=timezone.now())
    if len(state.vms) != VMS or any(
        len(state.slots_of[uuid]) != REQUIRED or not state.keeps_rules(uuid) for uuid in state.vms
    ):
        raise RuntimeError("an exchange must keep the rules and cover every VM")
    if rebuild_host_capacity():
        raise RuntimeError("an exchange must keep rooms and reservations in agreement")
