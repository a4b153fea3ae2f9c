"""Application registry entry of ``console``."""

from __future__ import annotations

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    """Register ``console`` with Django, whose admin looks for ``console.admin``."""

    name = "console"
