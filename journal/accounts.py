"""What the audit trail keeps of users and groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import Group, User

from journal.services import Change

Facts = Mapping[str, Any]


def account_facts(account: User | Group) -> Facts:
    """Return what the audit trail keeps of a user or group; never a password."""
    permissions = account.permissions if isinstance(account, Group) else account.user_permissions
    named = permissions.values_list("content_type__app_label", "codename")
    facts: dict[str, Any] = {"permissions": sorted(".".join(pair) for pair in named)}
    if isinstance(account, Group):
        return {"name": account.name, **facts}
    return {
        "username": account.username,
        "email": account.email,
        "is_active": account.is_active,
        "is_staff": account.is_staff,
        "is_superuser": account.is_superuser,
        "groups": sorted(account.groups.values_list("name", flat=True)),
        **facts,
    }


def account_change(
    account: User | Group,
    *,
    before: Facts | None,
    after: Facts | None,
    verb: str = "",
    reason: str = "",
) -> Change:
    """Return the audit entry of a change; made, changed or deleted by what is there."""
    kind = type(account).__name__
    made = "created" if before is None else "changed"
    return Change(
        action=f"{kind.lower()}_{verb or (made if after is not None else 'deleted')}",
        object_type=kind,
        object_id=str(account),
        before=before,
        after=after,
        reason=reason,
    )
