"""Sections of the deployment settings: one class per group of ``HEADROOM_...`` variables."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from journal.conf import Section


class LiquidSettings(Section):
    """Switches and limits of the LIQUID API (spec liquid, 19)."""

    enable_change_commitments: bool = Field(default=True, description="Serve change-commitments.")
    enable_report_capacity: bool = Field(default=True, description="Serve report-capacity.")
    enable_report_usage: bool = Field(default=True, description="Serve report-usage.")
    enable_quota: bool = Field(default=True, description="Serve the quota endpoint.")
    change_timeout_seconds: float = Field(
        10.0, ge=0, le=600, description="Longest time a change request may take; 0 times out."
    )
    retry_after_capacity_seconds: int = Field(
        900, ge=1, description="retryAt of a rejection for lack of capacity."
    )
    retry_after_transient_seconds: int = Field(
        60, ge=1, description="retryAt of a rejection for a passing cause."
    )
    advise_on_rejection: bool = Field(
        default=True,
        description="Whether a rejection names its cause per filter and what would fit instead.",
    )
    dry_run_mode: Literal["net", "exact"] = Field(
        "net", description="What a dry run probes: net growth, or the full changeset."
    )
    capacity_includes_reserved: bool = Field(
        default=True, description="Count reserved but unused room as capacity."
    )
    report_placeable_vms: bool = Field(
        default=False, description="Tell Limes, as a metric, how many VMs of every flavor fit."
    )
    report_unknown_zone: bool = Field(
        default=False, description="Report usage of VMs outside the known zones under `unknown`."
    )
    ram_tolerance_mib: int = Field(
        16, ge=0, le=1024, description="Memory a VM may lack (video RAM) and still count as whole."
    )
    quota_served_zones: tuple[str, ...] = Field(
        (), description="Zones whose quota is stored (JSON list); empty means every zone."
    )
    limes_service_type: str = Field(
        "compute", min_length=1, description="Service type of our commitments in Limes."
    )
    max_slots_per_commitment: int = Field(
        0, ge=0, description="Most new slots a rejectable commitment may need; 0 is no limit."
    )
    subtract_uncommitted_cores: bool = Field(
        default=False,
        description="Leave vCPUs of other projects' running VMs, which no commitment of cores "
        "covers, out of what commitments of cores may promise.",
    )
    refusal_retention_days: int = Field(
        90, ge=0, description="Days for which refused change requests are kept; 0 keeps none."
    )
    max_body_mib: int = Field(
        2,
        ge=1,
        le=1024,
        description="Largest accepted request body; also of /api/v1, except where it names the "
        "scheduler's or Placement's.",
    )


class RetrySettings(Section):
    """Background repair of commitments (spec commitments, 8.9)."""

    base_seconds: int = Field(60, ge=1, description="First retry delay of an unplaced commitment.")
    cap_seconds: int = Field(1800, ge=1, description="Longest retry delay.")
    dispatch_interval_seconds: int = Field(
        5, ge=1, description="Seconds between looks for commitments that are due."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.cap_seconds < self.base_seconds:
            raise ValueError("cap_seconds must not be below base_seconds")
        return self


class UsageSettings(Section):
    """Which commitment covers which VM (spec commitments, 14)."""

    cooldown_seconds: int = Field(
        300, ge=10, description="Seconds between assignments of the VMs of all projects."
    )
    changes_interval_seconds: int = Field(
        10, ge=1, description="Seconds between assignments of the VMs of projects that changed."
    )
    history_retention_days: int = Field(
        1095,
        ge=1,
        le=36_500,
        description="Age in days from which it is forgotten which commitment covered which VM.",
    )


class JournalSettings(Section):
    """What is kept of the logs that other processes follow (design, "Concurrency")."""

    deletions_retention_hours: int = Field(
        24,
        ge=1,
        le=87_600,
        description="Age in hours from which changes of rows are forgotten; a process that did "
        "not look for longer reads everything anew.",
    )
    outbox_retention_days: int = Field(
        7, ge=1, le=3650, description="Age in days from which entries of the outbox are forgotten."
    )
    consumer_age_hours: int = Field(
        168,
        ge=1,
        le=87_600,
        description="Hours for which both logs are kept for a consumer that is away, such as the "
        "bridge; after that it reads everything anew.",
    )
    audit_retention_days: int = Field(
        1095,
        ge=0,
        le=36_500,
        description="Age in days from which audit entries are forgotten, and events of commitments "
        "that are gone; 0 keeps them for ever.",
    )
    runs_retention_days: int = Field(
        90,
        ge=1,
        le=3650,
        description="Age in days from which runs of syncs, imports and compactions are forgotten; "
        "the last ones stay.",
    )


class QuotaSettings(Section):
    """Usage of project quota (spec liquid, 14)."""

    full_reconcile_interval_seconds: int = Field(
        300, ge=10, description="Seconds between counts of the usage of all quota rows."
    )
    changes_interval_seconds: int = Field(
        30, ge=1, description="Seconds between counts of the projects that changed."
    )
    follow_vms: bool = Field(
        default=True,
        description="Count a project when its VMs changed, not only when its quota or commitments "
        "did; otherwise VMs wait for the count of all.",
    )
    commitment_states: tuple[Literal["pending", "guaranteed", "confirmed"], ...] = Field(
        ("confirmed", "guaranteed"),
        description="JSON list of the states in which a commitment covers usage.",
    )


class SlotSettings(Section):
    """Slots of commitments over time (spec commitments, 7, 9)."""

    allocation_grace_seconds: int = Field(
        900, ge=0, description="How long a VM that is expected in a slot may take to appear."
    )
    migration_settle_seconds: int = Field(
        120,
        ge=0,
        description="How long a VM seen in a slot may be listed nowhere before it leaves the slot.",
    )
    full_check_seconds: int = Field(
        300, ge=1, description="How often every slot is looked at, not only those that changed."
    )
    lost_host_grace_seconds: int = Field(
        600, ge=0, description="How long a host may be down before its empty slots move elsewhere."
    )
    adopt_arrivals: bool = Field(
        default=True,
        description="Take VMs of the same project and flavor group that came to the host of a "
        "slot after it into the slot, although nobody booked them there.",
    )
    payg_pre_allocation: bool = Field(
        default=False,
        description="Cover running VMs of the project with new slots instead of holding fresh "
        "room.",
    )
    group_pipelines: dict[str, str] = Field(
        {},
        description="Pipelines that judge slots, by flavor group (JSON object, `*` is every "
        "other); by default slots are packed tightly by a pipeline of their own.",
    )
    max_drop_ratio: float = Field(
        0.2, gt=0, le=1, description="Share of a VM or host list that may vanish at once."
    )
    max_drop_rows: int = Field(
        5,
        ge=1,
        description="Fewer rows than this may vanish whatever their share, but not all VMs of a "
        "zone at once.",
    )
    check_interval_seconds: int = Field(
        15, ge=1, description="How often slots that changed, or await a VM, are looked at."
    )
    compaction: bool = Field(
        default=True,
        description="Move empty slots of commitments now and then so that whole hosts become free.",
    )
    compaction_interval_seconds: int = Field(
        3600, ge=60, description="Seconds between two runs that free hosts of a zone."
    )
    compaction_most_moves: int = Field(
        100, ge=1, description="Most slots that such a run moves in a zone; hosts with more stay."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.check_interval_seconds > self.full_check_seconds:
            raise ValueError("check_interval_seconds must not be above full_check_seconds")
        return self


class CapacitySettings(Section):
    """Capacity of flavor groups (spec liquid, 13.2)."""

    reconcile_interval_seconds: int = Field(
        300, ge=1, description="Age from which a zone is computed again though nothing changed."
    )
    min_reconcile_interval_seconds: int = Field(
        30, ge=0, description="Shortest time between two background computations of a zone."
    )
    total_pipeline: str = Field(
        "",
        max_length=255,
        description="Pipeline whose filters say which hosts count for a flavor if they were empty; "
        "by default the filters that slots pass.",
    )
    placeable_pipeline: str = Field(
        "",
        max_length=255,
        description="Pipeline whose filters say which hosts could take a VM of a flavor now; by "
        "default the filters that slots pass.",
    )
    hourly_history_days: int = Field(
        90, ge=1, le=400, description="How long hours of the capacity history are kept."
    )
    daily_history_days: int = Field(
        1827,
        ge=1,
        description="How long days of the capacity history are kept: 5 years, leap days included.",
    )
    host_history_days: int = Field(
        90, ge=1, le=400, description="How long days of each host's room are kept."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_reconcile_interval_seconds >= self.reconcile_interval_seconds:
            raise ValueError(
                "min_reconcile_interval_seconds must be below reconcile_interval_seconds"
            )
        return self


class SchedulerSettings(Section):
    """The endpoint that Nova asks, and what happens around a placement (spec scheduling, 2, 12)."""

    nova_limit_hosts_to_request: bool = Field(
        default=True, description="Answer Nova with hosts of its own request only."
    )
    evacuation_shuffle_k: int = Field(
        3, ge=0, description="How many of the best hosts are shuffled for an evacuation; 0 is none."
    )
    max_candidates_nova: int = Field(
        3,
        ge=0,
        description="Hosts held and answered for a VM when the call does not say; 0 is all.",
    )
    committed_resource_tracking: bool = Field(
        default=False, description="Write placed VMs into the slots of their project's commitments."
    )
    max_body_mib: int = Field(16, ge=1, le=1024, description="Largest accepted request body.")
    weight_modification_metric: bool = Field(
        default=False,
        description=(
            "Count what each weigher adds to each host of an answer; one time series per pipeline, "
            "step and host."
        ),
    )
    host_table_check_seconds: int = Field(
        600,
        ge=0,
        description=(
            "How often a process compares its host table with one built anew; 0 is never."
        ),
    )


class MetricsSettings(Section):
    """How finely the metrics page tells hosts and projects, and where other roles tell theirs."""

    listen_address: str = Field(
        "127.0.0.1",
        description="Address at which workers and beat tell their metrics; they ask for "
        "a token if HEADROOM_METRICS_TOKEN, HEADROOM_TOKENS_FILE or a token with the role metrics "
        "is set.",
    )
    worker_port: int = Field(
        9464, ge=0, le=65535, description="Port of a worker's metrics; 0 is none."
    )
    beat_port: int = Field(9465, ge=0, le=65535, description="Port of beat's metrics; 0 is none.")
    keep_seconds: float = Field(
        1.0,
        ge=0,
        le=60,
        description="How old a page may be that another scrape had computed.",
    )
    sums_every_seconds: int = Field(
        30,
        ge=5,
        le=60,
        description="How often sums over all rows are computed for scrapes, which tell them as "
        "they were then; older than ten times that they are computed at the scrape.",
    )
    hosts_up_to: int = Field(
        100,
        ge=0,
        description="Most hosts of a region whose hosts have series of their own (about 3 KB "
        "each); above it they are summed up per zone and kind of host, 0 always.",
    )
    projects_up_to: int = Field(
        20,
        ge=0,
        description="Most projects with quota that have series of their own (about 20 KB each); "
        "above it they are summed up per zone and resource, 0 always.",
    )


class DecisionSettings(Section):
    """Records of scheduling decisions (spec scheduling, 10.5)."""

    retention_days: int = Field(
        30, ge=1, le=3650, description="Age in days from which decisions are forgotten."
    )


class OversubscriptionSettings(Section):
    """The guard over hosts that promise more than they have (spec commitments, 11)."""

    check: bool = Field(default=True, description="Look for over-subscribed hosts.")
    evict: bool = Field(
        default=True,
        description="Move slots of commitments off over-subscribed hosts, or take their host "
        "away; otherwise such hosts are only reported.",
    )
    grace_period_seconds: int = Field(
        180, ge=0, description="How long a host may be over-subscribed before slots leave it."
    )
    min_check_interval_seconds: int = Field(
        60, ge=0, description="Shortest time between two checks of one host."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.grace_period_seconds and (
            self.min_check_interval_seconds >= self.grace_period_seconds
        ):
            raise ValueError("min_check_interval_seconds must be below grace_period_seconds")
        return self


class FeedSettings(Section):
    """What is read of a live cloud, and how often (docs/feed.md)."""

    cloud: str = Field(
        "",
        description="Cloud of clouds.yaml that is read all the time, `envvars` for the `OS_*` "
        "variables; empty means that only region files are imported.",
    )
    changes_interval_seconds: float = Field(
        4.0, ge=1, le=3600, description="Between two looks at the VMs that changed."
    )
    overlap_seconds: int = Field(
        60,
        ge=1,
        le=86_400,
        description="How far each of them looks back beyond the last: more than Nova's clock is "
        "off and than a change takes to be listed.",
    )
    hosts_interval_seconds: int = Field(
        60,
        ge=5,
        description="Between two full passes over hypervisors, services, aggregates, providers.",
    )
    servers_interval_seconds: int = Field(
        600, ge=5, description="Between two full passes over all VMs."
    )
    migrations_interval_seconds: float = Field(
        10.0, ge=1, le=3600, description="Between two looks at the migrations in progress."
    )
    server_groups_interval_seconds: int = Field(
        120, ge=5, description="Between two full passes over server groups."
    )
    flavors_interval_seconds: int = Field(
        300, ge=5, description="Between two full passes over flavors."
    )
    images_interval_seconds: int = Field(
        900, ge=5, description="Between two full passes over images."
    )
    identity_interval_seconds: int = Field(
        600, ge=5, description="Between two full passes over domains and projects."
    )
    timeout_seconds: float = Field(
        60.0, gt=0, le=600, description="Longest silence of a service before a pass is given up."
    )
    most_asked: int = Field(
        500,
        ge=1,
        description="Most objects of a kind, absent from its list, that the cloud is asked for "
        "one by one in a pass; the others wait for the next.",
    )
    moves_vms: bool = Field(
        default=False,
        description="Whether VMs leave hosts that are ordered to become empty by Nova's live and "
        "cold migration, one of each host at a time; the cloud's login needs the rights.",
    )
    onboards_hosts: bool = Field(
        default=False,
        description="Whether hosts may be ordered into service: enabled in Nova, tested with a VM, "
        "put into their aggregates; the cloud's login needs the rights.",
    )
    offboards_hosts: bool = Field(
        default=False,
        description="Whether hosts in maintenance `termination` that nothing is left on leave "
        "their aggregates and lose their compute service and resource provider.",
    )
    test_aggregate: str = Field(
        "",
        description="Aggregate that a host is in while it is brought into service, such as one "
        "whose filter keeps projects off; empty for none.",
    )
    test_flavor: str = Field(
        "", description="Name or id of the flavor of the VM that tests a host."
    )
    test_image: str = Field("", description="Name or id of the image of that VM.")
    test_network: str = Field(
        "none", description="Network of that VM by its id; `auto` lets Nova choose one."
    )


class InFlightSettings(Section):
    """Room held for VMs between the answer to Nova and their arrival (spec scheduling, 16.3)."""

    ttl_seconds: int = Field(
        900, ge=10, description="Longest time room is held for a VM that is placed."
    )
    slow_ttl_seconds: int = Field(
        3600, ge=10, description="The same for resize and live migration, which copy the VM."
    )
    gone_seconds: int = Field(
        300, ge=10, description="Age of a move whose VM is listed no more after which it ends."
    )
    placement_rounds: int = Field(
        3, ge=1, le=10, description="Times a VM is placed anew when its hosts filled up meanwhile."
    )
