"""``manage.py placement_sync_standards``: insert standard traits and resource classes."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from placement.services.standards import sync_standards


class Command(BaseCommand):
    """Insert the standard names that are missing; nothing is deleted."""

    help = "Insert the standard traits and resource classes that are missing; safe to repeat."

    def handle(self, *_: object, **__: Any) -> None:  # Any: Django's own signature
        """Insert, and say how many were new."""
        self.stdout.write(f"{sync_standards()} names were new")
