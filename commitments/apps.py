"""Application registry entry of ``commitments``."""

from __future__ import annotations

from django.apps import AppConfig


class CommitmentsConfig(AppConfig):
    """Register ``commitments`` with Django."""

    name = "commitments"
