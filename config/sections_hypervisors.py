"""The section of the deployment settings for Hypervisor objects of Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from journal.conf import Section


class HypervisorSettings(Section):
    """Reading Hypervisor objects (docs/hypervisors.md)."""

    sync: Literal["off", "import"] = Field(
        "off",
        description="`import`: Hypervisor objects say what their hosts are and what VMs take on "
        "them; `off`: nobody looks at them.",
    )
    kubeconfig: Path | None = Field(
        None,
        description="File that says where the API server is; without it the file of `KUBECONFIG`, "
        "or, inside a cluster, the account of the pod.",
    )
    context: str = Field("", description="Context of that file; empty is its current one.")
    group: str = Field("kvm.cloud.sap", min_length=1, description="API group of the objects.")
    version: str = Field("v1", min_length=1, description="API version of the objects.")
    page_objects: int = Field(500, ge=1, le=10_000, description="Objects of a page of the list.")
    timeout_seconds: float = Field(
        30.0, gt=0, le=600, description="Longest wait for the API server to answer."
    )
    silence_seconds: float = Field(
        150.0,
        gt=0,
        le=3600,
        description="Longest silence of a watch before it is asked for anew; the API server tells "
        "how far it is about every minute.",
    )
    gather_seconds: float = Field(
        0.2, ge=0, le=60, description="How long changes gather before they are written together."
    )
    relist_seconds: float = Field(
        3600.0, ge=10, description="Between two full lists, which no event needs."
    )
    longest_pause_seconds: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Longest pause between two attempts while the API server or the database does "
        "not answer; the first is a second, each is twice the one before.",
    )
    metrics_port: int = Field(
        9468, ge=0, le=65535, description="Port of the watcher's metrics; 0 is none."
    )
