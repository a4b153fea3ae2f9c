"""Hypervisor objects at the cluster of the settings."""

from __future__ import annotations

import os
from pathlib import Path

from django.conf import settings

from bridge.kube.client import ClusterClient, kind_path
from bridge.kube.listing import ObjectsApi


def hypervisors_api() -> ObjectsApi:
    """Return the Hypervisor objects of the cluster that the settings name.

    Raises:
        ClusterUnavailable: They name none.
    """
    chosen = settings.HEADROOM.hypervisors
    kubeconfig = _kubeconfig()
    client = ClusterClient(
        kubeconfig=kubeconfig,
        context=chosen.context,
        is_in_pod=kubeconfig is None and bool(os.environ.get("KUBERNETES_SERVICE_HOST")),
        timeout_seconds=chosen.timeout_seconds,
        threads=1,
    )
    return ObjectsApi(client, object_path(), silence_seconds=chosen.silence_seconds)


def hypervisors_client() -> ClusterClient:
    """Return the way to write in the same objects; safe for threads.

    Raises:
        ClusterUnavailable: The settings name no cluster.
    """
    chosen = settings.HEADROOM.hypervisors
    return ClusterClient(
        kubeconfig=_kubeconfig(),
        context=chosen.context,
        timeout_seconds=chosen.timeout_seconds,
        threads=chosen.write_threads,
    )


def object_path(name: str = "", sub: str = "") -> str:
    """Return the address of the objects, of one, or of its status."""
    chosen = settings.HEADROOM.hypervisors
    return kind_path(chosen.group, chosen.version, "hypervisors", name, sub)


def _kubeconfig() -> Path | None:
    chosen: Path | None = settings.HEADROOM.hypervisors.kubeconfig
    named = os.environ.get("KUBECONFIG")
    return chosen or (Path(named) if named else None)
