"""Gauges of the usage assignment, from the projects' rows (spec commitments, 20.1)."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from capacity.metrics_limits import tells_projects
from journal.metrics import metric_name, scrape_cursor

PROJECTS = """
SELECT CASE WHEN %(tells_projects)s THEN project_id ELSE '' END, sum(assigned_vms),
       sum(uncovered_vms)
  FROM commitments_projectusage GROUP BY 1 ORDER BY 1
"""


class UsageGauges:
    """VMs of each project with commitments: covered, and left over."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as of the last run.

        Raises:
            DatabaseError: The database does not answer within 10 s.
        """
        assigned = GaugeMetricFamily(
            metric_name("committed_resource_usage_assigned_vms_total"),
            "VMs that commitments of the project cover.",
            labels=("project_id",),
        )
        uncovered = GaugeMetricFamily(
            metric_name("committed_resource_usage_uncovered_vms"),
            "VMs that no memory commitment of their zone and flavor group had room for.",
            labels=("project_id",),
        )
        with scrape_cursor() as cursor:
            cursor.execute(PROJECTS, {"tells_projects": tells_projects(cursor)})
            for project_id, assigned_vms, uncovered_vms in cursor.fetchall():
                assigned.add_metric([project_id], assigned_vms)
                uncovered.add_metric([project_id], uncovered_vms)
        return [assigned, uncovered]
