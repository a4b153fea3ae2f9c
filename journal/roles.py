"""Roles of the admin: groups that every ``migrate`` keeps as they are described here.

Who needs other rights makes a group of their own; these three are set back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.apps import AppConfig
from django.contrib.auth.models import Group, Permission
from django.db.models import Q

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMINISTRATOR: Final = "administrator"
APPS: Final = (
    "journal",
    "hosts",
    "capacity",
    "commitments",
    "failover",
    "placement",
    "bridge",
    "webhooks",
)
ACCOUNTS: Final = "auth"

_OURS = Q(content_type__app_label__in=APPS)
_ACCOUNTS = Q(content_type__app_label=ACCOUNTS, content_type__model__in=("user", "group"))
ROLES: Final[Mapping[str, Q]] = {
    VIEWER: _OURS & Q(codename__startswith="view_"),
    OPERATOR: _OURS,
    ADMINISTRATOR: _OURS | _ACCOUNTS,
}
"""Role to its permissions; what the system owns nobody may change, whatever the role."""


def keep_roles(app_config: AppConfig, **kwargs: Any) -> None:  # Any: Django's own signature
    """Give each role the permissions of an app that was just migrated."""
    if app_config.label not in {*APPS, ACCOUNTS}:
        return
    for name, wanted in ROLES.items():
        group, _ = Group.objects.get_or_create(name=name)
        of_app = Permission.objects.filter(content_type__app_label=app_config.label)
        held = set(group.permissions.filter(content_type__app_label=app_config.label))
        due = set(of_app.filter(wanted))
        if held != due:
            group.permissions.remove(*held - due)
            group.permissions.add(*due - held)
