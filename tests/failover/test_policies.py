"""Policies as rows, and brakes, in the admin (spec failover, 6, 17.9)."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from failover.models import FailoverPolicy, FailoverZone
from failover.selectors.zone import failover_requirements
from failover.services.policies import InvalidPattern, preview_pattern, remove_policy, save_policy
from journal.actors import Actor
from journal.models import AuditEntry
from tests.failover.zones import flavor, hosts, vm

pytestmark = pytest.mark.django_db

OPERATOR = Actor(name="operator")


@pytest.fixture
def browser(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("root", password="x"))
    return client


def save(pattern: str, count: int, policy_id: int | None = None) -> FailoverPolicy:
    return save_policy(
        policy_id=policy_id,
        pattern=pattern,
        required_count=count,
        position=0,
        actor=OPERATOR,
        request_id="r",
    )


def test_policy_is_saved_changed_and_removed_with_an_audit_trail() -> None:
    row = save("hana_*", 2)
    save("hana_*", 3, row.pk)
    save("hana_*", 3, row.pk)
    remove_policy(policy_id=row.pk, actor=OPERATOR, request_id="r")
    remove_policy(policy_id=row.pk, actor=OPERATOR, request_id="r")
    entries = AuditEntry.objects.filter(object_type="failover_policy").order_by("id")
    counts = [(e.before or {}).get("required_count") for e in entries]
    assert counts == [None, 2, 3]
    assert not FailoverPolicy.objects.exists()


@pytest.mark.parametrize("pattern", ["", "[", "a\\"])
def test_malformed_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        save(pattern, 1)


def test_preview_shows_flavors_and_vms() -> None:
    hosts("host1")
    vm("vm-1@host1", of=flavor("m1.large"))
    vm("vm-2@host1", of=flavor("m1.large"))
    flavor("m1.small")
    preview = preview_pattern("m1.*")
    assert (preview.flavors, preview.vms) == (("m1.large", "m1.small"), 2)
    assert preview_pattern("x*").vms == 0


def test_admin_saves_and_refuses_patterns(browser: Client) -> None:
    url = reverse("admin:failover_failoverpolicy_add")
    form = {"flavor_pattern": "m1.[", "required_count": "2", "position": "0"}
    answer = browser.post(url, form)
    assert answer.status_code == 200
    assert b"open or empty" in answer.content
    assert browser.post(url, {**form, "flavor_pattern": "m1.*"}).status_code == 302
    row = FailoverPolicy.objects.get()
    assert AuditEntry.objects.filter(action="failover_policy_saved").count() == 1
    page = browser.get(reverse("admin:failover_failoverpolicy_change", args=[row.pk]))
    assert page.status_code == 200
    assert browser.get(reverse("admin:failover_failoverpolicy_changelist")).status_code == 200


def test_brake_is_confirmed_by_an_action(browser: Client) -> None:
    braked = FailoverZone.objects.create(zone="az-a", brake_reason="vm_list_empty")
    off = FailoverZone.objects.create(zone="az-b")
    url = reverse("admin:failover_failoverzone_changelist")
    assert browser.get(url).status_code == 200
    browser.post(url, {"action": "confirm_brakes", "_selected_action": [braked.pk, off.pk]})
    braked.refresh_from_db()
    assert braked.confirmed_by
    assert FailoverZone.objects.get(zone="az-b").confirmed_at is None


def test_viewer_cannot_confirm_a_brake(client: Client) -> None:
    from django.contrib.auth.models import Permission  # noqa: PLC0415

    viewer = User.objects.create_user("viewer", password="x", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_failoverzone"))
    client.force_login(viewer)
    row = FailoverZone.objects.create(zone="az-a", brake_reason="vm_list_empty")
    url = reverse("admin:failover_failoverzone_changelist")
    client.post(url, {"action": "confirm_brakes", "_selected_action": [row.pk]})
    row.refresh_from_db()
    assert row.confirmed_at is None


def test_without_any_policy_every_vm_needs_what_is_shipped() -> None:
    assert failover_requirements() == {"*": 2}
    save("hana_*", 1)
    assert failover_requirements() == {"hana_*": 1}


def test_a_policy_of_none_switches_failover_off() -> None:
    save("*", 0)
    assert failover_requirements() == {"*": 0}
