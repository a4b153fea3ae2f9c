"""Registry entry of the wiring itself: every process that runs Django knows the Celery app."""

from __future__ import annotations

from django.apps import AppConfig


class WiringConfig(AppConfig):
    """Load the Celery application together with the apps."""

    name = "config"

    def ready(self) -> None:
        """Make ``current_app`` the configured application in web processes and commands too."""
        from config import celery_app  # noqa: F401, PLC0415 - apps first
