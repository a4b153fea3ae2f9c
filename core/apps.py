"""Application registry entry of ``core``: what ``migrate`` does beyond tables."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig, apps
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.models.signals import post_migrate


class CoreConfig(AppConfig):
    """Give the database its functions and triggers, and say when it lacks some."""

    name = "core"

    def ready(self) -> None:
        """Apply them before any app fills its tables: ``journal`` is the lowest with models."""
        from core.doctor.findings import offers  # noqa: PLC0415 - apps first
        from core.doctor.own import own_checks  # noqa: PLC0415 - apps first
        from core.sql import unapplied_sql  # noqa: PLC0415 - apps first
        from journal.health import unapplied  # noqa: PLC0415 - apps first

        post_migrate.connect(
            _apply_sql, sender=apps.get_app_config("journal"), dispatch_uid="core.sql"
        )
        unapplied.append(unapplied_sql)
        offers.append(own_checks)


def _apply_sql(**_: Any) -> None:  # Any: of the signal
    """Apply them, unless ``migrate`` stopped before the newest tables."""
    from core.sql import apply_sql  # noqa: PLC0415 - apps first

    executor = MigrationExecutor(connections[DEFAULT_DB_ALIAS])
    if not executor.migration_plan(executor.loader.graph.leaf_nodes()):
        apply_sql()
