"""A slot is held only where its project's VM would be allowed (spec scheduling, 9.1)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.engine import SLOT_PIPELINE, Batch, passing_hosts
from scheduling.evaluation import CompiledPipeline, PipelineRunError, class_of
from scheduling.intents import Intent
from scheduling.pipelines import compile_pipeline
from scheduling.request import PlacementRequest
from scheduling.shipped_pipelines import SHIPPED
from scheduling.table import HostTable

from .full_worlds import World, extra_specs, full_requests, full_worlds

VM_PIPELINES = ("kvm-general-purpose-load-balancing", "kvm-hana-bin-packing")
slot_requests = st.builds(
    PlacementRequest,
    request_key=st.just("commitment-x-0"),
    memory_bytes=st.sampled_from([1 << 30, 4 << 30]),
    vcpus=st.integers(1, 3),
    zone=st.sampled_from(["", "az-1"]),
    project_id=st.sampled_from(["p1", "p2", "p9"]),
    extra_specs=st.builds(
        lambda specs, accelerated: {
            **specs,
            "capabilities:hypervisor_type": "qemu",
            **({"accel:device_profile": "gpu"} if accelerated else {}),
        },
        extra_specs,
        st.booleans(),
    ),
    domain_name=st.sampled_from([None, "monsoon3", "iaas-1"]),
    domain_is_unresolved=st.sampled_from([False, False, False, True]),
    intent=st.just(Intent.RESERVE_FOR_COMMITTED_RESOURCE),
    lock_reservations=st.just(True),
)


@pytest.mark.parametrize("name", VM_PIPELINES)
def test_hosts_of_a_slot_are_hosts_of_its_projects_vm(name: str) -> None:
    vm_pipeline = compile_pipeline(SHIPPED[name])

    @settings(suppress_health_check=[HealthCheck.too_slow])
    @given(world=full_worlds, request=slot_requests)
    def check(world: World, request: PlacementRequest) -> None:
        table = world.table()
        vm = replace(request, request_key="vm", intent=Intent.CREATE, lock_reservations=False)
        assert admitted(table, request, SLOT_PIPELINE) <= admitted(table, vm, vm_pipeline)

    check()


@given(world=full_worlds, requests=st.lists(full_requests | slot_requests, max_size=6))
def test_projects_that_hosts_do_not_tell_apart_share_what_is_evaluated(
    world: World, requests: list[PlacementRequest]
) -> None:
    table = world.table()
    shared, apart = (
        Batch(table, SLOT_PIPELINE),
        Batch(table, replace(SLOT_PIPELINE, project_key=None)),
    )
    for request in requests:
        assert shared.decide(request, 0) == apart.decide(request, 0)


@pytest.mark.parametrize("name", VM_PIPELINES)
def test_requests_of_a_class_pass_the_same_hosts(name: str) -> None:
    whole = compile_pipeline(SHIPPED[name])
    pipeline = replace(
        whole, filters=tuple(step for step in whole.filters if not step.measures_room)
    )
    unnamed = full_requests.map(lambda one: replace(one, hosts=None, restrict_to_hosts=None))

    @settings(suppress_health_check=[HealthCheck.too_slow])
    @given(world=full_worlds, requests=st.lists(unnamed | slot_requests, max_size=6))
    def check(world: World, requests: list[PlacementRequest]) -> None:
        table = world.table()
        found: dict[object, set[str]] = {}
        for request in requests:
            key = class_of(table, request, pipeline)
            if key is not None:
                passing = admitted(table, request, pipeline)
                assert found.setdefault(key, passing) == passing

    check()


def admitted(table: HostTable, request: PlacementRequest, pipeline: CompiledPipeline) -> set[str]:
    try:
        mask = passing_hosts(table, request, pipeline)
    except PipelineRunError:
        return set()
    return {name for name, passes in zip(table.names, mask, strict=True) if passes}
