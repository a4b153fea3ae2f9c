from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scheduling import filters
from scheduling.engine import Pipeline, passing_hosts, schedule
from scheduling.filters import Filter
from scheduling.request import Intent, PlacementRequest

from .full_worlds import SLOW_RULES, World, full_requests, full_worlds, kept, only, slow_verdict

EVERY_FILTER: tuple[Filter, ...] = (
    filters.filter_status_conditions,
    filters.filter_correct_az,
    filters.filter_host_instructions,
    filters.filter_image_properties,
    filters.filter_capabilities,
    filters.filter_has_requested_traits,
    filters.filter_external_customer(
        domain_name_prefixes=("iaas-",), ignored_domain_names=("iaas-2",)
    ),
    filters.filter_has_accelerators,
    filters.filter_instance_group_affinity,
    filters.filter_instance_group_anti_affinity,
    filters.filter_has_enough_capacity,
    filters.filter_allowed_projects,
    filters.filter_aggregate_metadata,
    filters.filter_live_migratable,
    filters.filter_requested_destination,
    filters.filter_quota_enforcement(),
    filters.filter_exclude_hosts(excluded_hosts=("host-1", "host-2", "host-2", "nobody")),
    filters.filter_packed_virtqueue,
    filters.filter_maintenance,
)
IDS = [step.name for step in EVERY_FILTER]


def can_be_judged(world: World, request: PlacementRequest) -> bool:
    """The source of a live migration must be known, or the request fails (tested elsewhere)."""
    migrates = request.intent is Intent.LIVE_MIGRATION and request.source_host
    return not migrates or request.source_host in {host.name for host in world.hosts}


def test_every_filter_has_a_slow_rule() -> None:
    assert set(IDS) == set(SLOW_RULES)


@pytest.mark.parametrize("step", EVERY_FILTER, ids=IDS)
def test_filter_equals_the_per_host_rule(step: Filter) -> None:
    @given(world=full_worlds, request=full_requests)
    def check(world: World, request: PlacementRequest) -> None:
        request = replace(request, hosts=None)
        assume(can_be_judged(world, request))
        expected = [slow_verdict(step.name, world, host, request) for host in world.hosts]
        table = world.table()
        for _ in range(2):  # the second time from the cache
            assert passing_hosts(table, request, only(step)).tolist() == expected

    check()


@pytest.mark.parametrize("step", EVERY_FILTER, ids=IDS)
def test_filter_of_a_snapshot_without_hosts_keeps_nothing(step: Filter) -> None:
    request = PlacementRequest(request_key="r", memory_bytes=1, vcpus=1, zone="az-1")
    assert kept(World(hosts=()).table(), request, step) == []


@given(
    world=full_worlds,
    request=full_requests,
    order=st.permutations(EVERY_FILTER),
)
def test_order_of_filters_never_changes_the_survivors(
    world: World, request: PlacementRequest, order: list[Filter]
) -> None:
    request = replace(request, hosts=None)
    assume(can_be_judged(world, request))
    table = world.table()
    pipeline = Pipeline(name="any order", filters=tuple(order), weighers=())
    survivors = {
        host.name
        for host in world.hosts
        if all(slow_verdict(step.name, world, host, request) for step in EVERY_FILTER)
    }
    decision = schedule(table, request, pipeline, max_candidates=0)
    assert {candidate.host_name for candidate in decision.top} == survivors
    assert decision.removals[-1].remaining == len(survivors)


@given(world=full_worlds, request=full_requests)
def test_removing_a_reservation_never_removes_a_host(
    world: World, request: PlacementRequest
) -> None:
    request = replace(request, hosts=None)
    step = filters.filter_has_enough_capacity
    before = set(kept(world.table(), request, step))
    for index in range(len(world.reservations)):
        rest = world.reservations[:index] + world.reservations[index + 1 :]
        assert before <= set(kept(replace(world, reservations=rest).table(), request, step))
