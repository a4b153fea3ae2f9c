from __future__ import annotations

from typing import Any

import pytest
import yaml
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from capacity.models import Pipeline, PipelineVersion
from capacity.nova.pipelines import save_pipeline
from journal.actors import Actor
from journal.models import AuditEntry
from scheduling.pipelines import PipelineSpec, StepSpec

pytestmark = pytest.mark.django_db
LIST = reverse("admin:capacity_pipeline_changelist")
ADD = reverse("admin:capacity_pipeline_add")


def make() -> Pipeline:
    spec = PipelineSpec(name="mine", filters=(StepSpec(name="filter_correct_az"),))
    save_pipeline(spec, actor=Actor(name="operator"), request_id="req-1")
    return Pipeline.objects.get(name="mine")


def page(row: Pipeline) -> str:
    return reverse("admin:capacity_pipeline_change", args=[row.pk])


def form(definition: Any, *, version: int, **fields: Any) -> dict[str, Any]:
    text = definition if isinstance(definition, str) else yaml.safe_dump(definition)
    inline = {"versions-TOTAL_FORMS": "0", "versions-INITIAL_FORMS": "0"}
    return {"definition": text, "read_version": version, "reason": "", **inline, **fields}


def test_the_list_says_which_pipelines_can_be_used(admin_client: Client) -> None:
    make()
    Pipeline.objects.filter(name="mine").update(filters=[{"name": "filter_external_customer"}])
    shown = admin_client.get(LIST).content.decode()
    assert "kvm-general-purpose-load-balancing" in shown
    assert "not usable" in shown
    assert "16 filters, 5 weighers" in shown


def test_a_change_shows_its_plan_before_it_is_applied(admin_client: Client) -> None:
    row = make()
    wanted = {"name": "mine", "filters": [{"name": "filter_status_conditions"}]}
    shown = admin_client.post(page(row), form(wanted, version=1)).content.decode()
    assert "Not saved yet" in shown
    assert "filter filter_correct_az is removed" in shown
    row.refresh_from_db()
    assert row.version == 1
    response = admin_client.post(
        page(row), form(wanted, version=1, is_confirmed="on", reason="because")
    )
    assert response.status_code == 302, response.content.decode()
    row.refresh_from_db()
    assert row.version == 2
    assert row.filters == [{"name": "filter_status_conditions"}]
    entry = AuditEntry.objects.get(action="pipeline_changed", object_id="mine")
    assert (entry.actor, entry.reason) == ("admin:admin", "because")
    assert PipelineVersion.objects.get(pipeline=row, version=2).actor == "admin:admin"


def test_saving_without_a_change_needs_no_confirmation(admin_client: Client) -> None:
    row = make()
    same = {"name": "mine", "filters": [{"name": "filter_correct_az"}]}
    assert admin_client.post(page(row), form(same, version=1)).status_code == 302
    row.refresh_from_db()
    assert row.version == 1


def test_a_new_pipeline_is_planned_and_created(admin_client: Client) -> None:
    wanted = {"name": "other", "filters": [{"name": "filter_of_tomorrow"}]}
    shown = admin_client.post(ADD, form(wanted, version=0)).content.decode()
    assert "create other as version 1" in shown
    assert "unknown filter filter_of_tomorrow will be ignored" in shown
    response = admin_client.post(ADD, form(wanted, version=0, is_confirmed="on"))
    assert response.status_code == 302
    assert Pipeline.objects.get(name="other").version == 1


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("{", "while parsing"),
        ("[]", "must be an object"),
        ({"name": "other"}, "must stay mine"),
        ({"name": "mine", "type": "x"}, "unknown pipeline type"),
        ({"name": "mine", "filters": [{"name": "filter_external_customer"}]}, "prefix"),
    ],
)
def test_a_definition_that_cannot_be_saved_says_why(
    admin_client: Client, definition: Any, words: str
) -> None:
    row = make()
    response = admin_client.post(page(row), form(definition, version=1, is_confirmed="on"))
    assert response.status_code == 200
    assert words in response.content.decode()
    row.refresh_from_db()
    assert row.version == 1


