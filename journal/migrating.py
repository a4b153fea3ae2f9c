"""Deadlines around ``migrate``: none for what it does, those of requests for all who come after."""

from __future__ import annotations

from typing import Any

import structlog
from django.apps import AppConfig
from django.db import Error, connection
from django.db.models.signals import post_migrate, pre_migrate

from journal.deadlines import set_user_defaults
from journal.statements import execute

log = structlog.get_logger(__name__)

#: Of the session: an index that is built beside others' work has no transaction. A pooler would
#: give this session to others, so ``migrate`` has to reach the server itself (docs/operations.md).
UNLIMITED = """
SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0
"""
LIMITED = "RESET statement_timeout; RESET lock_timeout; RESET idle_in_transaction_session_timeout"


def connect_migrating(app: AppConfig) -> None:
    """Set what the database allows before and after all migrations.

    Args:
        app: One that has models, since others hear nothing.
    """
    pre_migrate.connect(_lift, sender=app, dispatch_uid="headroom.lift_deadlines")
    post_migrate.connect(_configure, sender=app, dispatch_uid="headroom.set_deadlines")


def _lift(**_: Any) -> None:  # Any: of the signal
    execute(UNLIMITED)


def _configure(**_: Any) -> None:  # Any: of the signal
    execute(LIMITED)
    try:
        set_user_defaults()
    except Error as error:
        log.warning("database_not_configured", error=str(error).strip())
    if not connection.in_atomic_block:
        connection.close()  # sessions have the defaults from their beginning
