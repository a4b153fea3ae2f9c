"""The section of the deployment settings for the mirror into Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from journal.conf import Section

LABEL = r"^[a-z0-9-]*$"
DOMAIN = r"^[a-z0-9.-]+$"


class BridgeCluster(BaseModel, extra="forbid", frozen=True):
    """A cluster that objects are mirrored to.

    Attributes:
        name: What we call it.
        kubeconfig: File that says where it is and who we are; none is the service account of the
            pod that we run in.
        context: One of the file's; empty is its current one.
        zones: Whose objects it gets; none is every zone that no other cluster names.
    """

    name: str = Field(min_length=1, max_length=63)
    kubeconfig: Path | None = None
    context: str = ""
    zones: tuple[str, ...] = ()


class BridgeSettings(Section):
    """The mirror into Kubernetes (docs/bridge.md)."""

    clusters: tuple[BridgeCluster, ...] = Field(
        (),
        description='JSON list of {"name", "kubeconfig", "context", "zones"}: where objects go, by '
        "zone. Without a kubeconfig it is the cluster of the pod, which is also meant when the "
        "list is empty; one cluster may name no zones and gets the rest.",
    )
    group: str = Field(
        "cortex.cloud",
        pattern=DOMAIN,
        max_length=63,
        description="API group of the kinds, prefix of their labels and annotations.",
    )
    version: str = Field(
        "v1alpha1", pattern=r"^v[0-9]+((alpha|beta)[0-9]+)?$", description="Version of the kinds."
    )
    region: str = Field(
        "",
        pattern=LABEL,
        max_length=63,
        description="Ends the names of objects, so that several regions can feed one cluster.",
    )
    hand_edits: Literal["restore", "report", "adopt"] = Field(
        "restore",
        description="What is done with objects that others changed or deleted: write them anew, "
        "only tell and leave the object alone, or leave the edited fields alone until the "
        "database says something else.",
    )
    poll_interval_seconds: float = Field(
        0.2, gt=0, le=60, description="How often changes of rows are looked for."
    )
    host_interval_seconds: float = Field(
        10.0,
        ge=0,
        le=3600,
        description="How often at most the object of a host is written for figures and VMs that "
        "changed; what changed of its spec, its state or a condition is written at once.",
    )
    compare_interval_seconds: float = Field(
        300.0,
        ge=1,
        le=86_400,
        description="How often all objects are listed and compared with what was written, "
        "beside the watch.",
    )
    request_timeout_seconds: float = Field(
        10.0, gt=0, le=300, description="Longest wait for an answer of a cluster."
    )
    threads: int = Field(8, ge=1, le=64, description="Requests to a cluster at once.")
    batch_rows: int = Field(500, ge=1, le=10_000, description="Objects that are written together.")
    max_drop_ratio: float = Field(
        0.2,
        gt=0,
        le=1,
        description="Share of the objects of a kind that may be deleted at once because no row "
        "is behind them; more is refused and told.",
    )
    metrics_port: int = Field(
        9469, ge=0, le=65535, description="Port of the bridge's metrics; 0 is none."
    )

    @model_validator(mode="after")
    def _routable(self) -> Self:
        if any(not part or part.strip("-") != part for part in self.group.split(".")):
            raise ValueError("group: must be a DNS name")
        if self.region.strip("-") != self.region:
            raise ValueError("region: must not begin or end with a dash")
        names = [cluster.name for cluster in self.clusters]
        zones = [zone for cluster in self.clusters for zone in cluster.zones]
        if len(set(names)) < len(names) or len(set(zones)) < len(zones):
            raise ValueError("clusters: a name or a zone is given twice")
        if sum(not cluster.zones for cluster in self.clusters) > 1:
            raise ValueError("clusters: only one may get the zones that no other names")
        return self
