"""The usage reconciler: all assignments new, nothing changed, and one project changed."""

from __future__ import annotations

from django.db import connection
from rich.console import Console

from benchmarks.commitments.costs import Cost, cost_of, peak_gib
from benchmarks.commitments.region import VMS_PER_PROJECT, fill_commitment_region
from benchmarks.measures import Measure, fitted_exponent, measure
from commitments.models import InstanceAssignment
from commitments.services.usage import reconcile_all_usage
from hosts.models import Instance
from journal.actors import Actor

VMS_PER_HOST = 100
GROUPS = 20
TARGET_SECONDS = 60.0
TARGET_GIB = 2.0

WRITTEN = """
SELECT (SELECT max(changed_xid) FROM commitments_instanceassignment),
       (SELECT count(*) FROM commitments_instanceassignment),
       (SELECT max(changed_xid) FROM commitments_commitment)
"""


def run(*, is_quick: bool) -> list[Measure]:
    """Measure three sizes in the number of VMs."""
    sizes = (3000, 10_000, 30_000) if is_quick else (10_000, 100_000, 1_000_000)
    rows: list[Measure] = []
    costs: dict[str, list[float]] = {}
    for size in sizes:
        projects = size // VMS_PER_PROJECT
        Console().print(f"{size} VMs")
        fill_commitment_region(
            hosts=size // VMS_PER_HOST, vms=size, projects=projects, groups=GROUPS
        )
        label = f"{size} VMs, {projects} projects"
        is_top = size == max(sizes)
        for name, cost in _measured(projects).items():
            costs.setdefault(name, []).append(cost.seconds)
            is_target = is_top and name == "usage, all new"
            target = TARGET_SECONDS if is_target else None
            rows += [
                measure(name, label, cost.seconds, "s", at_most=target),
                measure("CPU of it", label, cost.cpu_seconds, "s"),
                measure("database CPU of it", label, cost.database_cpu_seconds, "s"),
            ]
        rows.append(
            measure(
                "peak memory so far",
                label,
                peak_gib(),
                "GiB",
                at_most=TARGET_GIB if is_top else None,
            )
        )
    for name, seconds in costs.items():
        rows.append(
            measure(f"fitted exponent of {name}", "all sizes", fitted_exponent(sizes, seconds), "")
        )
    return rows


def _measured(projects: int) -> dict[str, Cost]:
    costs = {"usage, all new": _timed(only_changed=False, expected=projects)}
    before = _written()
    costs["usage, nothing changed, all looked at"] = _timed(only_changed=False, expected=projects)
    costs["usage, nothing changed"] = _timed(only_changed=True, expected=0)
    if _written() != before:
        message = "a run over unchanged projects has written"
        raise RuntimeError(message)
    covered = InstanceAssignment.objects.order_by("pk")[0].vm_uuid
    Instance.objects.get(openstack_id=covered).delete()
    costs["usage, one VM gone"] = _timed(only_changed=True, expected=1)
    if _written() == before:
        message = "the assignment of the VM is still there"
        raise RuntimeError(message)
    return costs


def _timed(*, only_changed: bool, expected: int) -> Cost:
    cost, looked_at = cost_of(
        lambda: reconcile_all_usage(
            actor=Actor(name="bench"), request_id="bench", only_changed=only_changed
        )
    )
    if looked_at != expected:
        message = f"{looked_at} projects were looked at instead of {expected}"
        raise RuntimeError(message)
    return cost


def _written() -> tuple[object, ...]:
    with connection.cursor() as cursor:
        cursor.execute(WRITTEN)
        return tuple(cursor.fetchone() or ())
