"""Deadlines of statements and transactions, for each kind of process."""

from __future__ import annotations

from pydantic import Field

from journal.conf import Section


class DeadlineSettings(Section):
    """How long the database works and waits for us.

    Those of web processes are defaults of the database user (``configure_database``), so that they
    cost a request nothing; workers and commands set theirs at the start of each transaction.
    """

    web_statement_seconds: float = Field(
        30.0, gt=0, le=3600, description="Longest statement of a request."
    )
    web_lock_seconds: float = Field(
        10.0,
        gt=0,
        le=3600,
        description="Longest wait for a lock that no shorter HEADROOM_LOCK_TIMEOUT_SECONDS ends.",
    )
    web_idle_transaction_seconds: float = Field(
        60.0, gt=0, le=3600, description="How long a request may compute in an open transaction."
    )
    worker_statement_seconds: float = Field(
        300.0, gt=0, le=3600, description="Longest statement of a task."
    )
    worker_lock_seconds: float = Field(
        30.0, gt=0, le=3600, description="Longest wait of a task for a lock, as above."
    )
    worker_idle_transaction_seconds: float = Field(
        900.0, gt=0, le=3600, description="How long a task may compute in an open transaction."
    )
    client_check_seconds: float = Field(
        5.0,
        ge=0,
        le=3600,
        description="How soon the database ends a statement whose client is gone; 0 is at its end.",
    )
    keepalive_idle_seconds: int = Field(
        30, ge=1, le=7200, description="Silence after which a connection is probed, on both sides."
    )
    keepalive_interval_seconds: int = Field(
        10, ge=1, le=3600, description="Time between two probes."
    )
    keepalive_count: int = Field(
        3, ge=1, le=100, description="Unanswered probes after which a connection is given up."
    )


class HeavySettings(Section):
    """Questions that take long: what-if, simulations, drain checks, previews, explanations."""

    most_at_once: int = Field(
        0,
        ge=0,
        le=100,
        description="Most of them on one machine, explanations counted apart; others get 503 with "
        "Retry-After. 0 is half as many as there are cores, at least 1.",
    )
    deadline_seconds: float = Field(
        20.0, gt=0, le=600, description="Longest computation of one; then it is ended with 503."
    )
