"""Application registry entry of ``journal``."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class JournalConfig(AppConfig):
    """Register ``journal`` with Django."""

    name = "journal"

    def ready(self) -> None:
        """Carry request ids across the broker, and register the rules that others build on."""
        from journal import checks  # noqa: F401, PLC0415 - apps first
        from journal.auth import BASE_RULES  # noqa: PLC0415 - apps first
        from journal.gauges import CLOCKS, DOCTOR, KEPT_SUMS, WORK  # noqa: PLC0415 - apps first
        from journal.history import watch_connections  # noqa: PLC0415 - apps first
        from journal.metrics import at_scrape  # noqa: PLC0415 - apps first
        from journal.migrating import connect_migrating  # noqa: PLC0415 - apps first
        from journal.policy import register_rules  # noqa: PLC0415 - apps first
        from journal.roles import keep_roles  # noqa: PLC0415 - apps first
        from journal.tracing import connect_task_tracing  # noqa: PLC0415 - apps first

        register_rules(BASE_RULES)

        connect_task_tracing()
        watch_connections()
        connect_migrating(self)
        post_migrate.connect(keep_roles, dispatch_uid="journal.roles")
        for group in (CLOCKS, WORK, KEPT_SUMS, DOCTOR):
            at_scrape(group)
