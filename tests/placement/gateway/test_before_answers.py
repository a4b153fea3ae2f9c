"""What the gateway does besides: rules, modes by request, copied names, and shadows."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from placement.gateway import shadow
from placement.gateway.sync import sync_names
from placement.models import (
    Inventory,
    Origin,
    ResourceClass,
    ResourceProvider,
    ShadowDifference,
    Trait,
)
from placement.services.locking import log_changes
from placement.services.names import ensure_trait
from tests.e2e.placement_peers import PlacementServer, Request
from tests.placement.client import PlacementClient, uuid
from tests.placement.gateway.conftest import MakeGateway
from tests.placement.gateway.cutting import CutLink
from tests.placement.rows import make_provider

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]
RULES: list[dict[str, Any]] = [
    {"pattern": "GET /", "roles": []},
    {
        "pattern": "PUT /traits/*",
        "roles": [{"name": "member", "projectScope": {"from": "body", "field": "project_id"}}],
    },
    {"pattern": "GET /traits", "roles": ["Viewer"]},
]


@pytest.mark.parametrize("mode", ["passthrough", "hybrid"])
def test_rules_come_first(gateway: MakeGateway, mode: str, cut: CutLink) -> None:
    client = gateway(mode, access=RULES)
    nobody = PlacementClient(token="")
    assert nobody.get("/").status == 200
    cut.seen.clear()
    assert nobody.get("/traits").status == 401
    refused = client.get("/traits")
    assert refused.status == 403
    assert refused.json["error"]["title"] == "Forbidden"
    assert client.get("/nowhere").status == 403
    assert cut.seen == []
    assert PlacementClient(X_Roles="viewer,admin,service").get("/traits").status == 200
    member = PlacementClient(token="someone:p", X_Roles="member,admin,service")
    assert member.put("/traits/CUSTOM_X", {"project_id": "q"}).status == 403
    # The body was read, and arrives all the same.
    answer = member.put("/traits/CUSTOM_X", {"project_id": "p"})
    assert answer.status in {201, 204}, answer.content


def test_some_callers_choose_the_mode(gateway: MakeGateway, cut: CutLink) -> None:
    ours = str(make_provider("ours").uuid)
    path = f"/resource_providers/{ours}"
    client = gateway("passthrough")
    assert client.get(path, X_Cortex_Feature_Mode="local").status == 404
    client = gateway("passthrough", allow_mode_override=True)
    for word, status in (("local", 200), ("crd", 200), ("hybrid", 200), ("passthrough", 404)):
        assert client.get(path, X_Cortex_Feature_Mode=word).status == status, word
    assert client.get(path, X_Cortex_Feature_Mode="nonsense").status == 404
    reader = PlacementClient(token="reader:p", X_Roles="reader")
    assert reader.get(path, X_Cortex_Feature_Mode="local").status in {403, 404}
    cut.seen.clear()
    assert PlacementClient(token="").get(path, X_Cortex_Feature_Mode="local").status == 401
    assert len(cut.seen) == 1  # it is the other side that says so


def test_names_follow_theirs(gateway: MakeGateway, theirs: PlacementServer, cut: CutLink) -> None:
    gateway("hybrid")
    make_provider("ours", traits=("CUSTOM_USED",))
    ensure_trait("CUSTOM_OWN")
    for path in ("/traits/CUSTOM_A", "/traits/CUSTOM_B", "/resource_classes/CUSTOM_R"):
        assert theirs.send(Request(method="PUT", path=path, minor=39)).status == 201
    out = StringIO()
    call_command("placement_sync_names", stdout=out)
    told = out.getvalue()
    assert "traits: 2 new, 0 deleted" in told
    assert "resource_classes: 1 new, 0 deleted" in told
    used = ResourceProvider.objects.get(name="ours")
    used.trait_links.create(trait=Trait.objects.get(name="CUSTOM_B"))
    for path in ("/traits/CUSTOM_A", "/traits/CUSTOM_B", "/resource_classes/CUSTOM_R"):
        assert theirs.send(Request(method="DELETE", path=path, minor=39)).status == 204
    cut.cuts["GET"] = "lost"
    assert {one.result for one in sync_names()} == {"failed"}
    with pytest.raises(CommandError, match="traits, resource_classes"):
        call_command("placement_sync_names", stdout=StringIO())
    cut.cuts.clear()
    assert [one.deleted for one in sync_names()] == [1, 1]
    left = set(Trait.objects.filter(name__startswith="CUSTOM_").values_list("name", flat=True))
    assert left == {"CUSTOM_USED", "CUSTOM_OWN", "CUSTOM_B"}
    assert not ResourceClass.objects.filter(name="CUSTOM_R").exists()
    gateway("local")
    assert sync_names() == []


def test_answers_from_copies_are_compared(gateway: MakeGateway, cut: CutLink) -> None:
    client = gateway("passthrough", shadow_percent=100)
    provider = client.make_provider("n-1", VCPU=8)

    def differences(query: str = "resources=VCPU:1", version: str = "1.36") -> list[str]:
        ShadowDifference.objects.all().delete()
        answer = client.get(f"/allocation_candidates?{query}", version=version)
        assert answer.status == 200
        if thread := shadow._comparisons._thread:
            thread.join()
        return list(ShadowDifference.objects.values_list("reason", flat=True))

    assert differences() == ["other candidates"]
    (kept,) = ShadowDifference.objects.all()
    assert kept.sample["theirs"] == [{provider: {"resources": {"VCPU": 1}}}]
    copy = make_provider("n-1", inventories={"VCPU": 8}, uuid=provider)  # type: ignore[arg-type]
    Inventory.objects.filter(provider=copy).update(max_unit=2147483647)
    ResourceProvider.objects.filter(pk=copy.pk).update(origin=Origin.UPSTREAM)
    log_changes([copy.pk])
    for version in ("1.10", "1.12", "1.29", "1.36"):
        assert differences(version=version) == []
    assert differences("resources=VCPU:1&limit=1") == []
    assert client.allocate(uuid(), {provider: {"VCPU": 2}}).status == 204
    assert differences() == ["other summaries"]
    Inventory.objects.filter(provider=copy).update(used=2)
    log_changes([copy.pk])
    assert differences() == []
    assert client.put("/traits/CUSTOM_NEW").status == 201
    assert "CUSTOM_NEW" in differences("resources=VCPU:1&required=!CUSTOM_NEW")[0]
    assert client.get(f"/resource_providers/{provider}").status == 200
    assert not cut.cuts
