"""The section of the deployment settings for Hypervisor objects of Kubernetes."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from journal.conf import Section

OwnedField = Literal["overcommit", "groups", "effective_capacity", "allocation", "cells"]
Ratio = Annotated[Decimal, Field(ge=1, lt=10_000)]


class OvercommitRule(BaseModel, extra="forbid", frozen=True, populate_by_name=True):
    """What hosts with a trait, or without it, may promise of what they have (spec hosts, C.5)."""

    overcommit: dict[Literal["cpu", "memory"], Ratio] = Field(default_factory=dict)
    has_trait: str = Field("", alias="hasTrait")
    hasnt_trait: str = Field("", alias="hasntTrait")

    @model_validator(mode="after")
    def _names_one_trait(self) -> Self:
        if bool(self.has_trait) is bool(self.hasnt_trait):
            raise ValueError("needs one of hasTrait and hasntTrait, not both")
        return self


class HypervisorSettings(Section):
    """Hypervisor objects (docs/hypervisors.md)."""

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
    write_back: tuple[OwnedField, ...] = Field(
        (),
        description="JSON list of the fields that Headroom writes in the objects; nobody else "
        "may. `overcommit`: by OVERCOMMIT_RULES; `groups`: traits and aggregates that clients of "
        "Placement gave to hosts; `effective_capacity`: capacity times overcommit; `allocation`: "
        "what VMs take, with ALLOCATION_SOURCE=placement; `cells`: effective capacity of each NUMA "
        "cell and, with `allocation`, what is held of it.",
    )
    overcommit_rules: tuple[OvercommitRule, ...] = Field(
        (),
        description='JSON list of {"overcommit": {"cpu": 4, "memory": 1.5}, "hasTrait": "..."} or '
        '"hasntTrait": applied in order to the traits of a host, the last word for each counts.',
    )
    conflicts: Literal["report", "force"] = Field(
        "report",
        description="What is done where another field manager owns such a field: tell, or take it.",
    )
    write_back_interval_seconds: float = Field(
        5.0, gt=0, le=3600, description="How often these fields are compared with the objects."
    )
    conflict_pause_seconds: float = Field(
        300.0,
        ge=1,
        le=86_400,
        description="How long a field that another one owns, or that an object refused, is left "
        "alone before the next attempt.",
    )
    write_threads: int = Field(4, ge=1, le=64, description="Writes of such fields at once.")
    metrics_port: int = Field(
        9468, ge=0, le=65535, description="Port of the watcher's metrics; 0 is none."
    )

    @model_validator(mode="after")
    def _follows_what_it_writes(self) -> Self:
        if self.write_back and self.sync != "import":
            raise ValueError("write_back needs HYPERVISORS__SYNC=import")
        if self.overcommit_rules and "overcommit" not in self.write_back:
            raise ValueError('overcommit_rules need "overcommit" in HYPERVISORS__WRITE_BACK')
        return self
