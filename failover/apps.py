"""Application registry entry of ``failover``."""

from __future__ import annotations

from django.apps import AppConfig


class FailoverConfig(AppConfig):
    """Register ``failover`` with Django."""

    name = "failover"
