"""What the real kubectl can do with objects of each kind, as the bridge writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from django.db.models import F

from bridge.domain.kinds import ObjectKind
from capacity.models import ProjectQuota
from failover.models import FailoverReservation
from tests.bridge.mirrors import converge, objects
from tests.factories import (
    make_commitment,
    make_group_capacity,
    make_host,
    make_quota,
    make_reservation,
    make_slot,
)
from tests.kube.server import Cluster

pytestmark = pytest.mark.django_db(transaction=True)

Json = dict[str, Any]  # Any: objects keep the API's own shapes
REGION = "bridge.cortex.cloud/region=default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """What people see of a kind, and what they may not write in it.

    Attributes:
        columns: Of ``get -o wide`` after the name.
        selected: Field -> value by which it is found among two.
        labels: Selector -> whether it finds it.
        edit: Change of the specification by hand.
        differs: The line of ``diff`` that tells it.
        refused: Changes of an object, each with what the answer has to say.
    """

    columns: str
    selected: Mapping[str, str]
    labels: Mapping[str, bool]
    edit: Json
    differs: str
    refused: tuple[tuple[Json, str], ...]


def spec(**changes: Any) -> Json:
    return {"spec": changes}


LOOKS = {
    ObjectKind.COMMITTED_RESOURCE: Looks(
        columns="PROJECT FLAVORGROUP RESOURCETYPE AZ AMOUNT STATE READY"
        " USEDMEMORY USEDCPU START SUMMARY",
        selected={
            "spec.availabilityZone": "az-b",
            "spec.projectID": "other",
            "spec.flavorGroupName": "group_b",
            "spec.state": "pending",
        },
        labels={REGION: True, "bridge.cortex.cloud/region=r2": False},
        edit=spec(amount="1Gi"),
        differs="+  amount: 1Gi",
        refused=(
            (spec(amount="-1Gi"), "spec.amount"),
            (spec(state="dreamt"), "Unsupported value"),
            (spec(availabilityZone="az-a"), "the zone never changes"),
            (spec(projectID=None), "spec.projectID: Required value"),
        ),
    ),
    ObjectKind.RESERVATION: Looks(
        columns="TYPE AZ MEMORY CPU TARGET HOST READY COMMITMENT PROJECT REASON AGE",
        selected={
            "spec.type": "FailoverReservation",
            "spec.availabilityZone": "az-b",
            "spec.targetHost": "h2",
            "status.host": "h2",
        },
        labels={
            f"{REGION},reservations.cortex.cloud/type=failover": True,
            "reservations.cortex.cloud/type=in-flight": False,
        },
        edit=spec(targetHost="h9"),
        differs="+  targetHost: h9",
        refused=(
            (spec(type="Dream"), "Unsupported value"),
            (spec(type="InFlightReservation"), "another kind of reservation"),
            (spec(resources={"memory": "much"}), "spec.resources.memory"),
            (spec(resources={"memory": "-1Gi"}), "spec.resources.memory"),
            (spec(resources={"memory": -1}), "must not be negative"),
            (spec(resources=None), "spec.resources: Required value"),
        ),
    ),
    ObjectKind.FLAVOR_GROUP_CAPACITY: Looks(
        columns="GROUP AZ RUNNING AVAILABLE READY RECONCILED AGE"
        " FREEMEMORY FREECPU EXCLUSIVEMEMORY EXCLUSIVECPU",
        selected={"spec.flavorGroup": "group_b", "spec.availabilityZone": "az-b"},
        labels={REGION: True, "bridge.cortex.cloud/region!=default": False},
        edit={"metadata": {"labels": {"bridge.cortex.cloud/region": "r2"}}},
        differs="+    bridge.cortex.cloud/region: r2",
        refused=(
            (spec(flavorGroup="other"), "the group never changes"),
            (spec(availabilityZone=None), "spec.availabilityZone: Required value"),
            (spec(availabilityZone=1), "must be of type string"),
        ),
    ),
    ObjectKind.PROJECT_QUOTA: Looks(
        columns="PROJECT AZ DOMAIN LASTRECONCILE READY TOTALUSAGE PAYGUSAGE LIMESUSAGE LIMESQUOTA",
        selected={
            "spec.projectID": "other",
            "spec.availabilityZone": "az-b",
            "spec.domainID": "domain-b",
        },
        labels={REGION: True, f"{REGION},!bridge.cortex.cloud/region": False},
        edit=spec(projectName="mine"),
        differs="+  projectName: mine",
        refused=(
            (spec(projectID="p2"), "the project never changes"),
            (spec(quota={"hw_version_hana_1_ram": "much"}), "must be of type integer"),
            (spec(projectID=""), "spec.projectID"),
        ),
    ),
    ObjectKind.HOST: Looks(
        columns="AZ STATE ENABLED MAINTENANCE MEMORY CPU VMS READY"
        " USEDMEMORY USEDCPU COMMITTED FAILOVER REASON AGE",
        selected={
            "spec.hostName": "h2",
            "spec.availabilityZone": "az-b",
            "spec.maintenance": "",
            "status.state": "up",
        },
        labels={
            f"{REGION},topology.kubernetes.io/zone=az-b": True,
            "topology.kubernetes.io/zone in (az-a, az-c)": False,
            "cortex.cloud/building-block=bb2": True,
        },
        edit=spec(maintenance="manual"),
        differs="+  maintenance: manual",
        refused=(
            (spec(maintenance="later"), "Unsupported value"),
            (spec(hostName="h7"), "the name never changes"),
            (spec(overcommit={"cpu": "half"}), "spec.overcommit.cpu"),
            (spec(enabled="perhaps"), "must be of type boolean"),
        ),
    ),
}


def fill() -> None:
    """Make two rows of each kind, of which only the second is what ``LOOKS`` selects."""
    first = make_host("h1", state="down", maintenance="auto")
    host = make_host("h2", zone="az-b", building_block="bb2", conditions={"Ready": "True"})
    make_slot(make_commitment(), first)
    make_commitment(
        zone="az-b", group="group_b", project_id="other", state="pending", is_accepted=True
    )
    held = make_reservation(host, is_ready=True, flavor_group_name="hana_1")
    FailoverReservation.objects.create(reservation=held, name="failover-az-b-abcde")
    make_group_capacity()
    make_group_capacity("group_b", zone="az-b")
    make_quota()
    make_quota("other", zone="az-b")
    others = ProjectQuota.objects.filter(project_id="other")
    others.update(observed_generation=F("generation"), domain_id="domain-b")
    converge()


@pytest.mark.parametrize("kind", list(ObjectKind))
def test_people_look_at_wait_for_and_may_not_break_it(cluster: Cluster, kind: ObjectKind) -> None:
    fill()
    looks, plural = LOOKS[kind], f"{kind.plural}.cortex.cloud"
    wanted = {path: value for path, value in looks.selected.items() if path.startswith("spec.")}
    (item,) = (
        found
        for (of, _), found in objects(cluster).items()
        if of is kind and {path: found["spec"].get(path[5:]) for path in wanted} == wanted
    )
    name = item["metadata"]["name"]
    one = f"{plural}/{name}"

    header, *_ = cluster.kubectl("get", plural, "-o", "wide").splitlines()
    assert header.split() == ["NAME", *looks.columns.split()]

    cluster.kubectl("wait", "--for=condition=Ready", one, "--timeout=10s")

    definition = cluster.get("crd", plural)["spec"]["versions"][0]
    stated = {field["jsonPath"].lstrip(".") for field in definition["selectableFields"]}
    assert stated == looks.selected.keys()
    for path, value in looks.selected.items():
        assert selected(cluster, plural, "--field-selector", f"{path}={value}") == {name}, path
        assert name not in selected(cluster, plural, "--field-selector", f"{path}!={value}")
    for label, is_found in looks.labels.items():
        assert (name in selected(cluster, plural, "-l", label)) is is_found, label

    assert cluster.kubectl("diff", "-f", "-", stdin=edited(item)) == ""
    said = cluster.kubectl("diff", "-f", "-", stdin=edited(item, looks.edit), code=1)
    assert looks.differs in said.splitlines()

    for change, problem in looks.refused:
        patch = ("patch", one, "--type=merge", "-p", json.dumps(change))
        assert problem in cluster.kubectl(*patch, code=1), change
    assert cluster.get(one)["metadata"]["resourceVersion"] == item["metadata"]["resourceVersion"]

    cluster.kubectl("patch", one, "--type=merge", "-p", json.dumps(looks.edit))
    converge()
    restored = cluster.get(one)
    assert restored["spec"] == item["spec"]
    assert restored["metadata"]["labels"] == item["metadata"]["labels"]
    assert "HandEdited" in cluster.kubectl("events", "--for", one)


def selected(cluster: Cluster, plural: str, *words: str) -> set[str]:
    """Return the names of objects of a kind that a selector finds."""
    return {item["metadata"]["name"] for item in cluster.get(plural, *words)["items"]}


def edited(item: Json, change: Json | None = None) -> str:
    """Return an object as somebody keeps it in a file, with a change."""
    metadata = {key: item["metadata"][key] for key in ("name", "labels")}
    body = {**item, "metadata": metadata}
    for section, fields in (change or {}).items():
        body[section] = merged(body[section], fields)
    body.pop("status")
    return json.dumps(body)


def merged(before: Json, change: Json) -> Json:
    return {
        **before,
        **{
            key: merged(before[key], value) if isinstance(value, dict) else value
            for key, value in change.items()
        },
    }
