from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduling import filters
from scheduling.columns import BoolColumn
from scheduling.engine import passing_hosts, schedule
from scheduling.evaluation import CompiledPipeline
from scheduling.filters import Filter, FreeColumns, StepError
from scheduling.intents import Intent
from scheduling.record import record_run
from scheduling.request import PlacementRequest
from scheduling.resources import ResourceVector
from scheduling.step_catalogue import FILTERS
from scheduling.table import HostTable
from scheduling.table_rows import HostRow

from .full_worlds import SLOW_RULES, World, full_requests, full_worlds, kept, only, slow_verdict
from .worlds import gib

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
    filters.filter_quota_enforcement(enforce=True),
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


def test_every_filter_of_the_catalogue_is_compared() -> None:
    assert set(IDS) == set(FILTERS)


@given(
    world=full_worlds,
    request=full_requests,
    locked=st.booleans(),
    kinds=st.sampled_from([(), ("committed",), ("failover", "in_flight")]),
    is_empty=st.booleans(),
)
def test_parameters_of_the_capacity_step_act_like_options_of_the_call(
    world: World, request: PlacementRequest, locked: bool, kinds: tuple[str, ...], is_empty: bool
) -> None:
    step = filters.capacity_filter(
        lock_reserved=locked, ignored_kinds=kinds, ignore_allocations=is_empty
    )
    optional = replace(
        request,
        hosts=None,
        lock_reservations=request.lock_reservations or locked,
        ignored_kinds=request.ignored_kinds | set(kinds),
        assume_empty_hosts=request.assume_empty_hosts or is_empty,
    )
    expected = [slow_verdict(step.name, world, host, optional) for host in world.hosts]
    mask = passing_hosts(world.table(), replace(request, hosts=None), only(step))
    assert mask.tolist() == expected


@pytest.mark.parametrize("step", EVERY_FILTER, ids=IDS)
def test_filter_keeps_candidates_only_and_leaves_the_request_alone(step: Filter) -> None:
    @settings(max_examples=30)  # times the number of filters
    @given(world=full_worlds, request=full_requests)
    def check(world: World, request: PlacementRequest) -> None:
        request = replace(request, hosts=request.hosts or (), source_host="")
        listed = tuple(request.hosts or ())
        specs = dict(request.extra_specs)
        table = world.table()
        left = kept(table, request, step)
        assert set(left) <= set(listed)
        assert (request.hosts, request.extra_specs) == (listed, specs)
        known = {host.name for host in world.hosts}
        alone = kept(table, replace(request, hosts=None), step)
        assert known.intersection(left) == set(alone).intersection(listed)

    check()


def unable(_table: HostTable, _request: PlacementRequest, _free: FreeColumns) -> BoolColumn:
    raise StepError("cannot judge")


@pytest.mark.parametrize("step", EVERY_FILTER, ids=IDS)
def test_filter_that_cannot_judge_fails_the_request_unless_it_is_about_quota(step: Filter) -> None:
    unsure = replace(step, mask=unable, is_active=None)
    table = World(hosts=(HostRow(name="h", host_id=1),)).table()
    request = PlacementRequest(request_key="r", memory_bytes=1, vcpus=1)
    record = record_run(table, request, only(unsure))
    if step.name == "filter_quota_enforcement":
        assert record.ordered_hosts == ("h",)
        assert record.filters[0].skipped_because == "cannot judge"
    else:
        assert record.ordered_hosts == ()
        assert record.failure == f"{step.name}: cannot judge"


@pytest.mark.parametrize("step", EVERY_FILTER, ids=IDS)
def test_filter_of_an_empty_host_list_keeps_nothing(step: Filter) -> None:
    table = World(hosts=(HostRow(name="host-9", host_id=1),)).table()
    request = PlacementRequest(request_key="r", memory_bytes=1, vcpus=1, hosts=())
    assert kept(table, request, step) == []


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
    pipeline = CompiledPipeline(name="any order", filters=tuple(order), weighers=())
    survivors = {
        host.name
        for host in world.hosts
        if all(slow_verdict(step.name, world, host, request) for step in EVERY_FILTER)
    }
    decision = schedule(table, request, pipeline, max_candidates=0)
    assert {candidate.host_name for candidate in decision.top} == survivors
    assert decision.removals[-1].remaining == len(survivors)


@given(
    world=full_worlds,
    request=full_requests,
    place=st.integers(0, 5),
    more=st.sampled_from([gib(1, 0), gib(0, 1), gib(3, 2)]),
)
def test_adding_capacity_never_removes_a_host(
    world: World, request: PlacementRequest, place: int, more: ResourceVector
) -> None:
    request = replace(request, hosts=None)
    before = set(kept(world.table(), request, filters.filter_has_enough_capacity))
    larger = tuple(
        replace(host, effective=host.effective + more) if index == place else host
        for index, host in enumerate(world.hosts)
    )
    after = kept(replace(world, hosts=larger).table(), request, filters.filter_has_enough_capacity)
    assert before <= set(after)


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
