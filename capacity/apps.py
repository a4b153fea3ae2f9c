"""Application registry entry of ``capacity``."""

from __future__ import annotations

from django.apps import AppConfig


class CapacityConfig(AppConfig):
    """Register ``capacity`` with Django."""

    name = "capacity"
