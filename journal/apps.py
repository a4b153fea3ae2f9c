"""Application registry entry of ``journal``."""

from __future__ import annotations

from django.apps import AppConfig


class JournalConfig(AppConfig):
    """Register ``journal`` with Django."""

    name = "journal"

    def ready(self) -> None:
        """Carry request ids across the broker."""
        from journal.task_tracing import connect_task_tracing  # noqa: PLC0415 - apps first

        connect_task_tracing()
