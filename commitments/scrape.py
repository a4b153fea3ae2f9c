"""Commitment gauges, read from the rows when a scrape comes (spec commitments, 20.1)."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from capacity.selectors.groups import load_group_definitions, load_group_settings
from commitments.domain.service_info import ram_unit_warning
from commitments.metrics_usage import UsageGauges
from journal.errors import NotReady
from journal.kept_sums import kept_sums, read_sums
from journal.metrics import at_scrape, metric_name, scrape_cursor

# What was accepted once is a promise, whatever its writer would have taken for an answer then.
UNFULFILLED = """
SELECT flavor_group_name, resource_type, zone, count(*)
  FROM commitments_commitment
 WHERE ready_reason = 'Reserving' AND (NOT allow_rejection OR accepted_amount IS NOT NULL)
 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""

REFUSED = "SELECT zone, is_refused::int FROM commitments_slotcheck ORDER BY zone"
HOSTS_REFUSED = "SELECT zone, (host_refusal <> '')::int FROM commitments_slotcheck ORDER BY zone"

ON_LOST_HOSTS = kept_sums(
    "slots_on_lost_hosts",
    """
SELECT host.zone, count(*)
  FROM hosts_host AS host
  JOIN capacity_reservation AS slot ON slot.target_host_id = host.id AND slot.kind = 'committed'
 WHERE host.state = 'down' OR host.maintenance = 'termination'
 GROUP BY 1 ORDER BY 1
""",
)


class CommitmentGauges:
    """Commitments that wait for capacity they were promised, and what threatens slots."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as of now.

        Raises:
            DatabaseError: The database does not answer within 10 s.
        """
        unfulfilled = GaugeMetricFamily(
            metric_name("committed_resource_unfulfilled"),
            "Commitments that could not be placed yet and may not be rejected.",
            labels=("flavor_group", "resource_type", "availability_zone"),
        )
        refused = GaugeMetricFamily(
            metric_name("committed_resource_vm_list_refused"),
            "Whether the VM list of a zone shrank too much to take VMs out of slots.",
            labels=("availability_zone",),
        )
        hosts_refused = GaugeMetricFamily(
            metric_name("committed_resource_host_list_refused"),
            "Whether too many hosts of a zone are down or gone at once to move slots off them.",
            labels=("availability_zone",),
        )
        on_lost_hosts = GaugeMetricFamily(
            metric_name("committed_resource_slots_on_lost_hosts"),
            "Slots of commitments on hosts that are down or leaving; no series means none.",
            labels=("availability_zone",),
        )
        with scrape_cursor() as cursor:
            for gauge, statement in (
                (unfulfilled, UNFULFILLED),
                (refused, REFUSED),
                (hosts_refused, HOSTS_REFUSED),
            ):
                cursor.execute(statement)
                for *labels, count in cursor.fetchall():
                    gauge.add_metric(labels, count)
            (lost,) = read_sums(cursor, ON_LOST_HOSTS)
        for zone, count in lost:
            on_lost_hosts.add_metric([zone], count)
        return [unfulfilled, refused, hosts_refused, on_lost_hosts]


class RamUnitGauge:
    """Whether the unit of memory told to Limes fits the flavors of a group (3.3)."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauge as of now; no series while flavor groups are not extracted.

        Raises:
            DatabaseError: The database does not answer.
        """
        questionable = GaugeMetricFamily(
            metric_name("committed_resource_ram_unit_questionable"),
            "Whether a group's configured unit of memory is unset or not its smallest flavor.",
            labels=("flavor_group",),
        )
        try:
            groups = load_group_definitions()
        except NotReady:
            return [questionable]
        chosen = load_group_settings()
        for name, group in sorted(groups.items()):
            questionable.add_metric([name], ram_unit_warning(group, chosen) is not None)
        return [questionable]


def register() -> None:
    """Collect the gauges at every scrape."""
    at_scrape(CommitmentGauges())
    at_scrape(RamUnitGauge())
    at_scrape(UsageGauges())
