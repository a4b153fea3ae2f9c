"""Application registry entry of ``hosts``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.apps import AppConfig


class HostsConfig(AppConfig):
    """Register ``hosts`` with Django and its sections of region files."""

    name = "hosts"

    def ready(self) -> None:
        """Register the sections of region files that this app reads and writes, and checks."""
        from core.doctor.findings import offers  # noqa: PLC0415 - apps first
        from hosts.region import (  # noqa: PLC0415 - models first
            flavors,
            host_facts,
            hosts,
            identity,
            servers,
        )

        for module in (identity, flavors, hosts, host_facts, servers):
            module.register()
        offers.append(_cloud_checks)


def _cloud_checks() -> Mapping[str, Callable[[], Iterable[Any]]]:  # Any: findings
    # openstacksdk takes a second to import: only for those who run checks.
    from hosts.cloud_checks import configured_checks  # noqa: PLC0415

    return configured_checks()
