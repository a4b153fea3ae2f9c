from __future__ import annotations

from typing import Any

import pytest
from django.db.models import QuerySet
from django.test import Client
from django.urls import reverse

from capacity.groups.editing import (
    SETTINGS_FIELDS,
    remove_group_rule,
    remove_group_settings,
    save_group_rule,
    save_group_settings,
)
from capacity.models import MAX_RAM_UNIT_GIB, FlavorGroupRule, FlavorGroupSettings
from journal.actors import Actor
from journal.errors import InvalidInput
from journal.models import AuditEntry, Outbox

pytestmark = pytest.mark.django_db
WHO: dict[str, Any] = {"actor": Actor(name="operator"), "request_id": "req-1"}


def audited() -> QuerySet[AuditEntry]:
    """Return the entries of group settings and rules; migrations leave entries of pipelines."""
    return AuditEntry.objects.exclude(object_type="pipeline")


def save(group_name: str = "hana_1", **settings: int | bool) -> FlavorGroupSettings:
    return save_group_settings(group_name=group_name, settings=settings, **WHO)


def test_new_settings_are_stored_audited_and_announced() -> None:
    save(ram_unit_gib=16, ram_handles_commitments=True)

    row = FlavorGroupSettings.objects.get(group_name="hana_1")
    entry = audited().get()
    assert (row.ram_unit_gib, row.ram_handles_commitments) == (16, True)
    assert (entry.action, entry.actor) == ("flavor_group_settings_created", "operator")
    assert entry.before is None
    assert Outbox.objects.latest("id").object_id == "hana_1"


def test_a_change_is_audited_with_before_and_after() -> None:
    save(ram_unit_gib=1)
    save(ram_unit_gib=8)

    entry = audited().first()
    assert entry is not None
    assert entry.before is not None
    assert entry.after is not None
    assert (entry.before["ram_unit_gib"], entry.after["ram_unit_gib"]) == (1, 8)


def test_saving_the_same_again_writes_nothing() -> None:
    save(ram_unit_gib=8)
    save(ram_unit_gib=8)

    assert audited().count() == 1


@pytest.mark.parametrize(
    ("group_name", "settings"),
    [
        pytest.param("hana_1", {"ram_unit_gib": MAX_RAM_UNIT_GIB + 1}, id="unit too large"),
        pytest.param("hana_1", {"ram_unit_gib": -1}, id="negative unit"),
        pytest.param("hana_1", {"no_such_setting": 1}, id="unknown setting"),
        pytest.param("", {}, id="no name"),
        pytest.param("hana_*", {}, id="a pattern"),
        pytest.param(" hana_1", {}, id="a blank before the name"),
    ],
)
def test_wrong_settings_are_refused(group_name: str, settings: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        save(group_name, **settings)

    assert not FlavorGroupSettings.objects.exists()
    assert not audited().exists()


def test_removing_settings_is_audited_once() -> None:
    save("*")
    remove_group_settings(group_name="*", **WHO)
    remove_group_settings(group_name="*", **WHO)

    actions = list(audited().values_list("action", flat=True))
    assert actions == ["flavor_group_settings_removed", "flavor_group_settings_created"]


def test_a_rule_is_created_changed_and_removed() -> None:
    rule = save_group_rule(rule_id=None, group_name="gp", flavor_pattern="m1.*", position=1, **WHO)
    save_group_rule(rule_id=rule.pk, group_name="gp", flavor_pattern="m1.*", position=2, **WHO)
    with pytest.raises(InvalidInput):
        save_group_rule(rule_id=None, group_name="gp", flavor_pattern="m1.*", position=3, **WHO)
    remove_group_rule(rule_id=rule.pk, **WHO)

    assert not FlavorGroupRule.objects.exists()
    assert list(audited().order_by("id").values_list("action", flat=True)) == [
        "flavor_group_rule_created",
        "flavor_group_rule_changed",
        "flavor_group_rule_removed",
    ]


def test_an_operator_edits_settings_in_the_admin(admin_client: Client) -> None:
    row = save(ram_unit_gib=1)
    form = {"ram_unit_gib": "4", "cores_handles_commitments": "on"}

    url = reverse("admin:capacity_flavorgroupsettings_change", args=[row.pk])
    assert admin_client.post(url, form).status_code == 302

    row.refresh_from_db()
    entry = audited().first()
    assert (row.ram_unit_gib, row.cores_handles_commitments) == (4, True)
    assert entry is not None
    assert (entry.actor, entry.action) == ("admin:admin", "flavor_group_settings_changed")


def test_an_operator_adds_and_deletes_settings_in_the_admin(admin_client: Client) -> None:
    add = reverse("admin:capacity_flavorgroupsettings_add")
    refused = admin_client.post(add, {"group_name": "x*", "ram_unit_gib": "1"})
    assert "a group&#x27;s name, or a single *" in refused.content.decode()
    assert admin_client.post(add, {"group_name": "x", "ram_unit_gib": "1"}).status_code == 302
    row = FlavorGroupSettings.objects.get()

    url = reverse("admin:capacity_flavorgroupsettings_delete", args=[row.pk])
    assert admin_client.post(url, {"post": "yes"}).status_code == 302

    assert not FlavorGroupSettings.objects.exists()
    assert audited().count() == 2


def test_an_operator_edits_rules_in_the_admin(admin_client: Client) -> None:
    add = reverse("admin:capacity_flavorgrouprule_add")
    form = {"group_name": "gp", "flavor_pattern": "m1.*", "position": "0"}

    assert admin_client.post(add, form).status_code == 302

    assert FlavorGroupRule.objects.get().flavor_pattern == "m1.*"
    assert audited().get().actor == "admin:admin"


def test_every_setting_can_be_saved_through_the_service() -> None:
    columns = {field.name for field in FlavorGroupSettings._meta.concrete_fields}

    assert set(SETTINGS_FIELDS) == columns - {
        "id", "changed_xid", "created_at", "updated_at", "group_name",
    }  # fmt: skip
