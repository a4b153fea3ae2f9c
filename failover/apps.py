"""Application registry entry of ``failover``."""

from __future__ import annotations

from django.apps import AppConfig


class FailoverAppConfig(AppConfig):
    """Register ``failover`` with Django and its section of region files."""

    name = "failover"

    def ready(self) -> None:
        """Register the section of region files of this app, its metrics and its hooks."""
        from core.doctor.findings import offers  # noqa: PLC0415 - apps first
        from failover import (  # noqa: PLC0415 - models first
            hooks_scheduling,
            metrics,
            region_policies,
        )
        from failover.doctor import failover_checks  # noqa: PLC0415 - models first
        from journal.metrics import at_scrape  # noqa: PLC0415 - apps first

        region_policies.register()
        offers.append(failover_checks)
        metrics.show_zones(("",))  # every series of the loop exists from the start
        for scraped in (metrics.COVERAGE, metrics.LAST_RUN):
            at_scrape(scraped)
        hooks_scheduling.register()
