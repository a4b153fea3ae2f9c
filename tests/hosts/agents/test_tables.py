"""Each table and vector of spec hosts, what its agent never does, and the tests that hold them.

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
    "A.2 configuration": {
        "agent.test_configuration": (
            "test_every_key_is_in_the_table",
            "test_names_of_one_key_must_agree",
            "test_what_is_not_allowed_is_refused_in_one_line",
            "test_a_profile_selects_another_agents_defaults",
        ),
    },
    "A.3 detection": {
        "agent.resources.test_uplink": ("test_the_speed_of_the_default_routes_card_counts",),
        "agent.resources.test_detect": (
            "test_cpus_are_counted",
            "test_a_pinned_agent_says_that_it_sees_less",
            "test_memory_is_memtotal_in_bytes_and_names_huge_pages",
            "test_a_disk_has_the_size_of_its_file_system_with_roots_blocks",
        ),
        "agent.resources.test_admission": (
            "test_an_uplink_of_unknown_speed_is_no_limit_but_zero_is",
        ),
    },
    "A.4 sizes and rates": {
        "agent.resources.test_sizes": (
            "test_a_text_is_read_leniently_and_strictly",
            "test_what_is_accepted_strictly_is_what_is_read_leniently",
            "test_sizes_in_messages",
        ),
    },
    "A.5 instances that count": {
        "agent.resources.test_status": (
            "test_a_vm_counts_by_its_state_or_always",
            "test_vms_that_count_are_summed",
        ),
    },
    "A.6 status arithmetic": {
        "agent.resources.test_status": ("test_a_limit_is_the_floor_of_capacity_times_ratio",),
    },
    "A.7 disk, images": {
        "agent.resources.test_status": ("test_disk_is_images_layers_volumes_and_overlays",),
        "agent.resources.test_admission": (
            "test_a_pull_needs_five_gibibytes",
            "test_images_take_a_share_of_the_disk",
        ),
    },
    "A.8 default bandwidths": {
        "agent.resources.test_admission": (
            "test_a_vm_without_a_rate_gets_its_cpus_share_of_the_network",
            "test_a_vm_without_a_rate_gets_its_cpus_share_of_disk_io",
        ),
    },
    "A.9 admission": {
        "agent.resources.test_admission": (
            "test_a_vm_that_fits_exactly_is_admitted_and_one_more_cpu_is_not",
            "test_all_that_is_short_is_named_in_order",
            "test_a_gpu_under_way_is_not_given_away_twice",
            "test_what_is_under_way_does_not_stand_against_itself",
            "test_the_largest_fit_fits_and_a_little_more_does_not",
        ),
    },
    "A.10 full status": {
        "agent.resources.test_status": ("test_a_report_has_the_documented_form",),
    },
    "A.11 GPUs": {
        "agent.resources.test_gpu": (
            "test_mediated_devices_are_slots",
            "test_functions_of_the_vendors_driver_are_slots",
            "test_whole_gpus_are_slots_and_their_other_functions_are_not",
            "test_a_function_that_failed_for_two_vms_is_not_tried_again",
        ),
    },
    "A.12 monitoring, utilisation": {
        "agent.resources.test_monitor": (
            "test_an_interval_must_be_positive",
            "test_cpu_time_is_read_after_the_last_bracket",
            "test_what_a_tap_received_the_vm_sent",
        ),
    },
    "B.2 vectors": {
        "agent.provision.test_signing": (
            "test_an_older_reservation_is_signed_and_verified",
            "test_an_older_result_is_signed_and_verified",
        ),
    },
    "B.3 sources": {
        "agent.provision.test_sources": (
            "test_polls_follow_the_last_number",
            "test_only_what_cannot_be_read_is_left_out",
        ),
    },
    "B.5 provision, decommission": {
        "agent.provision.test_engine": (
            "test_what_cannot_be_is_answered",
            "test_an_unknown_one_is_told_as_deleted",
            "test_a_reservation_takes_over_what_another_made",
        ),
        "agent.provision.test_room": (
            "test_workloads_share_the_memory_that_the_host_does_not_need",
        ),
        "agent.provision.test_units": ("test_the_host_keeps_some_memory",),
    },
    "B.8 units": {
        "agent.provision.test_units": (
            "test_a_workload_has_its_units",
            "test_a_sized_vm_has_its_units",
            "test_workloads_add_up",
            "test_less_than_nothing_is_nothing",
            "test_compute_units",
            "test_storage_units",
        ),
    },
    "B.9 cache": {"agent.provision.test_store": ("test_the_example_of_the_reference",)},
    "B.10 expiry": {
        "agent.provision.test_wire": ("test_a_reservation_ends_strictly_after_its_duration",),
    },
    "B.11 cleanup": {
        "agent.provision.test_janitor": (
            "test_the_servers_word_decides",
            "test_many_at_once_need_an_operator",
        ),
    },
    "B.12 names": {
        "agent.provision.test_wire": (
            "test_a_file_system_tells_its_workload",
            "test_a_network_has_an_id",
        ),
    },
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
    "D.13 admin": {
        "admin.test_host_orders": (
            "test_an_agent_is_fenced_and_ended_with_a_reason",
            "test_hosts_leave_service_and_come_back",
            "test_a_new_token_is_shown_once_and_enrols_its_host_once",
        ),
        "admin.test_agent_work": ("test_pages_say_what_agents_made_and_whether_it_is_signed",),
    },
    "D.15 proofs, continuous verification": {
        "agent.provision.test_proofs": ("test_results_of_each_of_its_keys_hold",),
        "hosts.agents.test_process_work": (
            "test_an_auditor_verifies_what_the_agent_signed_without_server_and_agent",
        ),
        "agent.process.test_agent": (
            "test_what_drifts_is_told_and_made_again_as_the_next_attempt",
        ),
    },
    "never: declare a VM or host dead, start a VM elsewhere": {
        "agent.test_never": ("test_agents_have_no_call_that_says_that_a_vm_or_a_host_is_dead",),
        "hosts.agents.test_leases": ("test_a_silent_host_is_not_lost",),
    },
    "never: write to libvirt, call it without a timeout": {
        "agent.test_never": ("test_libvirt_is_only_read_and_from_one_module",),
        "agent.resources.test_libvirt": (
            "test_a_libvirt_that_hangs_is_not_waited_for",
            "test_who_watches_a_libvirt_that_hangs_ends_when_the_agent_does",
        ),
    },
    "never: delete what was made because contact was lost": {
        "agent.process.test_agent": (
            "test_what_is_left_without_a_lease",
            "test_a_database_that_was_restored_removes_nothing",
            "test_a_host_that_was_decommissioned_ends_and_removes_nothing",
        ),
        "agent.provision.test_janitor": ("test_a_database_of_yesterday_removes_nothing",),
    },
    "never: read an empty list as no VMs": {
        "agent.process.test_health": ("test_vms_that_cannot_be_listed_are_not_told_of",),
        "hosts.agents.test_process_vms": (
            "test_a_list_that_became_empty_is_not_believed_while_the_cloud_has_vms",
        ),
    },
    "never: change cgroups of running VMs": {
        "agent.provision.test_built_in": (
            "test_groups_of_vms_that_run_are_never_touched",
            "test_capping_vms_that_run_needs_a_word",
        ),
    },
    "never: update itself": {
        "agent.test_never": (
            "test_no_program_is_run_but_for_quotas_so_nothing_updates_itself_or_the_host",
        ),
        "agent.process.test_orders": ("test_what_is_no_command_does_nothing",),
    },
    "never: log secrets": {
        "agent.process.test_kills": ("test_a_process_logs_no_secret_and_says_when_it_is_ready",),
    },
    "C.1 maintenance, overcommit": {
        "console.api.test_host_orders": (
            "test_maintenance_becomes_what_the_table_allows",
            "test_ratios_that_may_be_ordered",
        ),
    },
    "C.3 readiness, offboarding": {
        "domain.hosts.test_offboarding": (
            "test_the_first_rule_that_matches_says_it",
            "test_a_host_leaves_service_step_by_step",
        ),
        "bridge.test_hypervisor_reading": (
            "test_readiness",
            "test_why_a_host_is_not_ready_that_nobody_states",
        ),
        "console.api.test_offboarding": ("test_a_host_leaves_service_step_by_step",),
        "domain.hosts.test_lifecycle": ("test_a_host_is_taken_out_in_this_order",),
        "hosts.test_lifecycles": (
            "test_a_host_leaves_when_nothing_is_left_on_it",
            "test_who_dies_at_any_call_is_followed_by_another",
        ),
    },
    "C.3 onboarding": {
        "domain.hosts.test_lifecycle": (
            "test_initial",
            "test_a_test_vm_has_to_say_its_name",
            "test_handover_is_traits_then_aggregates",
            "test_an_abort_is_over_when_no_test_vm_is_left",
        ),
        "hosts.test_lifecycles": (
            "test_a_host_comes_in_tested_and_serves",
            "test_an_abort_waits_until_no_test_vm_is_left",
        ),
    },
    "C.3 eviction": {
        "hosts.test_leaving": (
            "test_a_host_becomes_empty_one_vm_after_the_other_and_serves_again",
        ),
    },
    "C.2 cells": {
        "bridge.test_hypervisor_reading": ("test_each_cell_is_described",),
        "hosts.agents.test_cells": (
            "test_what_may_be_promised_of_a_cell_follows_the_ratio_of_its_host",
            "test_what_an_object_says_of_cells_counts_before_its_agent",
        ),
    },
    "D.9 two agents of one host": {
        "hosts.agents.test_process_takeover": (
            "test_of_a_cloned_disk_the_agent_that_lives_stays_unless_it_is_taken_over",
            "test_a_host_is_not_enrolled_anew_while_its_agent_lives",
        ),
    },
    "D.15 rolling upgrades": {
        "domain.hosts.test_rollout": (
            "test_waves_follow_each_other_when_all_of_the_last_run_well",
            "test_one_that_fails_of_few_halts",
        ),
        "hosts.agents.test_rollouts": ("test_a_version_reaches_hosts_wave_after_wave",),
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
    "C.7 filters": {
        "domain.scheduling.test_filters": (
            "test_status_filter_keeps_hosts_whose_conditions_allow_placement",
            "test_zone_filter_keeps_hosts_of_the_requested_zone",
            "test_capabilities_filter_keeps_hosts_of_the_requested_type",
            "test_traits_filter_keeps_hosts_with_required_and_without_forbidden_traits",
            "test_allowed_projects_filter_removes_hosts_closed_to_the_project",
            "test_capacity_filter_goes_by_the_effective_capacity",
        ),
    },
    "C.7 figures of hosts": {
        "capacity.test_reservation_metrics": (
            "test_host_is_divided_into_what_fills_it",
            "test_overfull_host_has_nothing_available",
            "test_slot_whose_vms_outgrew_it_reserves_nothing",
            "test_labels_follow_traits",
            "test_hosts_tell_the_version_of_their_system",
            "test_host_without_capacity_is_skipped",
        ),
    },
    "C.7 where a VM is": {
        "hosts.test_vm_source": (
            "test_vms_run_where_list_and_hosts_say",
            "test_what_is_left_out_is_counted",
        ),
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
    told = set(re.findall(r"`(?:P_|cortex_)?(\w+)`", text))
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
