from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command

from bridge.conf import BridgeCluster, BridgeSettings
from bridge.domain.kinds import PLURALS, Naming
from bridge.kube.definitions import load_definitions
from config.launcher.processes import wait_until
from tests.kube.server import ApiServer, Cluster

PATIENCE_SECONDS = 240.0  # discovery and the end of kinds take long on a busy machine
NUDGE_SECONDS = 15.0  # after that, a kind that is still there is forgotten rather than slow
UUID = "11111111-2222-3333-4444-555555555555"
COMMITMENT: dict[str, Any] = {
    "apiVersion": "cortex.cloud/v1alpha1",
    "kind": "CommittedResource",
    "metadata": {"name": f"commitment-{UUID}"},
    "spec": {
        "commitmentUUID": UUID,
        "schedulingDomain": "nova",
        "flavorGroupName": "hana",
        "resourceType": "memory",
        "amount": "4Gi",
        "availabilityZone": "az-a",
        "projectID": "p1",
        "domainID": "d1",
        "state": "confirmed",
    },
}


def with_spec(**changes: Any) -> str:
    spec = {**COMMITMENT["spec"], **changes}
    return yaml.safe_dump({**COMMITMENT, "spec": spec})


@pytest.fixture
def forget(api_server: Cluster) -> Iterator[None]:
    """Take away other groups, whose short names would be ours."""
    yield

    def left() -> list[str]:
        names = api_server.kubectl("get", "crds", "-o", "name").split()
        return [name for name in names if name.endswith(".example")]

    def is_rid_of_them() -> bool:
        """Wait a while; then touch what is left, since a server may forget a kind half-way."""
        if wait_until(lambda: not left(), NUDGE_SECONDS):
            return True
        for name in left():
            touch = ("annotate", "--overwrite", name, f"tests/touched={time.monotonic_ns()}")
            api_server.kubectl(*touch, code=None)
        return False

    if names := left():
        api_server.kubectl("delete", "--wait=false", *names)
    assert wait_until(is_rid_of_them, PATIENCE_SECONDS)


def test_a_second_look_finds_nothing_to_change(cluster: Cluster) -> None:
    output = io.StringIO()
    call_command("install_crds", "--dry-run", stdout=output)
    assert output.getvalue().count("nothing changes") == len(PLURALS)


@pytest.mark.usefixtures("forget")
def test_it_shows_what_changes_asks_and_applies(
    cluster: Cluster, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings.HEADROOM.bridge.model_copy(update={"group": "asked.example"})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"bridge": chosen})
    output = io.StringIO()
    monkeypatch.setattr("builtins.input", lambda _: "n")
    with pytest.raises(CommandError, match="nothing was applied"):
        call_command("install_crds", stdout=output)
    assert "+  name: reservations.asked.example" in output.getvalue()
    names = cluster.kubectl("get", "crds", "-o", "name")
    assert "asked.example" not in names
    monkeypatch.setattr("builtins.input", lambda _: "y")
    call_command("install_crds", stdout=output)
    names = cluster.kubectl("get", "crds", "-o", "name")
    assert names.count("asked.example") == len(PLURALS)


def test_a_cluster_that_is_away_is_told(settings: Any, own_api_server: ApiServer) -> None:
    chosen = BridgeSettings(
        clusters=(BridgeCluster(name="away", kubeconfig=own_api_server.directory / "none"),)
    )
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"bridge": chosen})
    with pytest.raises(CommandError, match="cluster away: no way to the cluster"):
        call_command("install_crds", "--yes")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"amount": "-4Gi"}, "spec.amount"),
        ({"amount": -1}, "must not be negative"),
        ({"amount": "much"}, "spec.amount"),
        ({"state": "dreamt"}, "Unsupported value"),
        ({"resourceType": "disk"}, "Unsupported value"),
        ({"commitmentUUID": "?"}, "spec.commitmentUUID"),
        ({"availabilityZone": ""}, "spec.availabilityZone"),
    ],
)
def test_a_bad_commitment_is_refused(
    cluster: Cluster, changes: dict[str, Any], problem: str
) -> None:
    said = cluster.kubectl("apply", "-f", "-", stdin=with_spec(**changes), code=1)
    assert problem in said


