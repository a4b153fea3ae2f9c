"""The section of the deployment settings for webhooks."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

from pydantic import Field, field_validator

from journal.conf import Section


class WebhookSettings(Section):
    """Webhooks (docs/webhooks.md)."""

    secrets_dir: Path | None = Field(
        None,
        description="Folder with a file for each secret that endpoints name, such as a mounted "
        "Secret; each line of a file is one `whsec_...`, all of which sign.",
    )
    allow_http: bool = Field(default=False, description="Take addresses that are not https.")
    private_networks: tuple[str, ...] = Field(
        (),
        description="JSON list of networks (CIDR) that receivers may be in though they are not "
        "public, such as `10.0.0.0/8`.",
    )
    interval_seconds: float = Field(
        5.0, ge=1, le=3600, description="How often is looked for what is to be delivered."
    )
    timeout_seconds: float = Field(
        10.0, gt=0, le=60, description="Longest wait for the answer of a receiver."
    )
    retry_base_seconds: float = Field(
        5.0, gt=0, le=3600, description="Pause after the first failure; each is twice the last."
    )
    retry_cap_seconds: float = Field(
        3600.0, gt=0, le=86_400, description="Longest pause between two attempts."
    )
    most_attempts: int = Field(
        20, ge=1, le=1000, description="Attempts after which a delivery is dead."
    )
    retention_days: int = Field(
        30,
        ge=1,
        le=3650,
        description="Age in days from which deliveries are forgotten, also those that wait for an "
        "endpoint that is paused or disabled.",
    )

    @field_validator("private_networks")
    @classmethod
    def _networks(cls, listed: tuple[str, ...]) -> tuple[str, ...]:
        for one in listed:
            ip_network(one)
        return listed
