"""``migrate``, which knows functions and triggers, and databases that it cannot continue."""

from __future__ import annotations

import itertools
import sys
import time
from typing import TYPE_CHECKING, Any, cast

from django.conf import settings
from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import OperationalError, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from core.releases import newer_version
from core.sql import unapplied_sql
from journal.outages import is_retryable

if TYPE_CHECKING:
    from journal.postgresql.base import DatabaseWrapper

LONGEST_PAUSE_SECONDS = 10.0


class Command(migrate.Command):
    """Django's command; :mod:`core.apps` adds functions and triggers to what it does."""

    def handle(self, *args: Any, **options: Any) -> None:  # Any: of the command line
        """Migrate, or exit with status 1 if there is something to do.

        A lock that is not free soon is given up, so that nobody waits behind us, and asked for
        again later: each migration that is a transaction begins anew then.

        Raises:
            CommandError: the database stopped in the middle of migrations that are one now, or a
                lock was not free for long.
        """
        _refuse_half_way(options["database"])
        deadlines = settings.HEADROOM.deadlines
        last_try = time.monotonic() + deadlines.migration_patience_seconds
        database = cast("DatabaseWrapper", connections[options["database"]])
        with database.lock_limit(deadlines.migration_lock_seconds):
            for number in itertools.count():
                try:
                    super().handle(*args, **options)
                    break
                except OperationalError as error:
                    self._wait(error, number, last_try)
        if newer := newer_version():
            self.stdout.write(f"Release {newer} has migrated this database: its own stays.")
        if options["check_unapplied"] and (lacking := unapplied_sql()):
            self.stdout.write(lacking)
            sys.exit(1)

    def _wait(self, error: OperationalError, number: int, last_try: float) -> None:
        if not is_retryable(error):
            raise error
        told = str(error).strip().partition("\n")[0]
        left = last_try - time.monotonic()
        if left <= 0:
            raise CommandError(
                f"{told}: others hold what a migration needs (long transactions: pg_stat_activity,"
                " pg_blocking_pids); what was migrated stays, migrate again goes on"
            ) from error
        pause = min(float(1 << min(number, 8)), LONGEST_PAUSE_SECONDS, left)
        self.stdout.write(f" {told}: again in {pause:.0f} s")
        time.sleep(pause)


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
