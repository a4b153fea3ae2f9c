"""Every setting of the specifications has one here, and a test (commitments 21, liquid 19)."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from config.environment import NESTING, PREFIX, load_environment, setting_names
from journal.durations import parse_seconds

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference-settings.md"
EFFECT = "commitments/test_settings_have_effect.py"
SYNC_RULES = f"{EFFECT}::test_the_rules_of_the_syncer_are_those_of_the_settings"
BEAT = f"{EFFECT}::test_beat_runs_at_the_intervals_of_the_specifications_unless_told_otherwise"
PIPELINES = "commitments/test_slot_requests.py::TestPipelines"
SWITCHES = "api/test_liquid_checks.py::test_disabled_endpoint_is_503_before_the_method_is_looked_at"
INTERVALS = "capacity/test_group_capacity_freshness.py::TestBackground"
PROBES = (
    "capacity/test_probe_pipelines.py::test_each_probe_is_made_with_the_filters_of_its_pipeline"
)
RETRIES = f"{EFFECT}::test_rejections_say_when_to_come_again"
REPAIR = f"{EFFECT}::test_what_waits_is_tried_again_after_the_retry_interval"
GUARD = "capacity/test_oversubscription.py::test_the_policy_is_that_of_the_settings"
IN_FLIGHT = "domain/capacity/test_in_flight.py"
KEYSTONE = "config/test_keystone_settings.py"

TEST_OF = {
    "requeueIntervalActive": f"{EFFECT}::test_every_slot_is_looked_at_after_the_active_interval",
    "requeueIntervalRetry (reservations)": "",
    "requeueIntervalGracePeriod": BEAT,
    "allocationGracePeriod": f"{EFFECT}::test_a_new_vm_has_the_grace_period_to_appear",
    "oversubscriptionGracePeriod": GUARD,
    "oversubscriptionMinCheckInterval": GUARD,
    "enableOversubscriptionCheck": (
        "capacity/test_guard_tasks.py::test_the_guard_can_be_turned_off"
    ),
    "enableOversubscriptionReservationEviction": GUARD,
    "schedulerURL": "",
    "pipelineDefault": PIPELINES,
    "flavorGroupPipelines": PIPELINES,
    "MIGRATION_SETTLE": "commitments/verification/test_verification_slots.py",
    "requeueIntervalRetry": REPAIR,
    "maxRequeueInterval": REPAIR,
    "slotCreationDelay": "",
    "maxSlotsPerCommitment": "commitments/test_change_cases.py",
    "enablePaygPreAllocation": "commitments/test_lifecycle.py",
    "cooldownInterval": BEAT,
    "DISPATCH_INTERVAL": BEAT,
    "featureGates.committedResourceTracking": (
        "commitments/test_tracking.py::test_the_skip_option_and_the_switch_write_nothing"
    ),
    "datasourceName": "",
    "INFLIGHT_TTL": IN_FLIGHT,
    "INFLIGHT_TTL of resize and live migration": IN_FLIGHT,
    "METRIC_PREFIX": "api/test_documented_metrics.py",
    "enableChangeCommitments": SWITCHES,
    "enableReportUsage": SWITCHES,
    "enableReportCapacity": SWITCHES,
    "enableQuota": (
        "api/test_liquid_checks.py::test_disabled_quota_is_503_after_the_method_is_looked_at"
    ),
    "watchTimeout": "commitments/test_change_cases.py",
    "watchPollInterval": "",
    "flavorGroupResourceConfig": "capacity/test_group_settings_service.py",
    "quotaServedAvailabilityZones": "api/test_quota.py",
    "retryAfterCapacity": RETRIES,
    "retryAfterTransient": RETRIES,
    "dryRunMode": "commitments/test_dry_run_exact.py",
    "capacityIncludesReserved": (
        "api/test_report_capacity.py::test_reserved_unused_room_is_capacity_unless_switched_off"
    ),
    "reportUnknownAZ": (
        "api/test_report_usage.py::test_vms_of_unknown_zones_can_be_reported_without_quota"
    ),
    "ramToleranceMiB": "domain/commitments/test_report.py",
    "auth_mode": "api/test_liquid_auth.py::test_noauth_lets_everybody_pass",
    "policy file": f"{KEYSTONE}::test_a_policy_file_that_cannot_be_used_stops_the_start",
    "capacityReconcileInterval": INTERVALS,
    "capacityMinReconcileInterval": INTERVALS,
    "capacityTotalPipeline": PROBES,
    "capacityPlaceablePipeline": PROBES,
    "fullReconcileInterval": BEAT,
    "crStateFilter": f"{EFFECT}::TestQuota",
    "enableHVDiff": f"{EFFECT}::TestQuota",
    "committedResourceSyncInterval": BEAT,
    "limes_service_type": ("commitments/test_limes_intake.py::test_the_service_type_is_a_setting"),
    "staleSyncThreshold": SYNC_RULES,
    "staleGracePeriod": SYNC_RULES,
    "sync concurrency": "commitments/test_http_cloud.py",
    "SYNC_MAX_DROP_RATIO": SYNC_RULES,
    "SYNC_MAX_DROP_COUNT": SYNC_RULES,
    "EXPIRED_RETENTION": SYNC_RULES,
    "keystoneSecretRef": KEYSTONE,
    "ssoSecretRef": KEYSTONE,
}
"""Setting of the specifications to the test that varies ours; none where nothing is to be set."""


@cache
def page() -> dict[str, tuple[str, str]]:
    """Return what the page says: the reference's name to ours and the default."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| ?(.*?) ?\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {
        name.replace("`", ""): (ours, default)
        for name, ours, default in rows
        if name not in {"reference", "---"}
    }


def names_in(ours: str) -> list[str]:
    return [] if ours.startswith("none:") else re.findall(r"`(HEADROOM_\w+)`", ours)


def test_the_page_has_every_setting_and_no_other() -> None:
    assert set(page()) == set(TEST_OF)


@pytest.mark.parametrize("name", list(TEST_OF))
def test_ours_exists_and_has_the_default_that_the_page_says(name: str) -> None:
    ours, default_text = page()[name]
    known = set(setting_names())
    if ours.startswith("none:"):
        assert set(re.findall(r"`(HEADROOM_\w+)`", ours)) <= known
        return
    names = names_in(ours)
    assert names
    assert set(names) <= known
    found: object = load_environment({"HEADROOM_DEBUG": "true"})
    for part in names[0].removeprefix(PREFIX).lower().split(NESTING):
        found = getattr(found, part)
    said = re.split(r"[;:]| instead|, off", default_text)[0]
    if names[0].endswith("_SECONDS"):
        assert parse_seconds(said) == found
    else:
        assert said == shown(found)


def shown(found: object) -> str:
    """Write a default as the page does."""
    if found in (None, "", (), {}):
        return "none"
    if isinstance(found, tuple):
        return ", ".join(str(part) for part in found)
    if isinstance(found, bool):
        return str(found).lower()
    return str(found)


@pytest.mark.parametrize(("name", "node"), [(name, node) for name, node in TEST_OF.items() if node])
def test_a_test_varies_it(name: str, node: str) -> None:
    path, _, test = node.partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text("utf-8"))
    defined = {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    assert not test or test in defined
    assert any(one.startswith(("test", "Test")) for one in defined)


def test_what_has_no_setting_says_why() -> None:
    for name, node in TEST_OF.items():
        ours, default = page()[name]
        assert bool(node) or (ours.startswith("none:") and not default), name
