"""``migrate``, whose ``--check`` also looks at functions and triggers."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.commands import migrate

from core.sql import unapplied_sql


class Command(migrate.Command):
    """Django's command; :mod:`core.apps` adds functions and triggers to what it does."""

    def handle(self, *args: Any, **options: Any) -> None:  # Any: of the command line
        """Migrate, or exit with status 1 if there is something to do."""
        super().handle(*args, **options)
        if options["check_unapplied"] and (lacking := unapplied_sql()):
            self.stdout.write(lacking)
            sys.exit(1)
