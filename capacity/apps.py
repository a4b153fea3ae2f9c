"""Application registry entry of ``capacity``."""

from __future__ import annotations

from django.apps import AppConfig


class CapacityConfig(AppConfig):
    """Register ``capacity`` with Django, its sections of region files and its gauges."""

    name = "capacity"

    def ready(self) -> None:
        """Register the sections of region files of this app, and what it tells at a scrape."""
        from capacity import metrics, region  # noqa: PLC0415 - models first
        from hosts.region.registry import registry  # noqa: PLC0415 - models first

        region.register(registry)
        metrics.register()
