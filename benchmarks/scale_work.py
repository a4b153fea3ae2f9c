"""One piece of work of ``bench scale``; prints its figures."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from io import StringIO
from typing import Final, TypeVar

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
os.environ["HEADROOM_LOG_LEVEL"] = "ERROR"

import django

django.setup()

import orjson  # noqa: E402 - models need the setup
from django.core.management import call_command  # noqa: E402 - likewise
from django.db import connection, transaction  # noqa: E402 - likewise
from django.db.models import Count  # noqa: E402 - likewise
from django.test import Client  # noqa: E402 - likewise
from django.test.utils import setup_test_environment  # noqa: E402 - likewise

from benchmarks.bench_region import TOKEN, empty_database, with_token  # noqa: E402 - likewise
from benchmarks.change_bench import change_body, timed_change  # noqa: E402 - likewise
from benchmarks.commitments.costs import peak_gib  # noqa: E402 - likewise
from benchmarks.failover_region import move_some_vms  # noqa: E402 - likewise
from benchmarks.measures import percentile  # noqa: E402 - likewise
from benchmarks.pages_bench import measured_pages  # noqa: E402 - likewise
from benchmarks.placement_claims import served_from_claims  # noqa: E402 - likewise
from benchmarks.placement_worlds import OWN_TABLES  # noqa: E402 - likewise
from capacity.figures.group_capacity import refresh_group_capacity  # noqa: E402 - likewise
from capacity.figures.history import keep_history  # noqa: E402 - likewise
from capacity.host_table import current_host_table  # noqa: E402 - likewise
from commitments.services.usage import reconcile_all_usage  # noqa: E402 - likewise
from failover.domain.drill_report import drill_hosts  # noqa: E402 - likewise
from failover.selectors.drills import zone_snapshot  # noqa: E402 - likewise
from failover.selectors.zone import failover_zones  # noqa: E402 - likewise
from failover.services.coverage import account_coverage  # noqa: E402 - likewise
from failover.services.loop import reconcile_zone  # noqa: E402 - likewise
from hosts.models import Host, Instance  # noqa: E402 - likewise
from journal.actors import Actor  # noqa: E402 - likewise
from journal.clock import database_now  # noqa: E402 - likewise
from journal.collector import collect_rarely  # noqa: E402 - likewise
from journal.kept_sums import keep_sums  # noqa: E402 - likewise
from journal.metrics import metrics_page  # noqa: E402 - likewise
from placement.services.audit import REBUILD_PROJECT_USAGE  # noqa: E402 - likewise
from placement.services.hosts import reconcile_host_providers  # noqa: E402 - likewise
from scheduling.intents import CallOptions  # noqa: E402 - likewise
from scheduling.pipelines import compile_pipeline  # noqa: E402 - likewise
from scheduling.record import record_run  # noqa: E402 - likewise
from scheduling.request import PlacementRequest  # noqa: E402 - likewise
from scheduling.resources import GIB  # noqa: E402 - likewise
from scheduling.shipped_pipelines import SHIPPED  # noqa: E402 - likewise
from tests.placement.client import PlacementClient, uuid  # noqa: E402 - likewise

GROUP: Final = "general_v1"
RESOURCE: Final = f"hw_version_{GROUP}_ram"
PIPELINE: Final = "kvm-general-purpose-load-balancing"
LARGEST_GIB: Final = 256
#: From so many hosts on, a zone has room for batches of 100 slots.
ROOMY_HOSTS: Final = 5000
#: Of the project that has about as many in a region of any size.
USUAL_VMS: Final = 2000
SAMPLES: Final = 100
#: The first requests load tables that every later one only refreshes.
WARMING: Final = 4
ACTOR: Final = Actor(name="bench")
ASKED: Final = {"VCPU": 8, "MEMORY_MB": 64 * 1024}

# What the VMs of the region hold, as Nova would have claimed it. The ledger's rooms have them.
ALLOCATIONS: Final = """
INSERT INTO placement_project (external_id)
SELECT DISTINCT project_id FROM hosts_instance ON CONFLICT DO NOTHING;
INSERT INTO placement_user (external_id) VALUES ('user') ON CONFLICT DO NOTHING;
INSERT INTO placement_consumer (uuid, generation, project_id, user_id, created_at, updated_at)
SELECT vm.openstack_id::uuid, 1, project.id, (SELECT min(id) FROM placement_user), '2026-01-01',
       '2026-01-01'  -- long before the list of VMs
  FROM hosts_instance vm JOIN placement_project project ON project.external_id = vm.project_id
  JOIN hosts_host host ON host.id = vm.host_id
  JOIN placement_provider provider ON provider.uuid::text = host.openstack_id;
