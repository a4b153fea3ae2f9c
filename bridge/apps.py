"""Application registry entry of ``bridge``."""

from __future__ import annotations

from django.apps import AppConfig

from journal.metrics import at_scrape


class BridgeConfig(AppConfig):
    """Register ``bridge`` with Django: what VMs take as Hypervisor objects say it, and metrics."""

    name = "bridge"

    def ready(self) -> None:
        """Register the source of allocations, the check of ``/statusz`` and metrics."""
        from bridge.doctor import bridge_checks  # noqa: PLC0415 - models first
        from bridge.hypervisors import allocated  # noqa: PLC0415 - models first
        from bridge.hypervisors.status import check_hypervisors  # noqa: PLC0415 - models first
        from bridge.metrics import MIRROR  # noqa: PLC0415 - models first
        from capacity.hooks import add_allocation_source  # noqa: PLC0415 - apps first
        from core.doctor.findings import offers  # noqa: PLC0415 - apps first
        from hosts.region.described import is_taken_from_objects  # noqa: PLC0415 - models first
        from journal.health import status_checks  # noqa: PLC0415 - apps first

        if is_taken_from_objects():
            add_allocation_source(allocated.NAME, allocated.SOURCE)
        status_checks.append(check_hypervisors)
        offers.append(bridge_checks)
        at_scrape(MIRROR)
