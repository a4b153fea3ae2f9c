"""Application registry entry of ``journal``."""

from __future__ import annotations

from django.apps import AppConfig


class JournalConfig(AppConfig):
    """Register ``journal`` with Django."""

    name = "journal"
