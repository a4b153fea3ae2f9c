"""Server-side apply of many objects by several clients (ADR 33): ours, the official one, lightkube.

``./run bench bridge`` runs each in a process of its own; ``lightkube`` where it is installed.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import UUID

from benchmarks.measures import ROOT, Measure, measure
from bridge.domain.kinds import Naming, ObjectKind
from bridge.kube.client import MANAGER, ClusterClient, kind_path
from bridge.kube.login import log_in

OBJECTS = 2_000
THREADS = 8
TIMEOUT_SECONDS = 60.0
PATIENCE_SECONDS = 600.0
OURS, OFFICIAL, OTHER = "ours", "the official dynamic client", "lightkube"

Json = dict[str, Any]  # Any: what JSON holds
Apply = Callable[[Json], object]


def manifest(number: int) -> Json:
    """Return an object as the bridge applies it."""
    uuid = str(UUID(int=number))
    naming = Naming()
    return {
        "apiVersion": naming.api_version,
        "kind": ObjectKind.COMMITTED_RESOURCE.value,
        "metadata": {
            "name": f"client-{uuid}",
            "labels": {naming.managed_label: "bench"},
            "annotations": {f"reservations.{naming.group}/creator-request-id": f"req-{uuid}"},
        },
        "spec": {
            "commitmentUUID": uuid,
            "schedulingDomain": "nova",
            "flavorGroupName": "hana",
            "resourceType": "memory",
            "amount": f"{number + 1}Gi",
            "availabilityZone": "az-a",
            "projectID": "p1",
            "domainID": "d1",
            "startTime": "2026-01-01T00:00:00Z",
            "state": "confirmed",
            "allowRejection": False,
        },
    }


def ours(kubeconfig: Path) -> Apply:
    """Return an apply through the bridge's own requests."""
    naming = Naming()
    client = ClusterClient(
        kubeconfig=kubeconfig, context="", timeout_seconds=TIMEOUT_SECONDS, threads=THREADS
    )

    def apply(body: Json) -> object:
        name = body["metadata"]["name"]
        plural = ObjectKind.COMMITTED_RESOURCE.plural
        return client.apply(kind_path(naming.group, naming.version, plural, name), body)

    return apply


def official(kubeconfig: Path) -> Apply:
    """Return an apply through the dynamic client of the official package."""
    api = log_in(kubeconfig=kubeconfig, context="", is_in_pod=False, threads=THREADS)
    client: Any = import_module("kubernetes.dynamic").DynamicClient(api)
    found = client.resources.get(
        api_version=Naming().api_version, kind=ObjectKind.COMMITTED_RESOURCE.value
    )

    def apply(body: Json) -> object:
        name = body["metadata"]["name"]
        return found.server_side_apply(
            body=body, name=name, field_manager=MANAGER, force_conflicts=True
        )

    return apply


def other(kubeconfig: Path) -> Apply:
    """Return an apply through lightkube."""
    lightkube: Any = import_module("lightkube")
    generic: Any = import_module("lightkube.generic_resource")
    naming = Naming()
    kind = ObjectKind.COMMITTED_RESOURCE
    found = generic.create_global_resource(naming.group, naming.version, kind.value, kind.plural)
    client = lightkube.Client(config=lightkube.KubeConfig.from_file(str(kubeconfig)))

    def apply(body: Json) -> object:
        return client.apply(found.from_dict(body), field_manager=MANAGER, force=True)

    return apply


CLIENTS = {OURS: ours, OFFICIAL: official, OTHER: other}


def compare_clients(kubeconfig: Path) -> list[Measure]:
    """Return what an applied object costs each client."""
    rows = []
    for name in CLIENTS:
        if name == OTHER and find_spec("lightkube") is None:
            continue
        command = [sys.executable, "-m", "benchmarks.bridge_clients", name, str(kubeconfig)]
        done = subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, check=True, cwd=ROOT, timeout=PATIENCE_SECONDS
        )
        said = json.loads(done.stdout)
        label = f"{OBJECTS} objects"
        rows += [
            measure(f"{name}: CPU per applied object", label, said["cpu_ms"], "ms"),
            measure(f"{name}: peak memory", label, said["memory_mib"], "MiB"),
        ]
    return rows


def _main(name: str, kubeconfig: Path) -> None:
    apply = CLIENTS[name](kubeconfig)
    bodies = [manifest(number) for number in range(OBJECTS)]
    apply(bodies[0])
    began = time.process_time()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda body: apply(body) and None, bodies))
    used = time.process_time() - began
    said = {"cpu_ms": used / OBJECTS * 1000, "memory_mib": _memory_mib()}
    sys.stdout.write(json.dumps(said))


def _memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    _main(sys.argv[1], Path(sys.argv[2]))