def test_a_page_that_was_read_before_another_saved_is_refused(admin_client: Client) -> None:
    row = make()
    wanted = {"name": "mine"}
    spec = PipelineSpec(name="mine", description="new")
    save_pipeline(spec, actor=Actor(name="operator"), request_id="req-1")
    response = admin_client.post(page(row), form(wanted, version=1, is_confirmed="on"))
    assert "changed meanwhile and is at version 2" in response.content.decode()


def test_a_page_shows_conditions_and_versions(admin_client: Client) -> None:
    row = make()
    shown = admin_client.get(page(row)).content.decode()
    assert "AllStepsIndexed" in shown
    assert "filter_correct_az" in shown
    assert "1 filters, 0 weighers" in shown


def test_deleting_goes_through_the_audit(admin_client: Client) -> None:
    row = make()
    url = reverse("admin:capacity_pipeline_delete", args=[row.pk])
    assert admin_client.post(url, {"post": "yes"}).status_code == 302
    assert not Pipeline.objects.filter(name="mine").exists()
    assert AuditEntry.objects.filter(action="pipeline_removed", object_id="mine").exists()


def test_who_may_only_look_sees_the_definition(client: Client, django_user_model: Any) -> None:
    user = django_user_model.objects.create_user("viewer", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_pipeline"))
    client.force_login(user)
    shown = client.get(page(make())).content.decode()
    assert "filter_correct_az" in shown
    assert "<textarea" not in shown


RESTORE = "Restore this version"


def make_versions() -> Pipeline:
    """Version 1 has a filter, version 2 has none."""
    row = make()
    save_pipeline(PipelineSpec(name="mine"), actor=Actor(name="operator"), request_id="req-2")
    row.refresh_from_db()
    return row


def test_an_earlier_version_is_restored_after_its_plan_was_shown(admin_client: Client) -> None:
    row = make_versions()
    assert admin_client.get(page(row)).content.decode().count(RESTORE) == 1
    response = admin_client.get(f"{page(row)}?restore=1")
    shown = response.content.decode()
    assert "Restoring version 1 would become version 3" in shown
    assert "filter filter_correct_az" in shown
    row.refresh_from_db()
    assert row.version == 2, "nothing is written by looking"

    fields = response.context["adminform"].form
    restored = {name: fields[name].value() for name in ("definition", "read_version", "reason")}
    saved = form(restored["definition"], version=restored["read_version"], is_confirmed="on")
    saved["reason"] = restored["reason"]
    assert admin_client.post(page(row), saved).status_code == 302
    row.refresh_from_db()
    assert (row.version, row.filters) == (3, [{"name": "filter_correct_az"}])
    entry = AuditEntry.objects.filter(action="pipeline_changed", object_id="mine").first()
    assert entry is not None
    assert entry.reason == "restore version 1"


@pytest.mark.parametrize("version", ["9", "0", "x", "-1", "1" * 30, ""])
def test_a_version_that_is_not_there_is_not_restored(admin_client: Client, version: str) -> None:
    row = make_versions()
    shown = admin_client.get(f"{page(row)}?restore={version}").content.decode()
    assert "has no version" in shown
    assert "filters: []" in shown


def test_a_version_that_todays_steps_refuse_says_why(admin_client: Client) -> None:
    row = make_versions()
    old = PipelineVersion.objects.filter(pipeline=row, version=1)
    old.update(definition={"name": "mine", "filters": [{"name": "filter_external_customer"}]})
    shown = admin_client.get(f"{page(row)}?restore=1").content.decode()
    assert "Version 1 cannot be restored" in shown
    old.update(definition={"name": "mine", "type": "of-the-past"})
    assert (
        "Version 1 cannot be restored"
        in admin_client.get(f"{page(row)}?restore=1").content.decode()
    )


def test_a_version_that_equals_the_present_one_says_so(admin_client: Client) -> None:
    row = make_versions()
    shown = admin_client.get(f"{page(row)}?restore=2").content.decode()
    assert "says what is in force already" in shown


def test_who_may_only_look_is_not_offered_to_restore(client: Client) -> None:
    row = make_versions()
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.set(
        Permission.objects.filter(codename__in=["view_pipeline", "view_pipelineversion"])
    )
    client.force_login(viewer)
    for address in (page(row), f"{page(row)}?restore=1"):
        shown = client.get(address).content.decode()
        assert RESTORE not in shown
        assert "AllStepsIndexed" in shown
