"""The section of the deployment settings for the Placement API."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from journal.conf import Section


class PlacementSettings(Section):
    """The Placement API (spec placement, 10.1); names as in the reference where it has them."""

    policy_file: str = Field(
        "", description="YAML file of access rules that override the defaults, oslo.policy syntax."
    )
    enforce_new_defaults: bool = Field(
        default=True, description="Off: the admin role passes every rule, as in older releases."
    )
    randomize_allocation_candidates: bool = Field(
        default=False, description="Shuffle candidates, so that a limit takes a fair sample."
    )
    max_allocation_candidates: int = Field(
        -1, ge=-1, description="Candidates after which a search stops; -1 is no limit."
    )
    allocation_candidates_generation_strategy: Literal["breadth-first", "depth-first"] = Field(
        "breadth-first", description="Candidates of one tree after another, or of all in turn."
    )
    incomplete_consumer_project_id: str = Field(
        "00000000-0000-0000-0000-000000000000",
        min_length=1,
        max_length=255,
        description="Project of consumers whose client names none (before 1.8).",
    )
    incomplete_consumer_user_id: str = Field(
        "00000000-0000-0000-0000-000000000000",
        min_length=1,
        max_length=255,
        description="User of consumers whose client names none (before 1.8).",
    )
    allocation_conflict_retry_count: int = Field(
        3, ge=0, le=10, description="Times a write is run again that lost a deadlock."
    )
    cors_allowed_origin: tuple[str, ...] = Field(
        (), description="Origins that browsers may call from (JSON list); none is CORS off."
    )
    cors_allow_headers: tuple[str, ...] = Field(
        ("openstack-api-version",),
        description="Headers that such calls may carry (JSON list).",
    )
    trusted_proxy_headers: bool = Field(
        default=False, description="Build URLs from X-Forwarded-Proto and X-Forwarded-Host."
    )
    snapshot: Literal["process", "off"] = Field(
        "process",
        description="Where candidates are searched: in memory, or in a copy read per request.",
    )
    snapshot_check_seconds: int = Field(
        600,
        ge=0,
        description="How often a process compares its providers in memory with those of the"
        " database; 0 is never.",
    )
    warm_up: bool = Field(
        default=False,
        description="Load all providers when a web process starts, not with its first search;"
        " ./run serve sets it.",
    )
    max_candidate_combinations: int = Field(
        10_000_000,
        ge=0,
        description="Partial candidates after which a search stops, so that one request with many"
        " groups cannot keep a process busy; 0 is no limit.",
    )
    answer_cache_mib: int = Field(
        64,
        ge=0,
        le=16384,
        description="Memory of a process for answers of candidate searches; 0 keeps none.",
    )
    strict_reference: bool = Field(
        default=False,
        description="Answer candidates with the reference's defects, and leave reservations out "
        "of the usages of projects, to compare.",
    )
    strict_inventory: bool = Field(
        default=False, description="Refuse inventories whose min_unit is above max_unit."
    )
    max_body_mib: int = Field(8, ge=1, le=1024, description="Largest accepted request body.")
    prepared_statements: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Prepare statements once per connection: always, never, or (auto) unless a "
        "pooler stands before the database; on behind one that supports them.",
    )
    host_providers: bool = Field(
        default=True, description="Keep a root provider for every host of the region."
    )
    host_inventories: Literal["api", "host"] = Field(
        "api",
        description="Who says what a new host provider has: nova-compute, or the region's hosts.",
    )
    host_capacity: bool = Field(
        default=False,
        description="Take what nova-compute reports as the capacity of the region's hosts.",
    )
    hide_fully_held: bool = Field(
        default=False,
        description="Leave hosts all of whose free room commitments and failover hold out of "
        "candidates, for owners too: only where the external scheduler decides.",
    )
    enforce_held: bool = Field(
        default=True,
        description="Refuse claims of room that commitments and failover hold for others. In force "
        "where HEADROOM_ALLOCATION_SOURCE is placement.",
    )
    history_days: int = Field(
        90, ge=0, le=3650, description="Days for which allocation history is kept; 0 keeps none."
    )
    log_requests: bool = Field(
        default=True, description="Write a log line for every request; costs 0.05 ms of CPU each."
    )
    max_body_log_kib: int = Field(
        4, ge=1, le=1024, description="How much of bodies the log shows at level DEBUG."
    )
    optimize_for_wide_provider_trees: bool = Field(
        default=False,
        description="The reference's option of that name; has no effect, since wide trees need no "
        "search of another kind here.",
    )
