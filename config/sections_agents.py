"""The section of the deployment settings for agents on hosts."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from journal.conf import Section


class AgentSettings(Section):
    """Agents on hosts, and how long their silence is borne (docs/hosts.md)."""

    heartbeat_seconds: float = Field(
        10.0, gt=0, le=600, description="Seconds between heartbeats of an agent."
    )
    lease_seconds: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="Silence after which an agent is suspect; more than two heartbeats.",
    )
    down_after_seconds: float = Field(
        90.0,
        gt=0,
        le=86_400,
        description="Further silence after which it is down, and its epoch ends; no less than the "
        "lease.",
    )
    believed_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of the agents that may go down at once; of more it is believed that "
        "Headroom was not reached, and they stay suspect. One or two may always.",
    )

    key_retire_hours: float = Field(
        24.0,
        ge=0,
        le=720,
        description="How long an agent's old key is taken beside its new one, and agents are told "
        "an old key of the server.",
    )
    poll_wait_seconds: float = Field(
        25.0,
        ge=0,
        le=25,
        description="How long a poll of an agent is held until there is something for it.",
    )
    poll_most_waiters: int = Field(
        5000,
        ge=1,
        le=100_000,
        description="Polls that a process of `./run serve agents` holds at once; more are answered "
        "at once and come again.",
    )
    poll_threads: int = Field(
        4,
        ge=1,
        le=64,
        description="Threads of it that verify and answer polls, each with a database connection; "
        "two more look for news.",
    )
    poll_port: int = Field(
        8001, ge=0, le=65535, description="Port that `./run serve agents` listens on."
    )
    metrics_port: int = Field(9471, ge=0, le=65535, description="Port of its metrics; 0 is none.")

    slot_type: Literal["accounting", "capacity_slice", "hugepages"] = Field(
        "accounting",
        description="Which provisioner makes slots on hosts whose agents enforce: only books "
        "(accounting), protects memory and cores by cgroups, or sets huge pages of 1 GiB aside. "
        "Another one than before has all slots made anew.",
    )

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if not self.heartbeat_seconds * 2 < self.lease_seconds <= self.down_after_seconds:
            raise ValueError(
                "two heartbeats must be shorter than lease_seconds, and that no longer than "
                "down_after_seconds"
            )
        return self
