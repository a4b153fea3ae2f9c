"""Application registry entry of ``capacity``."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class CapacityConfig(AppConfig):
    """Register ``capacity`` with Django, its sections of region files and its gauges."""

    name = "capacity"

    def ready(self) -> None:
        """Register the sections of region files of this app, and what it tells at a scrape."""
        from capacity import checks, region_groups  # noqa: PLC0415 - models first
        from capacity.agents.following import slots_of_host  # noqa: PLC0415 - models first
        from capacity.agents.nudges import slots_changed  # noqa: PLC0415 - models first
        from capacity.bootstrap import create_shipped_pipelines  # noqa: PLC0415 - models first
        from capacity.doctor import capacity_checks  # noqa: PLC0415 - models first
        from capacity.metrics import gauges, hosts, reservations  # noqa: PLC0415 - models first
        from capacity.offboarding import reservations_on  # noqa: PLC0415 - models first
        from capacity.policies import RULES  # noqa: PLC0415 - apps first
        from core.doctor.findings import offers  # noqa: PLC0415 - apps first
        from hosts.agents.hooks import (  # noqa: PLC0415 - models first
            held_on_host,
            modes_changed,
            uses_of_host,
            workloads_changed,
        )
        from journal.metrics import at_scrape  # noqa: PLC0415 - apps first
        from journal.policy import register_rules  # noqa: PLC0415 - apps first

        del checks  # they register themselves
        register_rules(RULES)
        region_groups.register()
        offers.append(capacity_checks)
        modes_changed.append(slots_changed)
        uses_of_host.append(slots_of_host)
        held_on_host.append(reservations_on)
        workloads_changed.append(lambda _: slots_changed())
        post_migrate.connect(
            create_shipped_pipelines, sender=self, dispatch_uid="capacity.shipped_pipelines"
        )
        for scraped in (
            gauges.CAPACITY,
            gauges.ALLOCATION_DRIFT,
            gauges.OVERSUBSCRIPTION,
            reservations.RESERVATIONS,
            hosts.HOSTS,
        ):
            at_scrape(scraped)
