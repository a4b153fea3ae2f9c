"""Application registry entry of ``hosts``."""

from __future__ import annotations

from django.apps import AppConfig


class HostsConfig(AppConfig):
    """Register ``hosts`` with Django and its sections of region files."""

    name = "hosts"

    def ready(self) -> None:
        """Register the sections of region files that this app reads and writes."""
        from hosts.region import (  # noqa: PLC0415 - models first
            flavors,
            host_facts,
            hosts,
            identity,
            servers,
        )

        for module in (identity, flavors, hosts, host_facts, servers):
            module.register()
