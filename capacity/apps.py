"""Application registry entry of ``capacity``."""

from __future__ import annotations

from django.apps import AppConfig


class CapacityConfig(AppConfig):
    """Register ``capacity`` with Django and its sections of region files."""

    name = "capacity"

    def ready(self) -> None:
        """Register the sections of region files that this app reads and writes."""
        from capacity import region  # noqa: PLC0415 - models first
        from hosts.region.registry import registry  # noqa: PLC0415 - models first

        region.register(registry)
