"""Application registry entry of ``webhooks``."""

from __future__ import annotations

from django.apps import AppConfig

from journal.metrics import at_scrape


class WebhooksConfig(AppConfig):
    """Register ``webhooks`` with Django, and its metrics."""

    name = "webhooks"

    def ready(self) -> None:
        """Register metrics."""
        from webhooks.metrics import WEBHOOKS  # noqa: PLC0415 - models first

        at_scrape(WEBHOOKS)
