"""Application registry entry of ``placement``."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class PlacementConfig(AppConfig):
    """Register ``placement`` with Django; standard names appear with every ``migrate``."""

    name = "placement"

    def ready(self) -> None:
        """Register system checks, gauges, and what runs after migrations."""
        from capacity.hooks import AllocationSource, add_allocation_source  # noqa: PLC0415 - apps first
        from core.doctor.findings import offers  # noqa: PLC0415 - apps first
        from journal.metrics import at_scrape  # noqa: PLC0415 - apps first
        from placement import (  # noqa: PLC0415 - checks register themselves; policy needs the apps
            checks,  # noqa: F401
            metrics,
            region_providers,
        )
        from placement.doctor import placement_checks  # noqa: PLC0415 - models first
        from placement.selectors import allocated  # noqa: PLC0415 - models first
        from placement.services.standards import (  # noqa: PLC0415 - models first
            sync_standards_after_migrate,
        )

        add_allocation_source(
            allocated.NAME,
            AllocationSource(
                taken=allocated.ALLOCATED, claims=allocated.CLAIMS, listed=allocated.LISTED
            ),
        )
        region_providers.register()
        offers.append(placement_checks)
        at_scrape(metrics.INVENTORIES)
        post_migrate.connect(
            sync_standards_after_migrate, sender=self, dispatch_uid="placement.standards"
        )
