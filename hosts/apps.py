"""Application registry entry of ``hosts``."""

from __future__ import annotations

from django.apps import AppConfig


class HostsConfig(AppConfig):
    """Register ``hosts`` with Django."""

    name = "hosts"
