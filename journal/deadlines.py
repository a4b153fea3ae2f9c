"""How long the database works and waits for us: what is set on its user, and what per transaction.

Defaults of the database user are those of a request and cost nothing. A worker or a command, which
may take longer, sets its own at the start of each transaction (``SET LOCAL``), and in the message
of each statement outside of one. Nothing is set for a session and nothing when a connection is
opened: behind a transaction pooler both would reach others, or be refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from django.conf import settings
from django.db import connection
from psycopg import sql

from journal.statements import fetch_rows

STATEMENT, LOCK, IDLE = "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"


def user_defaults() -> Mapping[str, str]:
    """Return the parameters of the database user, as the database writes them."""
    chosen = settings.HEADROOM.deadlines
    return {
        STATEMENT: in_milliseconds(chosen.web_statement_seconds),
        LOCK: in_milliseconds(chosen.web_lock_seconds),
        IDLE: in_milliseconds(chosen.web_idle_transaction_seconds),
        "client_connection_check_interval": in_milliseconds(chosen.client_check_seconds),
        "tcp_keepalives_idle": str(chosen.keepalive_idle_seconds),
        "tcp_keepalives_interval": str(chosen.keepalive_interval_seconds),
        "tcp_keepalives_count": str(chosen.keepalive_count),
        # Compiling a plan takes longer than ours run; whether it is done depends on estimates.
        "jit": "off",
    }


def transaction_limits() -> Mapping[str, str]:
    """Return what each transaction of this process sets; nothing in a web process."""
    chosen = settings.HEADROOM.deadlines
    match settings.HEADROOM.process:
        case "web":
            return {}
        case "worker":
            return {
                STATEMENT: in_milliseconds(chosen.worker_statement_seconds),
                LOCK: in_milliseconds(chosen.worker_lock_seconds),
                IDLE: in_milliseconds(chosen.worker_idle_transaction_seconds),
            }
        case _:  # a person waits for a command, and can end it
            return {STATEMENT: "0", LOCK: "0", IDLE: "0"}


def set_user_defaults(user: str = "") -> None:
    """Make the deadlines of requests those of a database user, in this database alone.

    New sessions have them; this one keeps what it has.

    Args:
        user: The user; the one that we are when left out, which needs no privilege.
    """
    who = sql.Identifier(user) if user else sql.SQL("CURRENT_USER")
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_database()")
        (name,) = cursor.fetchone() or ("",)
        for parameter, text in user_defaults().items():
            cursor.execute(
                sql.SQL("ALTER ROLE {who} IN DATABASE {name} SET {parameter} = {text}").format(
                    who=who,
                    name=sql.Identifier(name),
                    parameter=sql.Identifier(parameter),
                    text=sql.Literal(text),
                )
            )


def differing_defaults(user: str = "") -> Mapping[str, tuple[str, str]]:
    """Return, per parameter that is not as configured: what the user has, and what it should have.

    Args:
        user: The user; the one that we are when left out.
    """
    found = dict(
        row[0].split("=", 1)
        for row in fetch_rows(
            """
            SELECT unnest(setting.setconfig)
              FROM pg_db_role_setting AS setting
              JOIN pg_database AS base ON base.oid = setting.setdatabase
              JOIN pg_roles AS role ON role.oid = setting.setrole
             WHERE base.datname = current_database()
               AND role.rolname = coalesce(nullif(%s, ''), current_user)
            """,
            [user],
        )
    )
    return {
        parameter: (found.get(parameter, ""), text)
        for parameter, text in user_defaults().items()
        if found.get(parameter) != text
    }


def in_milliseconds(seconds: float) -> str:
    """Return a duration as the database reads it without a unit."""
    return str(int(seconds * 1000))
