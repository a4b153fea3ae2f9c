"""Whether both sides of mode ``hybrid`` fit together (docs/gateway.md)."""

from __future__ import annotations

from io import StringIO
from typing import Any

import orjson
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from journal.leases import held_lease
from placement.doctor import check_hybrid
from placement.gateway import drift
from placement.metrics import INVENTORIES
from placement.models import HybridReport
from placement.tasks import VERIFY_HYBRID, verify_hybrid
from tests.e2e.placement_peers import PlacementServer, Request
from tests.placement.client import consumer_body, uuid
from tests.placement.gateway.conftest import MakeGateway
from tests.placement.gateway.cutting import CutLink
from tests.placement.rows import make_provider

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]
OURS, THEIRS = "m-ours", "n-theirs"
NOTHING = {"shadow": 0, "owner": 0, "trait": 0, "resource_class": 0, "unsettled": 0}


def looked(*options: str) -> tuple[dict[str, Any], int]:
    """Run the command; return what it says, and its exit status."""
    out, status = StringIO(), 0
    try:
        call_command("placement_drift", "--json", *options, stdout=out)
    except CommandError as error:
        status = error.returncode
    return orjson.loads(out.getvalue()), status


def told_by_metrics() -> dict[str, float]:
    return {
        sample.labels.get("kind", one.name): sample.value
        for one in INVENTORIES.collect()
        if one.name in {"placement_split_consumers", "placement_hybrid_findings"}
        for sample in one.samples
    }


def test_what_does_not_fit_is_told(
    gateway: MakeGateway, theirs: PlacementServer, cut: CutLink
) -> None:
    client = gateway()
    (finding,) = check_hybrid()
    assert finding.severity == "warning"
    ours = str(make_provider(OURS, inventories={"VCPU": 8}).uuid)
    there = client.make_provider(THEIRS, VCPU=8)
    consumers = [uuid() for _ in range(3)]
    for consumer in consumers:
        amounts = {ours: {"VCPU": 1}, there: {"VCPU": 1}}
        assert client.allocate(consumer, amounts).status == 204
    report, status = looked()
    assert (report["findings"], report["split_consumers"], status) == ([], 3, 0)
    assert verify_hybrid() == NOTHING
    assert told_by_metrics() == {"placement_split_consumers": 3.0, **NOTHING}
    (finding,) = check_hybrid()
    assert finding.severity == "ok"

    def send(method: str, path: str, body: Any) -> None:
        reply = theirs.send(Request(method=method, path=path, minor=28, body=body))
        assert reply.status in {200, 204}, reply

    # What somebody did there past us: another project, and a provider of our name that is used.
    shadow = uuid()
    send("POST", "/resource_providers", {"name": OURS, "uuid": shadow})
    stock = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}}
    send("PUT", f"/resource_providers/{shadow}/inventories", stock)
    send("PUT", f"/allocations/{uuid()}", consumer_body({shadow: {"VCPU": 1}}))
    other = consumer_body({there: {"VCPU": 1}}, generation=1, project_id="q")
    send("PUT", f"/allocations/{consumers[0]}", other)
    make_provider("m-new", inventories={"CUSTOM_C": 1}, traits=("CUSTOM_T", "HW_CPU_X86_AVX"))
    report, status = looked()
    found = {one["kind"]: (one["subject"], one["detail"]) for one in report["findings"]}
    assert (status, len(report["findings"])) == (1, 4)
    assert found["shadow"] == (
        shadow, f"{OURS} has the name of {ours} of ours; 1 consumer with something of it there"
    )  # fmt: skip
    assert found["owner"] == (consumers[0], "project p here, q there")
    assert (found["trait"][0], found["resource_class"][0]) == ("CUSTOM_T", "CUSTOM_C")
    told = {**NOTHING, "shadow": 1, "owner": 1, "trait": 1, "resource_class": 1}
    assert verify_hybrid() == told
    assert told_by_metrics() == {"placement_split_consumers": 3.0, **told}
    (finding,) = check_hybrid()
    assert "1 owner, 1 resource_class, 1 shadow, 1 trait" in finding.found
    report, status = looked("--fix")
    assert (status, {one["kind"] for one in report["findings"]}) == (1, {"shadow", "owner"})
    assert theirs.get("/traits?name=in:CUSTOM_T")["traits"] == ["CUSTOM_T"]
    assert HybridReport.objects.count() == 6
    with held_lease(VERIFY_HYBRID):
        assert verify_hybrid() == {}
    cut.replies["/resource_providers"] = (503, b"away")
    with pytest.raises(CommandError, match="answered 503"):
        call_command("placement_drift", stdout=StringIO())


def test_many_consumers_are_found_by_their_providers(
    gateway: MakeGateway, cut: CutLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = gateway()
    ours = str(make_provider(OURS, inventories={"VCPU": 8}).uuid)
    there = client.make_provider(THEIRS, VCPU=8)
    split = uuid()
    for consumer in (uuid(), uuid()):
        assert client.allocate(consumer, {ours: {"VCPU": 1}}).status == 204
    assert client.allocate(split, {ours: {"VCPU": 1}, there: {"VCPU": 1}}).status == 204
    monkeypatch.setattr(drift, "MOST_REPORTS", 1)
    for _ in range(2):
        cut.seen.clear()
        assert looked()[0]["split_consumers"] == 1
        asked = [path for _, path in cut.seen if "/allocations" in path]
        assert asked == [
            f"/placement/resource_providers/{there}/allocations",
            f"/placement/allocations/{split}",
        ]
    assert HybridReport.objects.count() == 1


@pytest.mark.parametrize("mode", ["passthrough", "local"])
def test_in_other_modes_there_is_nothing_to_look_at(
    gateway: MakeGateway, cut: CutLink, mode: str
) -> None:
    gateway(mode)
    assert verify_hybrid() == {}
    assert [one.severity for one in check_hybrid()] == ["ok"]
    with pytest.raises(CommandError, match="no group is in mode hybrid"):
        call_command("placement_drift", stdout=StringIO())
    assert cut.seen == []
