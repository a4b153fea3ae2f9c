"""Application registry entry of ``hosts``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.apps import AppConfig

from journal.metrics import at_scrape


class HostsConfig(AppConfig):
    """Register ``hosts`` with Django, its sections of region files and its metrics."""

    name = "hosts"

    def ready(self) -> None:
        """Register sections of region files, metrics and checks."""
        from core.doctor.findings import offers  # noqa: PLC0415 - apps first
        from hosts.doctor import host_checks  # noqa: PLC0415 - models first
        from hosts.feed import files  # noqa: PLC0415 - models first
        from hosts.metrics import AGENTS, FEED  # noqa: PLC0415 - models first
        from hosts.region import (  # noqa: PLC0415 - models first
            described,
            flavors,
            host_facts,
            hosts,
            identity,
            moving,
            servers,
        )

        parts = (identity, flavors, hosts, host_facts, described, servers, moving, files)
        for module in parts:
            module.register()
        at_scrape(FEED)
        at_scrape(AGENTS)
        offers.extend((host_checks, _cloud_checks))


def _cloud_checks() -> Mapping[str, Callable[[], Iterable[Any]]]:  # Any: findings
    # openstacksdk takes a second to import: only for those who run checks.
    from hosts.cloud_checks import configured_checks  # noqa: PLC0415

    return configured_checks()
