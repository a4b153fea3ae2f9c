"""Application registry entry of ``placement``."""

from __future__ import annotations

from django.apps import AppConfig


class PlacementConfig(AppConfig):
    """Register ``placement`` with Django."""

    name = "placement"
