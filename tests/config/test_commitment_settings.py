"""Knobs of commitments: their defaults, and values that stop the start (spec commitments, 21)."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from config.environment import ConfigurationError, Environment, load_environment

BARE = {"HEADROOM_DEBUG": "1"}


def loaded(**variables: str) -> Environment:
    return load_environment({**BARE, **{f"HEADROOM_{k}": v for k, v in variables.items()}})


def setting(name: str) -> Any:
    return reduce(getattr, name.split("."), loaded())


@pytest.mark.parametrize(
    ("name", "default"),
    [
        pytest.param("slots.full_check_seconds", 300, id="requeueIntervalActive"),
        pytest.param("slots.allocation_grace_seconds", 900, id="allocationGracePeriod"),
        pytest.param(
            "oversubscription.grace_period_seconds", 180, id="oversubscriptionGracePeriod"
        ),
        pytest.param(
            "oversubscription.min_check_interval_seconds", 60, id="oversubscriptionMinCheckInterval"
        ),
        pytest.param("oversubscription.check", True, id="enableOversubscriptionCheck"),
        pytest.param(
            "oversubscription.evict", True, id="enableOversubscriptionReservationEviction"
        ),
        pytest.param("slots.group_pipelines", {}, id="flavorGroupPipelines"),
        pytest.param("retry.base_seconds", 60, id="requeueIntervalRetry"),
        pytest.param("retry.cap_seconds", 1800, id="maxRequeueInterval"),
        pytest.param("liquid.max_slots_per_commitment", 0, id="maxSlotsPerCommitment"),
        pytest.param("slots.payg_pre_allocation", False, id="enablePaygPreAllocation"),
        pytest.param("usage.cooldown_seconds", 300, id="cooldownInterval"),
        pytest.param("liquid.enable_change_commitments", True, id="enableChangeCommitments"),
        pytest.param("liquid.enable_report_usage", True, id="enableReportUsage"),
        pytest.param("liquid.enable_report_capacity", True, id="enableReportCapacity"),
        pytest.param("liquid.enable_quota", True, id="enableQuota"),
        pytest.param("liquid.change_timeout_seconds", 10, id="watchTimeout, code default"),
        pytest.param("liquid.quota_served_zones", (), id="quotaServedAvailabilityZones"),
        pytest.param("sync.interval_seconds", 3600, id="committedResourceSyncInterval"),
        pytest.param(
            "scheduler.committed_resource_tracking", False, id="committedResourceTracking"
        ),
        pytest.param("metric_prefix", "cortex", id="METRIC_PREFIX"),
        pytest.param("in_flight.ttl_seconds", 900, id="INFLIGHT_TTL"),
        pytest.param("in_flight.slow_ttl_seconds", 3600, id="INFLIGHT_TTL, resize and migration"),
        pytest.param("slots.migration_settle_seconds", 120, id="MIGRATION_SETTLE"),
        pytest.param("sync.max_drop_ratio", 0.2, id="SYNC_MAX_DROP_RATIO"),
        pytest.param("sync.max_drop_count", 5, id="SYNC_MAX_DROP_COUNT"),
        pytest.param("sync.stale_threshold", 3, id="staleSyncThreshold"),
        pytest.param("sync.stale_grace_seconds", 6 * 3600, id="staleGracePeriod"),
        pytest.param("sync.expired_retention_seconds", 24 * 3600, id="EXPIRED_RETENTION"),
    ],
)
def test_default(name: str, default: Any) -> None:
    assert setting(name) == default


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        pytest.param({"SYNC__INTERVAL_SECONDS": "59"}, "SYNC__INTERVAL_SECONDS", id="sync < 1 min"),
        pytest.param({"RETRY__BASE_SECONDS": "0"}, "RETRY__BASE_SECONDS", id="retry 0"),
        pytest.param(
            {"RETRY__BASE_SECONDS": "60", "RETRY__CAP_SECONDS": "59"},
            "cap_seconds must not be below base_seconds",
            id="retry: cap below base",
        ),
        pytest.param(
            {
                "OVERSUBSCRIPTION__GRACE_PERIOD_SECONDS": "60",
                "OVERSUBSCRIPTION__MIN_CHECK_INTERVAL_SECONDS": "60",
            },
            "min_check_interval_seconds must be below grace_period_seconds",
            id="check interval not below grace period",
        ),
        pytest.param({"USAGE__COOLDOWN_SECONDS": "0"}, "USAGE__COOLDOWN_SECONDS", id="no cooldown"),
        pytest.param(
            {"SLOTS__FULL_CHECK_SECONDS": "0"}, "SLOTS__FULL_CHECK_SECONDS", id="no check"
        ),
        pytest.param(
            {"SLOTS__ALLOCATION_GRACE_SECONDS": "-1"}, "SLOTS__ALLOCATION_GRACE", id="grace below 0"
        ),
        pytest.param({"IN_FLIGHT__TTL_SECONDS": "0"}, "IN_FLIGHT__TTL_SECONDS", id="no TTL"),
        pytest.param({"SYNC__STALE_THRESHOLD": "0"}, "SYNC__STALE_THRESHOLD", id="no threshold"),
        pytest.param({"SYNC__MAX_DROP_RATIO": "1.5"}, "SYNC__MAX_DROP_RATIO", id="drop above all"),
        pytest.param(
            {"LIQUID__MAX_SLOTS_PER_COMMITMENT": "-1"}, "MAX_SLOTS_PER_COMMITMENT", id="slots < 0"
        ),
        pytest.param({"METRIC_PREFIX": "9 lives"}, "METRIC_PREFIX", id="prefix of no metric"),
    ],
)
def test_value_that_is_not_allowed_stops_the_start(variables: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        loaded(**variables)
    assert "\n" not in str(refused.value)


def test_sync_every_minute_is_allowed() -> None:
    assert loaded(SYNC__INTERVAL_SECONDS="60").sync.interval_seconds == 60
