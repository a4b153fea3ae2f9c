"""Claims that settle in the ledger (ADR 0029): what joining a slot costs, how often room is held.

Claims of each kind are written in turn, ten at a time, so that all meet the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from itertools import count
from random import Random

from django.conf import settings
from django.db import connection
from django.test.utils import (
    override_settings,
    setup_test_environment,
    teardown_test_environment,
)

from benchmarks.bench_region import empty_database
from benchmarks.measures import Measure, measure, percentile
from benchmarks.placement_worlds import OWN_TABLES
from benchmarks.schedule_bench import database_cpu_ms
from capacity.ledger.rooms import rebuild_host_capacity
from hosts.models import Host
from journal.actors import Actor
from placement.services.allocations import (
    AllocationRequest,
    ConsumerWrite,
    delete_allocations,
    replace_allocations,
)
from placement.tasks import reconcile_hosts
from tests.factories import make_commitment, make_group, make_host, make_slot
from tests.placement.client import PlacementClient, uuid

JOINS_RATIO = 1.3
FLAVORS = (("small", 8192, 2), ("large", 16_384, 4))
ASKED = {"VCPU": 2, "MEMORY_MB": 8192}
SLOTS_PER_HOST = 6
TOGETHER = 10
HELD_SHARE = 0.9
BOOTS = 20
#: Numbers of hosts on which refused claims are counted.
REFUSING = (20, 100, 200)
ACTOR = Actor(name="bench")
_DRAW = Random(14)  # noqa: S311 - the same orders in each run
OWNER, STRANGER = "owner", "stranger"


def claims(*, is_quick: bool) -> list[Measure]:
    """Measure claims and their refusals on hosts of ours."""
    hosts, rounds = (20, 2) if is_quick else (100, 8)
    with served_from_claims():
        refusals = [row for size in REFUSING[: 1 if is_quick else None] for row in _refusals(size)]
        return [*_costs(hosts, rounds), *refusals]


@contextmanager
def served_from_claims() -> Iterator[None]:
    """Serve Placement to anyone, with providers of hosts, claims in the ledger and held room."""
    before = settings.HEADROOM
    placement = before.placement.model_copy(
        update={
            "host_inventories": "host",
            "host_providers": True,
            "enforce_held": True,
            "enforce_new_defaults": False,
        }
    )
    chosen = before.model_copy(
        update={"allocation_source": "placement", "placement": placement, "auth": "noauth"}
    )
    setup_test_environment()
    try:
        with override_settings(HEADROOM=chosen):  # who keeps the settings is told
            yield
    finally:
        teardown_test_environment()


def _costs(hosts: int, rounds: int) -> list[Measure]:
    """Time claims and deletions, of which half concern slots, per kind."""
    _empty()
    with_slots, without = (
        [make_host(f"{name}{number}", memory_gib=4096, vcpus=1024) for number in range(hosts)]
        for name in ("slots", "bare")
    )
    _hold(with_slots, SLOTS_PER_HOST)
    spent: dict[str, list[float]] = {}
    for turn in range(-1, rounds):
        for begin in range(0, hosts, TOGETHER):
            for kind, chosen, project in (
                ("joins no slot", without, OWNER),
                ("joins a slot", with_slots, OWNER),
                ("joins no slot of its host", with_slots, STRANGER),
            ):
                vms = {uuid(): host for host in chosen[begin : begin + TOGETHER]}
                written = _cpu_of(partial(_write_all, vms, project))
                deleted = _cpu_of(partial(_delete_all, vms)) if turn % 2 else 0.0
                if turn >= 0:  # the first turn fills caches
                    spent.setdefault(kind, []).append(written / len(vms))
                if deleted and turn > 0:
                    spent.setdefault(f"{kind}, deleted", []).append(deleted / len(vms))
    label = f"{hosts} hosts of {SLOTS_PER_HOST} slots"
    middle = {kind: percentile(costs, 0.5) for kind, costs in spent.items()}
    rows = [
        measure(f"CPU of a claim that {kind}", label, cost, "ms")
        for kind, cost in sorted(middle.items())
    ]
    for ending in ("", ", deleted"):
        ratio = middle[f"joins a slot{ending}"] / middle[f"joins no slot{ending}"]
        name = f"a claim that joins a slot{ending}, by one that joins none"
        rows.append(measure(name, label, ratio, "times", at_most=JOINS_RATIO))
    return rows


def _write_all(vms: Mapping[str, Host], project: str) -> None:
    for vm, host in vms.items():
        consumer = ConsumerWrite(
            uuid=vm, project_id=project, user_id="user", resources={host.openstack_id: ASKED}
        )
        request = AllocationRequest(consumers=(consumer,), checks_generations=True)
        replace_allocations(request, actor=ACTOR, request_id="bench", kind="put")


def _delete_all(vms: Mapping[str, Host]) -> None:
    for vm in vms:
        delete_allocations(vm, generation=None, actor=ACTOR, request_id="bench")


def _refusals(hosts: int) -> list[Measure]:
    """Count claims of strangers that are refused until one is granted, as Nova tries hosts.

    Hosts that weigh the same are tried in any order. Those that nobody holds have a VM each, so
    that the held ones have more free memory, as in a cloud that is used.
    """
    _empty()
    every = [make_host(f"host{number}", memory_gib=96, vcpus=24) for number in range(hosts)]
    held = int(hosts * HELD_SHARE)
    _hold(every[:held], SLOTS_PER_HOST)
    _write_all({uuid(): host for host in every[held:]}, STRANGER)
    client = PlacementClient(X_Roles="admin,service")
    rows = []
    for name, limit, by_free_memory in (
        ("limit of 10", "&limit=10", False),
        ("no limit", "", False),
        ("no limit, by free memory", "", True),
    ):
        refused = sum(_refused(client, limit, by_free_memory=by_free_memory) for _ in range(BOOTS))
        rows.append(
            measure(
                f"refused claims per boot, {name}",
                f"{hosts} hosts, {HELD_SHARE:.0%} held",
                refused / BOOTS,
                "claims",
            )
        )
    label = f"{hosts} hosts, {HELD_SHARE:.0%} held"
    search = percentile([_seconds_of_search(client) for _ in range(BOOTS)], 0.5)
    return [*rows, measure("candidates, limit of 10, p50", label, search * 1000, "ms")]


def _refused(client: PlacementClient, limit: str, *, by_free_memory: bool) -> int:
    """Boot and delete a stranger's VM; return how many hosts refused it before."""
    answer = client.get(f"/allocation_candidates?resources=VCPU:2,MEMORY_MB:8192{limit}").json
    summaries = answer["provider_summaries"]
    listed = [next(iter(request["allocations"])) for request in answer["allocation_requests"]]
    _DRAW.shuffle(listed)
    if by_free_memory:
        listed.sort(key=lambda one: -_free_memory(summaries[one]["resources"]))
    vm = uuid()
    for refused, host in enumerate(listed):
        status = client.allocate(vm, {host: ASKED}, project_id=STRANGER).status
        if status == HTTPStatus.NO_CONTENT:
            client.delete(f"/allocations/{vm}")
            return refused
    return len(listed)


def _free_memory(resources: dict[str, dict[str, int]]) -> int:
    return resources["MEMORY_MB"]["capacity"] - resources["MEMORY_MB"]["used"]


def _seconds_of_search(client: PlacementClient) -> float:
    began = time.perf_counter()
    client.get("/allocation_candidates?resources=VCPU:2,MEMORY_MB:8192&limit=10")
    return time.perf_counter() - began


def _empty() -> None:
    empty_database()
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(OWN_TABLES)} RESTART IDENTITY CASCADE")
    make_group("general", flavors=FLAVORS)


def _hold(hosts: Sequence[Host], slots: int) -> None:
    commitment = make_commitment(group="general", project_id=OWNER, amount_gib=16)
    numbers = count()
    for host in hosts:
        for _ in range(slots):
            make_slot(
                commitment, host, index=next(numbers), flavor_name="large", memory_gib=16, vcpus=4
            )
    rebuild_host_capacity()
    reconcile_hosts()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _cpu_of(work: Callable[[], None]) -> float:
    """Return milliseconds of CPU of this process and its database session."""
    before = time.process_time() * 1000 + database_cpu_ms()
    work()
    return time.process_time() * 1000 + database_cpu_ms() - before
