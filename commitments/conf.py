"""The section of the deployment settings that clients of Limes read."""

from __future__ import annotations

from pydantic import Field

from journal.conf import Section


class SyncSettings(Section):
    """Reading commitments from Limes (spec commitments, 16; spec liquid, 15)."""

    enabled: bool = Field(
        default=True, description="Sync periodically, once HEADROOM_KEYSTONE__... has a login."
    )
    interval_seconds: int = Field(3600, ge=60, description="Time between two runs.")
    limes_url: str = Field("", description="Limes' address; empty is the one in the catalog.")
    identity_url: str = Field(
        "", description="Address that projects are listed at; empty is the one in the catalog."
    )
    concurrency: int = Field(8, ge=1, le=64, description="Projects read at a time.")
    timeout_seconds: float = Field(30.0, gt=0, le=300, description="Longest wait for an answer.")
    retries: int = Field(3, ge=0, le=10, description="Times a passing failure is repeated.")
    retry_delay_seconds: float = Field(
        0.5, ge=0, le=60, description="First delay before a repetition; it doubles each time."
    )
    most_failed_projects: int = Field(
        25, ge=1, description="Unreadable projects after which a run stops asking Limes."
    )
    stale_threshold: int = Field(
        3, ge=1, description="Complete runs in a row that must miss a commitment before it ends."
    )
    stale_grace_seconds: int = Field(
        21_600, ge=0, description="How long it must be missing besides."
    )
    unlisted_grace_seconds: int = Field(
        600,
        ge=0,
        description="How old a commitment must be that Limes never listed before a run that begins"
        " then may end it.",
    )
    max_drop_ratio: float = Field(
        0.2, ge=0, le=1, description="Share of commitments (or projects) that may vanish at once."
    )
    max_drop_count: int = Field(
        5,
        ge=1,
        description="Fewer than so many may vanish whatever the share, but not all of a zone.",
    )
    expired_retention_seconds: int = Field(
        86_400, ge=0, description="How long an ended row outlives its slots."
    )
