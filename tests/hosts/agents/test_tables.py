"""Each table and vector of spec hosts, part D and C, and the tests that hold them.

What no other test held stands here: the order of checks of a request (D.5), periods that
contradict each other and the names of metrics (D.13).
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Final

import pytest
from pydantic import ValidationError

from config.sections_agents import AgentSettings
from hosts.agents.models import HostAgent, RequestNonce
from tests.docs.tour import ROOT
from tests.hosts.agents.agents import signed
from tests.hosts.agents.test_enrolment import code_of
from tests.hosts.agents.workloads import agent_named, enforcing

# Section -> module below ``tests`` and the tests in it.
TABLES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "D.1 modes": {
        "hosts.agents.test_polls": ("test_only_an_agent_that_enforces_is_asked",),
        "hosts.agents.test_observed": (
            "test_a_list_is_kept_as_the_hosts_own_and_changed_by_its_digest",
        ),
    },
    "D.3 states, timeline": {
        "domain.hosts.test_liveness": (
            "test_the_specifications_timeline",
            "test_an_agent_is_up_with_its_first_report",
            "test_one_run_has_the_lease",
        ),
        "hosts.agents.test_leases": (
            "test_silence_makes_suspect_then_down_and_ends_the_epoch",
            "test_an_operator_fences_a_host_that_is_heard",
        ),
        "hosts.agents.test_commands": ("test_readiness_is_the_first_rule_that_says_no",),
    },
    "D.4 enrolment, keys": {
        "hosts.agents.test_enrolment": (
            "test_a_lost_answer_is_given_again_and_uses_nothing_up",
            "test_tokens_of_no_use_are_all_told_the_same",
            "test_a_token_is_for_names_of_known_hosts",
            "test_a_host_has_one_key_until_an_operator_revokes_it",
            "test_a_cloned_disk_does_not_become_another_host",
            "test_what_is_malformed_is_named",
        ),
        "hosts.agents.test_keys": (
            "test_an_old_key_is_taken_for_a_day_more",
            "test_a_host_has_three_keys_at_most_until_one_is_dropped_or_over",
        ),
        "agent.provision.test_signing": ("test_a_key_has_its_names",),
    },
    "D.5 vectors, checks": {
        "agent.provision.test_signing": ("test_what_we_sign_is_as_documented",),
        "hosts.agents.test_tables": ("test_of_several_faults_the_first_check_answers",),
    },
    "D.6 calls of agents": {
        "hosts.agents.test_leases": ("test_a_heartbeat_renews_the_lease",),
        "hosts.agents.test_commands": (
            "test_a_command_is_told_until_the_agent_says_that_it_is_done",
        ),
        "hosts.agents.test_signed": ("test_a_wrong_field_is_named",),
        "hosts.agents.test_observed": (
            "test_an_empty_list_needs_the_cloud_to_say_so_too",
            "test_drift_is_shown_and_audited_once_and_overwrites_nothing",
        ),
        "hosts.agents.test_polls": ("test_one_reservation_and_its_tombstone",),
        "fuzz.test_agent_requests": (
            "test_no_signed_request_breaks_or_reaches_another_host",
            "test_no_unsigned_request_is_taken",
        ),
    },
    "D.6 calls of operators": {
        "console.api.test_rows_of_hosts": (
            "test_a_host_has_its_own_rows_and_none_of_others",
            "test_hosts_are_found_by_agent_readiness_and_trait",
        ),
        "console.api.test_host_orders": (
            "test_maintenance_becomes_what_the_table_allows",
            "test_orders_outlive_the_lists_of_the_cloud",
        ),
        "hosts.agents.test_orders": (
            "test_a_fence_that_is_sent_again_ends_one_epoch",
            "test_an_agent_is_decommissioned_once",
            "test_one_reservation_is_removed_and_those_of_others_are_not",
        ),
        "hosts.agents.test_admission": ("test_cpus_and_memory_are_the_ledgers_with_slots_in_them",),
        "hosts.agents.test_counters": (
            "test_what_was_made_is_told_every_two_seconds_until_the_end",
        ),
    },
    "D.7 polls": {
        "hosts.agents.test_polls": (
            "test_pages_of_the_specification",
            "test_more_than_a_page_is_not_caught_up",
            "test_a_reader_that_follows_the_numbers_misses_no_change",
        ),
        "hosts.agents.test_held_polls": (
            "test_a_poll_is_held_until_there_is_something_for_its_host",
        ),
    },
    "D.8 results, crashes": {
        "domain.test_workload_results": ("test_row_of_the_table",),
        "agent.provision.test_engine": (
            "test_a_kill_at_any_line_neither_loses_nor_doubles",
            "test_after_a_boot_what_does_not_last_is_made_again",
        ),
        "agent.provision.test_store": (
            "test_a_newer_agents_store_is_left_alone",
            "test_a_damaged_store_is_moved_aside",
        ),
    },
    "D.9 lease, clock": {
        "agent.server.test_heart": ("test_the_lease_counts_from_when_the_heartbeat_was_sent",),
        "agent.process.test_agent": (
            "test_what_is_left_without_a_lease",
            "test_a_new_epoch_drops_what_was_not_begun",
        ),
        "hosts.agents.test_process": ("test_a_host_whose_clock_is_wrong_is_refused_once",),
    },
    "D.10 keys, commands": {
        "agent.test_configuration": ("test_every_key_is_in_the_table", "test_a_key_has_its_names"),
        "agent.test_cli": ("test_an_error_is_one_line_and_an_exit_code",),
        "agent.test_unit": ("test_the_unit_is_understood_and_confined",),
        "agent.process.test_orders": (
            "test_a_list_is_sent_whole_once_and_as_changes_from_then_on",
        ),
    },
    "D.11 provisioners": {
        "agent.provision.test_built_in": (
            "test_slices_protect_memory_and_their_parent_the_sum",
            "test_minimums_beyond_the_limit_write_nothing",
            "test_fewer_pages_than_wanted_restore_the_number",
            "test_a_folder_has_a_quota_and_is_kept_for_a_week",
            "test_a_device_is_made_once_and_removed",
        ),
        "agent.provision.test_engine": (
            "test_data_that_break_the_schema_of_a_plug_in_are_answered",
        ),
    },
    "D.14 scenarios": {
        "hosts.agents.test_process": ("test_an_agent_enrols_reports_and_stops",),
        "hosts.agents.test_scenarios": (
            "test_a_slot_reaches_its_agent_by_a_held_poll_and_leaves_with_a_tombstone",
            "test_two_requests_at_once_never_hold_the_same_cores",
            "test_a_cut_network_makes_the_host_down_and_nothing_is_made_twice",
            "test_a_slot_of_a_host_that_is_cut_off_goes_elsewhere_and_is_made_nowhere_twice",
            "test_a_restored_database_removes_nothing_of_what_it_forgot",
            "test_a_key_is_changed_under_load_and_the_old_one_ends_after_a_day",
        ),
        "hosts.agents.test_adoption": (
            "test_what_a_restored_database_still_wants_is_taken_over_and_the_rest_kept",
            "test_an_agent_whose_store_is_gone_finds_what_it_made",
        ),
        "hosts.agents.test_process_kills": (
            "test_either_side_killed_at_any_moment_loses_and_repeats_nothing",
        ),
        "agent.process.test_kills": (
            "test_a_kill_while_something_is_made_neither_loses_nor_repeats",
        ),
        "hosts.agents.test_process_wire": (
            "test_a_host_whose_clock_is_wrong_works_after_one_answer",
            "test_what_an_agent_sent_is_of_no_use_to_others",
            "test_a_result_is_taken_once_and_another_one_refused",
        ),
        "hosts.agents.test_process_vms": ("test_what_an_agent_tells_of_vms_arms_the_brakes",),
    },
    "D.12 admission in the database": {
        "capacity.test_slot_resources": (
            "test_the_database_refuses_what_no_host_has_room_for_with_the_numbers",
            "test_two_writers_never_hold_one_gpu_together",
            "test_the_nightly_look_repairs_sums_and_slots_of_flavors_that_changed",
        ),
        "capacity.test_leaving_rooms": (
            "test_room_of_a_slot_that_ended_is_held_until_the_agent_gave_it_back",
            "test_gpus_and_rates_of_a_slot_that_ended_are_held_until_the_agent_gave_them_back",
        ),
    },
    "D.13 settings, metrics": {
        "hosts.agents.test_tables": (
            "test_periods_that_contradict_each_other_are_refused",
            "test_every_metric_of_the_table_is_told",
        ),
        "capacity.test_host_metrics": ("test_a_report_is_told_beside_what_reservations_hold",),
    },
    "C.1 maintenance, overcommit": {
        "console.api.test_host_orders": (
            "test_maintenance_becomes_what_the_table_allows",
            "test_ratios_that_may_be_ordered",
        ),
    },
    "C.3 readiness": {
        "bridge.test_hypervisor_reading": ("test_readiness",),
    },
    "C.4 blocks": {
        "domain.capacity.test_blocking": ("test_a_reservation_blocks_what_the_table_says",),
    },
    "C.5 overcommit rules": {
        "bridge.test_owned_fields": (
            "test_the_rules_of_the_specification",
            "test_rules_that_mean_nothing_stop_the_start",
        ),
    },
    "C.6 guard": {
        "capacity.test_oversubscription": ("TestTimers", "TestVictims", "TestEviction"),
        "domain.capacity.test_eviction": ("test_a_plan_is_the_best_of_all_plans",),
    },
}


@pytest.mark.parametrize("section", TABLES)
def test_every_table_has_its_tests(section: str) -> None:
    for module, names in TABLES[section].items():
        found = import_module(f"tests.{module}")
        assert [name for name in names if not callable(getattr(found, name, None))] == []


# In the order of the specification, what is wrong with a request, and its code.
FAULTS: Final = (
    ("header", "bad_auth_header"),
    ("key", "unknown_key"),
    ("clock", "clock_skew"),
    ("signature", "bad_signature"),
    ("nonce", "replayed"),
    ("path", "wrong_host"),
    ("life", "decommissioned"),
    ("epoch", "stale_epoch"),
)
WRITES_NOTHING: Final = 4  # of the faults, the first


@pytest.mark.django_db
@pytest.mark.parametrize("first", range(len(FAULTS)), ids=[name for name, _ in FAULTS])
def test_of_several_faults_the_first_check_answers(first: int) -> None:
    wrong = {name for name, _ in FAULTS[first:]}
    identity = enforcing("h1")
    other = enforcing("h2")
    agent = agent_named("h1")
    nonce = "ab" * 16
    changes: dict[str, Any] = {"nonce": nonce}
    if "clock" in wrong:
        changes["timestamp"] = int(datetime.now(UTC).timestamp()) - 7200
    if "path" in wrong:
        changes["path"] = f"/hosts/v1/{other.host_id}/resources"
    request = signed(identity, **changes)
    if "signature" in wrong:
        request = replace(request, body=request.body + b" ")
    if "nonce" in wrong:
        RequestNonce.objects.create(agent=agent, nonce=nonce)
    if "life" in wrong:
        HostAgent.objects.filter(pk=agent.pk).update(decommissioned_at=datetime.now(UTC))
    if "epoch" in wrong:
        HostAgent.objects.filter(pk=agent.pk).update(fence_epoch=2)
    headers = dict(request.headers)
    if "key" in wrong:
        headers["X-Host-Key"] = "A" * 16
    if "header" in wrong:
        headers["X-Host-Nonce"] = "no nonce"
    before = list(RequestNonce.objects.values())

    answer = replace(request, headers=headers).send()

    assert code_of(answer)[1] == FAULTS[first][1]
    assert agent_named("h1").report is None
    assert agent_named("h2").report is None
    if first < WRITES_NOTHING:
        assert list(RequestNonce.objects.values()) == before


#: Of D.13, as the page of metrics has them; one has the reference's name.
METRICS: Final = (
    "host_resource_capacity", "host_oversub_ratio", "host_disk_breakdown_bytes",
    "host_image_storage_bytes", "host_gpu_slots", "host_gpu_profile_slots", "host_liveness",
    "host_condition", "host_oversubscribed", "host_oversubscribed_evicted_reservations_total",
    "host_reservations", "host_requests_rejected_total", "host_poll_waiters", "host_poll_seconds",
    "host_reserved_drift_total", "host_stats_drift", "headroom_agent_job_seconds",
    "headroom_agent_job_failures_total", "headroom_agent_outbox_depth",
    "headroom_agent_outbox_oldest_seconds", "headroom_agent_clock_offset_seconds",
    "headroom_agent_lease_remaining_seconds", "headroom_agent_cleanup_candidates",
)  # fmt: skip


def test_every_metric_of_the_table_is_told() -> None:
    pages = [ROOT / "docs" / name for name in ("operations.md", "hosts.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    told = set(re.findall(r"`(?:P_)?(\w+)`", text))
    assert [name for name in METRICS if name not in told] == []


@pytest.mark.parametrize(
    ("heartbeat", "lease", "down", "is_allowed"),
    [(10, 30, 90, True), (30, 75, 90, True), (15, 30, 90, False), (10, 91, 90, False)],
)
def test_periods_that_contradict_each_other_are_refused(
    heartbeat: float, lease: float, down: float, *, is_allowed: bool
) -> None:
    chosen = {
        "heartbeat_seconds": heartbeat,
        "lease_seconds": lease,
        "down_after_seconds": down,
    }
    if is_allowed:
        assert AgentSettings(**chosen).lease_seconds == lease
        return
    with pytest.raises(ValidationError, match="two heartbeats"):
        AgentSettings(**chosen)
