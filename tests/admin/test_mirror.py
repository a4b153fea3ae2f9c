"""The page of the mirror: which objects need somebody, their rows and their YAML."""

from __future__ import annotations

import pytest
import yaml
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from bridge.models import MirrorState
from tests.factories import make_commitment, make_host

pytestmark = pytest.mark.django_db
LIST = reverse("admin:bridge_mirrorstate_changelist")


def mirrored(name: str, **fields: object) -> MirrorState:
    host = make_host(name)
    values = {"kind": "Host", "name": name, "source_id": host.pk, "is_due": False, **fields}
    return MirrorState.objects.create(**values)


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ("mirrored", {"fine"}),
        ("waits", {"waiting"}),
        ("refused", {"refused"}),
        ("left", {"left"}),
        ("adopted", {"adopted"}),
        ("edited", {"fine"}),
    ],
)
def test_objects_are_found_by_their_state(
    admin_client: Client, state: str, names: set[str]
) -> None:
    now = timezone.now()
    mirrored("fine", drifts=2)
    mirrored("waiting", is_due=True)
    mirrored("refused", is_due=True, error="422: " + "x" * 500)
    mirrored("left", drifted_at=now)
    mirrored("adopted", drifted_at=now, adopted={"uid": "u", "fields": []})

    page = admin_client.get(LIST, {"state": state})

    assert {row.name for row in page.context["cl"].result_list} == names
    assert "x" * 200 not in page.content.decode()


def test_the_yaml_of_an_object_stands_by_itself(admin_client: Client) -> None:
    row = make_commitment()
    state = MirrorState.objects.create(
        kind="CommittedResource", source_id=row.pk, name="c1", object_generation=3
    )
    page = admin_client.get(reverse("admin:bridge_mirrorstate_change", args=[state.pk]))
    address = reverse("admin:bridge_mirrorstate_yaml", args=[state.pk])
    assert address in page.content.decode()
    assert reverse("admin:commitments_commitment_change", args=[row.pk]) in page.content.decode()

    answer = admin_client.get(address)

    assert answer.headers["Content-Type"] == "application/yaml; charset=utf-8"
    found = yaml.safe_load(answer.content)
    assert found["kind"] == "CommittedResource"
    assert found["spec"]["commitmentUUID"] == row.commitment_uuid


def test_there_is_no_yaml_of_what_is_gone_or_not_for_everybody(
    admin_client: Client, client: Client
) -> None:
    gone = MirrorState.objects.create(kind="Host", source_id=1 << 40, name="gone")
    address = reverse("admin:bridge_mirrorstate_yaml", args=[gone.pk])
    assert admin_client.get(address).status_code == 404
    assert (
        "the row is gone"
        in admin_client.get(
            reverse("admin:bridge_mirrorstate_change", args=[gone.pk])
        ).content.decode()
    )
    assert admin_client.get(reverse("admin:bridge_mirrorstate_yaml", args=[99])).status_code == 404
    assert client.get(address).status_code == 302
