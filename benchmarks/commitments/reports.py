"""``report-usage`` of one project, over HTTP handling and JSON, with every VM a subresource."""

from __future__ import annotations

import orjson
from django.test import Client
from django.test.utils import setup_test_environment, teardown_test_environment
from rich.console import Console

from benchmarks.bench_region import TOKEN, with_token
from benchmarks.commitments.costs import Cost, cost_of
from benchmarks.commitments.region import fill_commitment_region
from benchmarks.measures import Measure, fitted_exponent, measure, percentile
from commitments.services.usage import reconcile_all_usage
from journal.actors import Actor

PROJECT = "project-0"
ZONES = ["az-0", "az-1", "az-2"]
VMS_PER_HOST = 50
GROUPS = 20
TOP_VMS = 5000


def run(*, is_quick: bool) -> list[Measure]:
    """Measure three sizes in the number of VMs of the project, up to 5,000."""
    sizes = (200, 600, 2000) if is_quick else (500, 1500, TOP_VMS)
    repeats = 5 if is_quick else 30
    rows: list[Measure] = []
    medians: list[float] = []
    for size in sizes:
        Console().print(f"project of {size} VMs")
        fill_commitment_region(hosts=size // VMS_PER_HOST, vms=size, projects=1, groups=GROUPS)
        reconcile_all_usage(actor=Actor(name="bench"), request_id="bench")
        costs = _costs(size, repeats)
        walls = [cost.seconds * 1000 for cost in costs]
        medians.append(percentile(walls, 0.5))
        label = f"{size} VMs"
        rows += [
            measure("report-usage p50", label, medians[-1], "ms"),
            measure("report-usage p99", label, percentile(walls, 0.99), "ms"),
            measure("CPU of one report", label, _mean_ms([c.cpu_seconds for c in costs]), "ms"),
            measure(
                "database CPU of one report",
                label,
                _mean_ms([c.database_cpu_seconds for c in costs]),
                "ms",
            ),
        ]
    exponent = fitted_exponent(sizes, medians)
    rows.append(measure("fitted exponent of report-usage", "all sizes", exponent, "", at_most=1.1))
    return rows


def _costs(vms: int, repeats: int) -> list[Cost]:
    setup_test_environment(debug=False)
    try:
        with with_token():
            client = Client(headers={"X-Auth-Token": TOKEN})
            _report(client, vms)
            return [cost_of(lambda: _report(client, vms))[0] for _ in range(repeats)]
    finally:
        teardown_test_environment()


def _report(client: Client, vms: int) -> None:
    response = client.post(
        f"/commitments/v1/projects/{PROJECT}/report-usage",
        orjson.dumps({"allAZs": ZONES}),
        content_type="application/json",
    )
    if response.content.count(b'"commitment_id"') != vms:
        message = f"not every VM is reported: {response.status_code} {response.content[:200]!r}"
        raise RuntimeError(message)


def _mean_ms(seconds: list[float]) -> float:
    return sum(seconds) / len(seconds) * 1000
