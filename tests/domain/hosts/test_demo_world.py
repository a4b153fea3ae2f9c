"""The world of the demo: never an impossible one, and the same story for the same seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.domain.demo_world import (
    DRIFT_SHARE,
    MOST_COMMITMENTS,
    OF_VMS,
    Act,
    DemoCommitment,
    DemoHost,
    DemoVM,
    ImpossibleError,
    Size,
    Wish,
    World,
    next_wish,
)

SIZES = (
    Size(flavor="g_small", memory_mib=1024, vcpus=1),
    Size(flavor="g_large", memory_mib=4096, vcpus=3),
    Size(flavor="hana_one", memory_mib=8192, vcpus=4),
)


def small_world() -> World:
    hosts = [
        DemoHost(name=f"h{number}", zone=f"az-{number % 2}", memory_mib=16384, vcpus=12,
                 is_up=number != 4)
        for number in range(5)
    ]  # fmt: skip
    vms = [
        DemoVM(uuid=f"vm-{number}", project_id=f"p{number % 2}", size=SIZES[number % 3],
               host=f"h{number % 5}")
        for number in range(9)
    ]  # fmt: skip
    return World(hosts=hosts, vms=vms, sizes=SIZES, resources={"r1": 1, "r2": 256})


def seeded(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - reproducible, nothing secret


def numbered() -> Callable[[], str]:
    """Make ids that are the same in each life."""
    numbers = itertools.count(1)
    return lambda: str(UUID(int=next(numbers)))


def live(world: World, rng: random.Random, steps: int) -> list[tuple[Wish, str]]:
    """Grant wishes where the world allows; return the story."""
    story = []
    new_id = numbered()
    for _ in range(steps):
        wish = next_wish(world, rng, new_id)
        if wish is None:
            break
        host = rng.choice(sorted(world.hosts)) if wish.act in OF_VMS else ""
        try:
            world.apply(wish, host=host)
        except ImpossibleError:
            continue
        story.append((wish, host))
        assert world.problems() == []
    return story


@given(st.integers(0, 2**32))
def test_no_sequence_of_events_makes_an_impossible_world(seed: int) -> None:
    world = small_world()
    live(world, seeded(seed), 60)
    assert len(world.failed) <= 1
    assert not world.hosts["h4"].is_up


def test_the_same_seed_tells_the_same_story() -> None:
    first, second = (live(small_world(), seeded(7), 2000) for _ in range(2))
    assert first == second
    assert {wish.act for wish, _ in first} == set(Act)


wishes = st.builds(
    Wish,
    act=st.sampled_from(list(Act)),
    vm=st.none()
    | st.builds(
        DemoVM,
        uuid=st.sampled_from([f"vm-{number}" for number in range(12)]),
        project_id=st.just("p0"),
        size=st.sampled_from(SIZES),
        host=st.just("h0"),
    ),
    host=st.sampled_from(["h0", "h1", "h4", "nowhere"]),
    commitment=st.none()
    | st.builds(
        DemoCommitment,
        uuid=st.sampled_from(["c1", "c2"]),
        project_id=st.just("p0"),
        zone=st.just("az-0"),
        resource=st.just("r1"),
        amount_units=st.integers(-1, 3),
    ),
)


@given(st.lists(st.tuples(wishes, st.sampled_from(["h0", "h1", "h2", "h4", "nowhere"]))))
def test_what_is_refused_changes_nothing_and_what_is_done_is_possible(
    asked: list[tuple[Wish, str]],
) -> None:
    world = small_world()
    for wish, host in asked:
        before = (dict(world.hosts), dict(world.vms), dict(world.commitments), set(world.failed))
        try:
            world.apply(wish, host=host)
        except ImpossibleError:
            after = (world.hosts, world.vms, world.commitments, world.failed)
            assert after == before
        assert world.problems() == []


def test_no_commitment_is_asked_for_while_there_are_many() -> None:
    found = small_world()
    many = [
        DemoCommitment(uuid=f"c{each}", project_id="p0", zone="az-0", resource="r1", amount_units=1)
        for each in range(MOST_COMMITMENTS)
    ]
    world = World(
        hosts=found.hosts.values(),
        vms=found.vms.values(),
        sizes=SIZES,
        resources={"r1": 1},
        commitments=many,
    )
    rng, new_id = seeded(3), numbered()
    wishes = [next_wish(world, rng, new_id) for _ in range(1000)]
    acts = {wish.act for wish in wishes if wish is not None}
    assert Act.COMMIT not in acts
    assert {Act.UNCOMMIT, Act.GROW, Act.OVERASK} <= acts


def test_a_host_found_down_is_repaired_and_no_other_fails_before() -> None:
    found = small_world()
    world = World(hosts=found.hosts.values(), vms=found.vms.values(), sizes=SIZES, failed=["h4"])
    acts = [
        wish.act
        for wish, _ in live(world, seeded(11), 400)
        if wish.act in {Act.FAIL_HOST, Act.REPAIR_HOST}
    ]
    assert acts[:2] == [Act.REPAIR_HOST, Act.FAIL_HOST]


def test_a_full_or_dead_host_takes_nobody() -> None:
    world = small_world()
    vm = DemoVM(uuid="new", project_id="p0", size=replace(SIZES[0], memory_mib=16000), host="")
    for host in ("h0", "h4", "nowhere"):
        with pytest.raises(ImpossibleError, match="no room"):
            world.apply(Wish(act=Act.ARRIVE, vm=vm), host=host)


def test_an_empty_world_wishes_nothing() -> None:
    assert next_wish(World(hosts=[], vms=[], sizes=[]), seeded(1), numbered()) is None


def test_a_long_life_does_not_fill_the_region() -> None:
    world = small_world()
    rng = seeded(5)
    for _ in range(4000):
        live(world, rng, 1)
        taken_mib = sum(vm.size.memory_mib for vm in world.vms.values())
        largest_mib = max(size.memory_mib for size in SIZES)
        assert taken_mib <= world.usual_memory_mib * (1 + DRIFT_SHARE) + largest_mib