INSERT INTO placement_allocation (consumer_id, provider_id, resource_class_id, used)
SELECT consumer.id, provider.id, class.id,
       CASE class.name WHEN 'VCPU' THEN vm.vcpus ELSE vm.memory_bytes / 1048576 END
  FROM hosts_instance vm JOIN placement_consumer consumer ON consumer.uuid = vm.openstack_id::uuid
  JOIN hosts_host host ON host.id = vm.host_id
  JOIN placement_provider provider ON provider.uuid::text = host.openstack_id
  JOIN placement_resource_class class ON class.name IN ('VCPU', 'MEMORY_MB')
  JOIN placement_inventory inventory ON inventory.provider_id = provider.id
                                    AND inventory.resource_class_id = class.id;
UPDATE placement_inventory inventory SET used = held.used
  FROM (SELECT provider_id, resource_class_id, sum(used) AS used
          FROM placement_allocation GROUP BY 1, 2) held
 WHERE held.provider_id = inventory.provider_id
   AND held.resource_class_id = inventory.resource_class_id;
"""

_Result = TypeVar("_Result")
_figures: list[dict[str, object]] = []


def main() -> None:
    """Do the work that the command line names."""
    name, *arguments = sys.argv[1:]
    collect_rarely()  # as workers and web processes do
    cpu = time.process_time()
    WORK[name](*arguments)
    json.dump(
        {
            "measures": _figures,
            "cpu_seconds": time.process_time() - cpu,
            "peak_gib": peak_gib(),
        },
        sys.stdout,
    )


def _tell(metric: str, value: float, unit: str) -> None:
    _figures.append({"metric": metric, "value": value, "unit": unit})


def _timed(metric: str, work: Callable[[], _Result]) -> _Result:
    """Do some work of the background; tell its seconds and its CPU in this process."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    _tell(metric, time.perf_counter() - wall, "s")
    _tell(f"{metric}, CPU", time.process_time() - cpu, "s")
    return result


def _sampled(metric: str, samples: list[float]) -> None:
    """Tell the usual and the slow of some times in milliseconds."""
    _tell(f"{metric}, p50", percentile(samples, 0.5), "ms")
    _tell(f"{metric}, p99", percentile(samples, 0.99), "ms")