def test_the_zone_of_a_commitment_never_changes(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=with_spec())
    said = cluster.kubectl("apply", "-f", "-", stdin=with_spec(availabilityZone="az-b"), code=1)
    assert "the zone never changes" in said


def test_a_slot_says_whose_it_is(cluster: Cluster) -> None:
    slot = {
        "apiVersion": "cortex.cloud/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": "slot"},
        "spec": {
            "type": "CommittedResourceReservation",
            "schedulingDomain": "nova",
            "resources": {},
        },
    }
    said = cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(slot), code=1)
    assert "which commitment" in said


@pytest.mark.parametrize("kind", ["cres", "resv", "fgc", "pqu", "hst", "headroom"])
def test_short_names_and_the_category_are_known(cluster: Cluster, kind: str) -> None:
    assert wait_until(
        lambda: "error" not in cluster.kubectl("get", kind, code=None), PATIENCE_SECONDS
    )


@pytest.mark.parametrize("plural", sorted(PLURALS.values()))
def test_explain_tells_the_fields(cluster: Cluster, plural: str) -> None:
    assert wait_until(
        lambda: (
            "<Object>" in cluster.kubectl("explain", f"{plural}.cortex.cloud.spec", code=None)
            or "<string>" in cluster.kubectl("explain", f"{plural}.cortex.cloud.spec", code=None)
        ),
        PATIENCE_SECONDS,
    )


def test_selectors_columns_and_differences(cluster: Cluster) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=with_spec())
    selected = ("get", "cres", "-o", "wide", "--field-selector", "spec.projectID=p1")
    assert wait_until(lambda: UUID in cluster.kubectl(*selected), PATIENCE_SECONDS)
    columns = cluster.kubectl(*selected).split("\n")[0].split()
    assert columns[:5] == ["NAME", "PROJECT", "FLAVORGROUP", "RESOURCETYPE", "AZ"]
    assert columns[-1] == "SUMMARY"
    assert UUID not in cluster.kubectl("get", "cres", "--field-selector", "spec.projectID=p2")
    changed = cluster.kubectl("diff", "-f", "-", stdin=with_spec(state="expired"), code=1)
    assert "+  state: expired" in changed


@pytest.mark.usefixtures("forget")
def test_the_policy_lets_only_the_bridge_write(own_api_server: ApiServer, settings: Any) -> None:
    group = "guarded.example"
    clusters = (BridgeCluster(name="own", kubeconfig=own_api_server.kubeconfig),)
    chosen = BridgeSettings(clusters=clusters, group=group)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"bridge": chosen})
    call_command("install_crds", "--yes", "--only-user", "bridge", stdout=io.StringIO())
    role = ["--verb=*", f"--resource=*.{group}"]
    own_api_server.kubectl("create", "clusterrole", "all-of-it", *role)
    for user in ("bridge", "human"):
        bound = ["--clusterrole=all-of-it", f"--user={user}"]
        own_api_server.kubectl("create", "clusterrolebinding", user, *bound)
    text = with_spec().replace("cortex.cloud", group)

    def is_refused() -> bool:
        said = own_api_server.kubectl("apply", "-f", "-", stdin=text, user="human", code=None)
        return "change them there" in said

    assert wait_until(is_refused, PATIENCE_SECONDS)
    own_api_server.kubectl("apply", "-f", "-", stdin=text, user="bridge")
    resource = f"committedresources.{group}"
    said = own_api_server.kubectl("delete", resource, "--all", user="human", code=1)
    assert "change them there" in said
    own_api_server.kubectl("delete", resource, "--all", user="bridge")


def test_every_kind_has_a_definition() -> None:
    found = {each.manifest["spec"]["names"]["kind"]: each for each in load_definitions(Naming())}
    assert {kind.value: kind.plural for kind in PLURALS} == {
        kind: each.manifest["spec"]["names"]["plural"] for kind, each in found.items()
    }
