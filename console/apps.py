"""Application registry entry of ``console``."""

from __future__ import annotations

from django.apps import AppConfig
from django.contrib.admin import apps


class ConsoleConfig(AppConfig):
    """Register ``console`` with Django, whose admin looks for ``console.admin``."""

    name = "console"


class OperatorAdminConfig(apps.AdminConfig):
    """Django's admin, with our site in it."""

    default = False
    default_site = "console.base.site.OperatorSite"
