"""Application registry entry of ``bridge``."""

from __future__ import annotations

from django.apps import AppConfig


class BridgeConfig(AppConfig):
    """Register ``bridge`` with Django."""

    name = "bridge"