def import_region(path: str) -> None:
    """Load the region into the empty database."""
    empty_database()
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(OWN_TABLES)} RESTART IDENTITY CASCADE")
    _timed(
        "import",
        lambda: call_command("import_region", path, with_ended=True, stdout=StringIO()),
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def capacity() -> None:
    """Compute the capacity of all groups, then again without a change."""
    _timed("table of hosts, read anew", current_host_table)
    _timed("capacity of all groups", lambda: refresh_group_capacity(is_forced=True))
    _timed("capacity, nothing changed", refresh_group_capacity)


def coverage() -> None:
    """Cover every VM that has no failover room yet."""
    _timed("cold coverage", _pass_over_zones)


def steady() -> None:
    """Run the failover loop after a VM in 500 has moved, and after nothing."""
    move_some_vms()
    _timed("steady pass", _pass_over_zones)
    _timed("idle pass", _pass_over_zones)


def _pass_over_zones() -> None:
    for zone in failover_zones():
        reconcile_zone(zone, request_id="bench")


def usage() -> None:
    """Assign every VM to commitments."""
    _timed(
        "usage, all new",
        lambda: reconcile_all_usage(actor=ACTOR, request_id="bench", only_changed=False),
    )


def usage_again() -> None:
    """Follow no change."""
    _timed(
        "usage, nothing changed",
        lambda: reconcile_all_usage(actor=ACTOR, request_id="bench", only_changed=True),
    )


def drills() -> None:
    """Lose every host, one at a time."""
    now = database_now()
    zones = _timed(
        "state for drills", lambda: [zone_snapshot(zone, now=now) for zone in failover_zones()]
    )
    _timed("drills of all single hosts", lambda: [drill_hosts(zone) for zone in zones])
    _timed("account of coverage", lambda: account_coverage(now=now))


def history() -> None:
    """Keep an hour of history and the sums of the metrics page."""
    _timed("an hour of history", lambda: keep_history(now=database_now()))
    _timed("sums of the metrics page", keep_sums)


def providers() -> None:
    """Make hosts providers that hold the VMs' allocations."""
    with served_from_claims():
        _timed("providers of all hosts", reconcile_host_providers)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(ALLOCATIONS)
    with connection.cursor() as cursor:
        cursor.execute(REBUILD_PROJECT_USAGE)
        cursor.execute("VACUUM ANALYZE")


def requests() -> None:
    """Answer what Limes, Nova and Prometheus ask, as a web process does."""
    hosts = Host.objects.count()
    slots = 100 if hosts >= ROOMY_HOSTS else 10
    _timed("table of hosts of a web process", current_host_table)
    with served_from_claims():
        _changes(slots)
        _decisions()
        _claims()
        _reports()
        keep_sums()  # as the task does, whose settings say what is summed up
        metrics_page()
        _sampled("metrics page", _times(metrics_page, 20))


@contextmanager
def _limes() -> Iterator[Client]:
    with with_token():
        yield Client(headers={"X-Auth-Token": TOKEN})


def _zones() -> list[str]:
    zones = Host.objects.exclude(zone="").order_by().values_list("zone", flat=True)
    return sorted(zones.distinct())


def _changes(slots: int) -> None:
    zones = _zones()
    amount = LARGEST_GIB * slots // 10
    walls = []
    with _limes() as client:
        version = orjson.loads(client.get("/commitments/v1/info").content)["version"]
        body = partial(change_body, version, amount=amount, resource=RESOURCE, zones=zones)
        for number in range(SAMPLES + WARMING):
            sample = timed_change(client, body(number, is_new=True))
            if number >= WARMING:
                walls.append(sample.wall_seconds * 1000)
            timed_change(client, body(number, is_new=False))
    _sampled(f"change request of {slots} slots", walls)


def _decisions() -> None:
    table, zones = current_host_table(), _zones()
    pipeline, options = compile_pipeline(SHIPPED[PIPELINE]), CallOptions(max_candidates=3)

    def decide(number: int) -> None:
        request = PlacementRequest(
            request_key=f"vm-{number}",
            memory_bytes=64 * GIB,
            vcpus=8,
            zone=zones[number % len(zones)],
            project_id=f"project-{number}",
            extra_specs={
                "capabilities:hypervisor_type": "qemu",
                "quota:hw_version": GROUP,
                "trait:CUSTOM_HANA_EXCLUSIVE_HOST": "forbidden",
            },
        )
        if not record_run(table, request, pipeline, options).ordered_hosts:
            raise RuntimeError(f"no host for {request}")

    numbers = iter(range(10 * SAMPLES))
    _times(lambda: decide(next(numbers)), 20)
    _sampled("one decision", _times(lambda: decide(next(numbers)), 5 * SAMPLES))


def _claims() -> None:
    client = PlacementClient(X_Roles="admin,service")
    words = "&".join(
        (f"resources=VCPU:{ASKED['VCPU']},MEMORY_MB:{ASKED['MEMORY_MB']}", "limit=1000")
    )
    first = _times(lambda: client.get(f"/allocation_candidates?{words}"), 1)
    _tell("first candidates of a process", first[0] / 1000, "s")
    once = _times(lambda: client.get(f"/allocation_candidates?{words}"), SAMPLES)
    _tell("candidates of hosts shown for the first time", max(once) / 1000, "s")
    answer = client.get(f"/allocation_candidates?{words}").json
    if "allocation_requests" not in answer:
        raise RuntimeError(f"candidates: {answer}")
    places = deque(next(iter(one["allocations"])) for one in answer["allocation_requests"])
    claims: list[float] = []
    refusals: list[float] = []
    searches: list[float] = []
    deletions: list[float] = []
    while len(claims) < 3 * SAMPLES:
        vm, place = uuid(), places.popleft()
        began = time.perf_counter()
        claimed = client.allocate(vm, {place: ASKED})
        took = (time.perf_counter() - began) * 1000
        if claimed.status != HTTPStatus.NO_CONTENT:  # held for others: to the next host, as Nova
            refusals.append(took)
            if not places:
                raise RuntimeError(f"no claim is granted, the last answer: {claimed.json}")
            continue
        places.append(place)
        claims.append(took)
        searches += _times(lambda: client.get(f"/allocation_candidates?{words}"), 1)
        began = time.perf_counter()
        client.delete(f"/allocations/{vm}")
        deletions.append((time.perf_counter() - began) * 1000)
    if refusals:
        _sampled("claim that is refused", refusals)
    _sampled("claim", claims)
    _sampled("deletion of a claim", deletions)
    _sampled("candidates after a claim, limit 1,000", searches)


def _reports() -> None:
    zones = _zones()
    projects = list(
        Instance.objects.values_list("project_id").annotate(Count("pk")).order_by("-pk__count")
    )
    largest = projects[0]
    usual = min(projects, key=lambda one: abs(one[1] - USUAL_VMS))
    with _limes() as client:

        def ask(address: str) -> None:
            answer = client.post(
                f"/commitments/v1/{address}",
                orjson.dumps({"allAZs": zones}),
                content_type="application/json",
            )
            if answer.status_code != HTTPStatus.OK:
                raise RuntimeError(f"{address}: {answer.status_code} {answer.content[:200]!r}")

        ask("report-capacity")
        _sampled("report-capacity", _times(lambda: ask("report-capacity"), 20))
        usages: dict[object, list[float]] = {}
        for project in dict.fromkeys((usual, largest)):
            address = f"projects/{project[0]}/report-usage"
            ask(address)
            usages[project] = _times(partial(ask, address), 20)
        _sampled(f"report-usage of a project of some {USUAL_VMS:,} VMs", usages[usual])
        each = [1000 * one / largest[1] for one in usages[largest]]
        _sampled("report-usage of the largest project, for each 1,000 VMs", each)
    _tell("VMs of the largest project", largest[1], "VMs")


def _times(work: Callable[[], object], count: int) -> list[float]:
    """Return the milliseconds of each time."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        taken.append((time.perf_counter() - began) * 1000)
    return taken


def pages() -> None:
    """Open every page of the console."""
    setup_test_environment()
    opened = sorted(measured_pages(), key=lambda one: one.milliseconds)
    usual = [one.milliseconds for one in opened]
    _tell("pages opened", len(opened), "pages")
    _tell("a page of the console, p50", percentile(usual, 0.5), "ms")
    _tell("a page of the console, p90", percentile(usual, 0.9), "ms")
    _tell("pages above one second", sum(one > 1000 for one in usual), "pages")  # noqa: PLR2004 - ms
    _tell("most statements of a page", max(one.statements for one in opened), "statements")
    for one in opened[-3:]:
        sys.stderr.write(f"    {one.page.name}: {one.milliseconds:.0f} ms\n")


WORK: Final[dict[str, Callable[..., None]]] = {
    "import": import_region,
    "capacity": capacity,
    "coverage": coverage,
    "steady": steady,
    "usage": usage,
    "usage_again": usage_again,
    "drills": drills,
    "history": history,
    "providers": providers,
    "requests": requests,
    "pages": pages,
}

if __name__ == "__main__":
    main()
