"""The clusters of the settings, and which of them gets which zone."""

from __future__ import annotations

from django.conf import settings

from bridge.conf import BridgeCluster
from bridge.domain.kinds import Naming
from bridge.kube.client import ClusterClient


def naming() -> Naming:
    """Return how the settings name our objects."""
    chosen = settings.HEADROOM.bridge
    return Naming(group=chosen.group, version=chosen.version, region=chosen.region)


def clusters() -> tuple[BridgeCluster, ...]:
    """Return the clusters of the settings; that of our pod when they name none."""
    return settings.HEADROOM.bridge.clusters or (BridgeCluster(name="default"),)


def open_client(name: str) -> ClusterClient:
    """Return the way to a cluster of the settings.

    Raises:
        ClusterUnavailable: it is not said who we are there.
    """
    chosen = settings.HEADROOM.bridge
    cluster = next(each for each in clusters() if each.name == name)
    return ClusterClient(
        kubeconfig=cluster.kubeconfig,
        context=cluster.context,
        timeout_seconds=chosen.request_timeout_seconds,
        threads=chosen.threads,
    )


def cluster_names() -> tuple[str, ...]:
    """Return the names of all clusters, in the order of the settings."""
    return tuple(each.name for each in clusters())


def cluster_of(zone: str) -> str | None:
    """Return the name of the cluster that gets a zone's objects; None when none does."""
    named = next((each.name for each in clusters() if zone in each.zones), None)
    return named or next((each.name for each in clusters() if not each.zones), None)
