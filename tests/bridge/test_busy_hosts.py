"""Hosts change with every VM: their objects are written once in a while, states at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from bridge.domain.kinds import ObjectKind
from bridge.metrics import WRITES
from bridge.models import MirrorState
from hosts.models import Host
from tests.bridge.mirrors import assert_equal, converge, objects
from tests.factories import make_host, make_vm
from tests.kube.server import Cluster

pytestmark = pytest.mark.django_db(transaction=True)

HOSTS, CHANGES = 4, 24


def written() -> float:
    return float(WRITES.labels(kind=ObjectKind.HOST.value, what="applied")._value.get())


def interval(settings: Any, seconds: float) -> None:
    chosen = settings.HEADROOM.bridge.model_copy(update={"host_interval_seconds": seconds})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"bridge": chosen})


def numbers(cluster: Cluster) -> list[int]:
    return [
        item["status"]["numInstances"]
        for (kind, _), item in sorted(objects(cluster).items())
        if kind is ObjectKind.HOST
    ]


def arrive(hosts: list[Host]) -> float:
    """Let VMs arrive one by one, mirroring after each; return the writes for each of them."""
    before = written()
    for number in range(CHANGES):
        make_vm(host=hosts[number % HOSTS])
        converge()
    return (written() - before) / CHANGES


def test_a_host_is_written_once_in_an_interval_however_many_vms_come(
    cluster: Cluster, settings: Any
) -> None:
    hosts = [make_host(f"h{number}") for number in range(HOSTS)]
    converge()
    assert arrive(hosts) == 1.0
    interval(settings, 3600.0)
    assert arrive(hosts) == 0.0
    assert numbers(cluster) == [CHANGES // HOSTS] * HOSTS
    assert (
        MirrorState.objects.filter(kind=ObjectKind.HOST, is_due=True, failures=0).count() == HOSTS
    )

    MirrorState.objects.update(
        written_at=F("written_at") - timedelta(hours=2), due_at=F("due_at") - timedelta(hours=2)
    )
    before = written()
    converge()

    assert written() - before == HOSTS
    assert numbers(cluster) == [2 * CHANGES // HOSTS] * HOSTS
    assert_equal(cluster)


@pytest.mark.parametrize(
    "changed",
    [
        {"maintenance": "manual"},
        {"state": "down"},
        {"conditions": {"Tainted": "True"}},
        {"custom_traits": ["CUSTOM_X"]},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_state_is_written_at_once_also_while_figures_wait(
    cluster: Cluster, settings: Any, changed: dict[str, Any]
) -> None:
    interval(settings, 3600.0)
    host = make_host("h1")
    converge()
    make_vm(host=host)
    converge()
    assert numbers(cluster) == [0]

    Host.objects.filter(pk=host.pk).update(**changed)
    converge()

    assert numbers(cluster) == [1]
    assert_equal(cluster)
