"""Changes of users and groups leave a trace, and nobody makes themselves more than they are."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse

from journal.models import AuditEntry
from journal.roles import ADMINISTRATOR

pytestmark = pytest.mark.django_db
PASSWORD = "correct-horse-battery"  # noqa: S105 - of a user of a test


def last_entry() -> AuditEntry:
    return AuditEntry.objects.order_by("-id")[0]


def fields_of(user: User, **changed: object) -> dict[str, Any]:
    shown = {"username": user.username, "is_active": "on", "is_staff": "on"}
    joined = {"date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
    return {**shown, **joined, **changed}


@pytest.fixture
def administrator(client: Client) -> Client:
    user = User.objects.create_user("boss", password=PASSWORD, is_staff=True)
    user.groups.add(Group.objects.get(name=ADMINISTRATOR))
    client.force_login(user)
    return client


def test_a_users_life_is_in_the_audit_trail(admin_client: Client) -> None:
    chosen = {"password1": PASSWORD, "password2": PASSWORD, "usable_password": "true"}
    added = admin_client.post(reverse("admin:auth_user_add"), {"username": "eve", **chosen})
    assert added.status_code == 302, added.context["adminform"].form.errors
    user = User.objects.get(username="eve")
    assert (last_entry().action, last_entry().actor) == ("user_created", "admin:admin")

    viewer = Group.objects.get(name="viewer")
    right = Permission.objects.get(codename="view_user")
    changed = fields_of(user, groups=[viewer.pk], user_permissions=[right.pk])
    answer = admin_client.post(reverse("admin:auth_user_change", args=[user.pk]), changed)
    assert answer.status_code == 302, answer.content
    entry = last_entry()
    assert entry.action == "user_changed"
    assert entry.before is not None
    assert entry.after is not None
    assert (entry.before["groups"], entry.after["groups"]) == ([], ["viewer"])
    assert (entry.before["permissions"], entry.after["permissions"]) == ([], ["auth.view_user"])
    assert entry.request_id

    admin_client.post(
        reverse("admin:auth_user_password_change", args=[user.pk]),
        {"password1": PASSWORD * 2, "password2": PASSWORD * 2, "usable_password": "true"},
    )
    assert last_entry().action == "user_password_changed"
    assert PASSWORD not in str(AuditEntry.objects.values_list("before", "after", "reason"))

    admin_client.post(reverse("admin:auth_user_delete", args=[user.pk]), {"post": "yes"})
    assert (last_entry().action, last_entry().after) == ("user_deleted", None)


def test_groups_deleted_by_an_action_are_in_the_audit_trail(admin_client: Client) -> None:
    groups = [Group.objects.create(name=name) for name in ("one", "two")]
    admin_client.post(
        reverse("admin:auth_group_changelist"),
        {
            "action": "delete_selected",
            "_selected_action": [group.pk for group in groups],
            "post": "yes",
        },
    )

    entries = AuditEntry.objects.filter(action="group_deleted").order_by("id")
    assert [entry.object_id for entry in entries] == ["one", "two"]


def test_a_refused_change_leaves_no_entry(admin_client: Client, admin_user: User) -> None:
    url = reverse("admin:auth_user_change", args=[admin_user.pk])
    assert admin_client.post(url, {"username": ""}).status_code == 200
    assert not AuditEntry.objects.filter(object_type="User").exists()


def test_an_administrator_does_not_become_a_superuser(
    administrator: Client, admin_user: User
) -> None:
    boss = User.objects.get(username="boss")
    url = reverse("admin:auth_user_change", args=[boss.pk])
    rights = list(Permission.objects.values_list("pk", flat=True)[:3])
    posted = fields_of(boss, is_superuser="on", user_permissions=rights, email="b@example.org")
    assert administrator.post(url, posted).status_code == 302

    boss.refresh_from_db()
    assert boss.email == "b@example.org"
    assert not boss.is_superuser
    assert not boss.user_permissions.exists()
    for kind in ("change", "delete", "password_change"):
        address = reverse(f"admin:auth_user_{kind}", args=[admin_user.pk])
        assert administrator.post(address, {"post": "yes"}).status_code == 403, kind
    administrator.post(
        reverse("admin:auth_user_changelist"),
        {"action": "delete_selected", "_selected_action": [admin_user.pk], "post": "yes"},
    )
    assert User.objects.filter(pk=admin_user.pk).exists()
