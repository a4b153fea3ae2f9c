"""``migrate``, which knows functions and triggers, and databases that it cannot continue."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from core.sql import unapplied_sql


class Command(migrate.Command):
    """Django's command; :mod:`core.apps` adds functions and triggers to what it does."""

    def handle(self, *args: Any, **options: Any) -> None:  # Any: of the command line
        """Migrate, or exit with status 1 if there is something to do.

        Raises:
            CommandError: the database stopped in the middle of migrations that are one now.
        """
        _refuse_half_way(options["database"])
        super().handle(*args, **options)
        if options["check_unapplied"] and (lacking := unapplied_sql()):
            self.stdout.write(lacking)
            sys.exit(1)


def _refuse_half_way(database: str) -> None:
    applied = MigrationRecorder(connections[database]).applied_migrations()
    for key, migration in sorted(MigrationLoader(None).disk_migrations.items()):
        missing = [replaced for replaced in migration.replaces if replaced not in applied]
        if key not in applied and 0 < len(missing) < len(migration.replaces):
            last = ".".join(migration.replaces[-1])
            raise CommandError(
                f"the database lacks {len(missing)} of the migrations up to {last}, which are one"
                " now: migrate with the version before that first (docs/operations.md, Upgrade)"
            )
