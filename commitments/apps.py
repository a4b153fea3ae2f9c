"""Application registry entry of ``commitments``."""

from __future__ import annotations

from django.apps import AppConfig


class CommitmentsConfig(AppConfig):
    """Register ``commitments`` with Django, its sections of region files and its hooks."""

    name = "commitments"

    def ready(self) -> None:
        """Register sections, checks, and how to tell that a flavor group is referred to."""
        from capacity.hooks import hooks  # noqa: PLC0415 - models first
        from commitments import checks, region_limes, status  # noqa: PLC0415 - models first
        from commitments.hooks_capacity import (  # noqa: PLC0415 - models first
            CommittedMemory,
            count_broken_amounts,
            repair_soon,
        )
        from commitments.hooks_tracking import SlotTracker  # noqa: PLC0415 - models first
        from commitments.metrics import (  # noqa: PLC0415 - models first
            gauges,
            quota,
            slots,
            sync,
        )
        from commitments.policies import RULES  # noqa: PLC0415 - apps first
        from commitments.services.intake import referenced_groups  # noqa: PLC0415 - models first
        from commitments.services.nudges import (  # noqa: PLC0415 - models first
            nudge_outdated_of_groups,
        )
        from journal.metrics import at_scrape  # noqa: PLC0415 - apps first
        from journal.policy import register_rules  # noqa: PLC0415 - apps first

        register_rules(RULES)
        region_limes.register()
        status.register()
        for scraped in (
            gauges.COMMITMENTS,
            gauges.RAM_UNITS,
            gauges.USAGE,
            gauges.SYNC,
            gauges.QUOTA,
            gauges.COMPACTION,
        ):
            at_scrape(scraped)
        del quota, slots, sync  # their series are there, at 0, from the start
        del checks  # they register themselves
        hooks.referenced_groups = referenced_groups
        hooks.groups_resized = nudge_outdated_of_groups
        hooks.broken_amounts = count_broken_amounts
        hooks.reservations_released = repair_soon
        hooks.commitment_figures = CommittedMemory()
        hooks.commitment_tracker = SlotTracker()
