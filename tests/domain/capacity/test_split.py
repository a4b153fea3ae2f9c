from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.figures.split import (
    FlavorSlots,
    GroupNeed,
    SplitResult,
    exclusive_split,
    group_totals,
)
from scheduling.resources import GIB, ResourceVector


@dataclass(frozen=True)
class Zone:
    """Hosts and needs as plain values; memory in any unit."""

    hosts: tuple[tuple[str, int, int], ...]
    needs: tuple[GroupNeed, ...]

    def split(self) -> SplitResult:
        return exclusive_split(
            np.array([memory for _, memory, _ in self.hosts], dtype=np.int64),
            np.array([vcpus for _, _, vcpus in self.hosts], dtype=np.int64),
            [name for name, _, _ in self.hosts],
            self.needs,
        )


def literal_split(zone: Zone) -> tuple[dict[str, int], dict[str, int], dict[int, tuple[int, int]]]:
    """The loop of the specification, word for word: free slots, assigned slots, what is left."""
    left = {row: [max(0, mem), max(0, cpu)] for row, (_, mem, cpu) in enumerate(zone.hosts)}
    names = [name for name, _, _ in zone.hosts]
    need = {n.group: (n.memory_bytes, n.vcpus) for n in zone.needs}
    candidates = {n.group: sorted(set(map(int, n.candidate_rows))) for n in zone.needs}

    def fits(group: str, row: int) -> bool:
        return left[row][0] >= need[group][0] and left[row][1] >= need[group][1]

    def slots(group: str, row: int) -> int:
        by_memory = left[row][0] // need[group][0]
        return min(by_memory, left[row][1] // need[group][1]) if need[group][1] else by_memory

    free = {group: sum(slots(group, row) for row in rows) for group, rows in candidates.items()}
    eligible = {g: [row for row in rows if fits(g, row)] for g, rows in candidates.items()}
    assigned = dict.fromkeys(need, 0)
    while True:
        order = sorted(need, key=lambda g: (len(eligible[g]), -need[g][0], -need[g][1], g))
        any_assigned = False
        for group in order:
            if not eligible[group]:
                continue
            best = min(
                eligible[group],
                key=lambda row: (left[row][0] % need[group][0], *left[row], names[row], row),
            )
            left[best][0] -= need[group][0]
            left[best][1] -= need[group][1]
            assigned[group] += 1
            any_assigned = True
            for other in need:
                eligible[other] = [r for r in eligible[other] if r != best or fits(other, r)]
        if not any_assigned:
            break
    used = {row for rows in candidates.values() for row in rows}
    rest = {row: (left[row][0], left[row][1]) for row in sorted(used) if any(left[row])}
    return free, assigned, rest


def zone_of(groups: str, hosts: str) -> Zone:
    """Read the tables of the specification: ``hana 4/2; h1 h2 - gp 8/4; h2`` and ``h1 8/4``."""
    host_rows = []
    for part in filter(None, hosts.split(", ")):
        name, pair = part.split()
        memory, vcpus = pair.split("/")
        host_rows.append((name, int(memory) * GIB, int(vcpus)))
    rows = {name: row for row, (name, _, _) in enumerate(host_rows)}
    needs = []
    for part in filter(None, groups.split(" - ")):
        head, names = part.split("; ")
        group, pair = head.split()
        memory, vcpus = pair.split("/")
        needs.append(
            GroupNeed(
                group=group,
                memory_bytes=int(memory) * GIB,
                vcpus=int(vcpus),
                candidate_rows=tuple(rows[name] for name in names.split() if name in rows),
            )
        )
    return Zone(hosts=tuple(host_rows), needs=tuple(needs))


def pair_of(vector: ResourceVector) -> str:
    return f"{vector.memory_bytes // GIB}/{vector.vcpus}"


WORKED_EXAMPLES = [
    ("hana 4/2; h1 h2", "h1 8/4, h2 4/2", "12/6", "12/6", "0/0"),
    ("gp 4/2; h1 - hana 8/4; h2", "h1 8/4, h2 8/4", "8/4 8/4", "8/4 8/4", "0/0"),
    ("alpha 4/2; s - beta 4/2; s", "s 8/4", "8/4 8/4", "4/2 4/2", "0/0"),
    ("alpha 4/2; s - beta 4/2; s", "s 12/6", "12/6 12/6", "8/4 4/2", "0/0"),
    (
        "constrained 4/2; shared - free 4/2; shared exclusive",
        "shared 4/2, exclusive 8/4",
        "4/2 12/6",
        "4/2 8/4",
        "0/0",
    ),
    ("gp 4/2; h", "h 16/0", "0/0", "0/0", "16/0"),
    ("hana 4/2; h1", "h1 3/4", "0/0", "0/0", "3/4"),
    ("hana8 8/4; h1 - gp4 4/2; h1", "h1 12/8", "8/4 12/6", "8/4 4/2", "0/2"),
    ("gp 4/2; h1 h2", "h1 5/8, h2 8/4", "12/6", "12/6", "1/6"),
    ("gp 4/2; h1 h2", "h1 6/8, h2 3/4", "4/2", "4/2", "5/10"),
    (
        "g1 4/2; h1 h2 h3 - g2 8/4; h2 h3 - g3 4/2; h1 h3",
        "h1 12/6, h2 16/8, h3 24/12",
        "52/26 40/20 36/18",
        "16/8 24/12 12/6",
        "0/0",
    ),
    (
        "c 4/2; h1 h2 - a 8/4; h1 h2 - b 4/2; h2",
        "h1 16/8, h2 8/4",
        "24/12 24/12 8/4",
        "4/2 16/8 4/2",
        "0/0",
    ),
    (
        "big 16/4; a b - small 4/2; a b c",
        "a 20/10, b 34/12, c 6/4",
        "48/12 48/24",
        "48/12 8/4",
        "4/10",
    ),
    ("", "h1 8/16", "", "", "0/0"),
    ("hana 4/2; h1", "", "0/0", "0/0", "0/0"),
]


def unassigned_of(split: SplitResult) -> ResourceVector:
    return ResourceVector(
        memory_bytes=int(split.unassigned_memory_bytes.sum()),
        vcpus=int(split.unassigned_vcpus.sum()),
    )


@pytest.mark.parametrize(
    ("groups", "hosts", "free", "exclusive", "unassigned"),
    WORKED_EXAMPLES,
    ids=[f"{example[0] or 'none'} on {example[1] or 'no hosts'}" for example in WORKED_EXAMPLES],
)
def test_worked_examples_split_as_the_specification_says(
    groups: str, hosts: str, free: str, exclusive: str, unassigned: str
) -> None:
    split = zone_of(groups, hosts).split()
    shares = split.shares.values()
    assert " ".join(pair_of(share.free) for share in shares) == free
    assert " ".join(pair_of(share.exclusive) for share in shares) == exclusive
    assert pair_of(unassigned_of(split)) == unassigned


@pytest.mark.parametrize(
    ("hosts", "small_need", "slots"),
    [
        pytest.param("h1 5/10, h2 8/10", "1/10", (2, 1), id="5 GiB vs 8 GiB: 8, no waste"),
        pytest.param("h1 8/10, h2 4/10", "1/10", (1, 1), id="8 vs 4: 4, less left"),
        pytest.param("h1 4/8, h2 4/4", "1/4", (1, 2), id="4/8 vs 4/4: fewer cores"),
    ],
)
@pytest.mark.parametrize("is_turned", [False, True], ids=["as told", "turned"])
def test_best_host_wastes_least_then_has_least_left(
    hosts: str, small_need: str, slots: tuple[int, int], *, is_turned: bool
) -> None:
    """Need 4 GiB; who comes second takes the cores of the other host, and the choice shows."""
    listed = ", ".join(hosts.split(", ")[:: -1 if is_turned else 1])
    split = zone_of(f"first 4/1; h1 h2 - second {small_need}; h1 h2", listed).split()
    shares = split.shares
    assert (shares["first"].assigned_slots, shares["second"].assigned_slots) == slots


@pytest.mark.parametrize("hosts", ["h1 4/4, h2 4/4", "h2 4/4, h1 4/4"], ids=["h1 h2", "h2 h1"])
def test_of_equal_hosts_the_first_name_is_best(hosts: str) -> None:
    split = zone_of("first 4/1; h1 h2 - second 1/4; h1 h2", hosts).split()
    left = zip(split.unassigned_rows.tolist(), split.unassigned_memory_bytes.tolist(), strict=True)
    names = [part.split()[0] for part in hosts.split(", ")]
    assert {names[row]: memory for row, memory in left} == {"h1": 0, "h2": 3 * GIB}


@pytest.mark.parametrize(
    ("need", "host", "fits"),
    [
        ("4/2", "8/4", True),
        ("4/2", "3/4", False),
        ("4/2", "8/1", False),
        ("4/2", "4/2", True),
        ("4/0", "4/0", True),
    ],
)
def test_need_fits_where_every_resource_does(need: str, host: str, *, fits: bool) -> None:
    share = zone_of(f"g {need}; h", f"h {host}").split().shares["g"]
    assert (share.free_slots > 0, share.assigned_slots > 0) == (fits, fits)


def test_leftovers_name_the_hosts_that_have_them() -> None:
    split = zone_of("gp 4/2; h1 h2", "h0 8/8, h1 5/8, h2 8/4").split()
    assert split.unassigned_rows.tolist() == [1]
    assert split.unassigned_memory_bytes.tolist() == [GIB]
    assert split.unassigned_vcpus.tolist() == [6]


def test_repeated_candidates_and_negative_room_count_once_and_as_nothing() -> None:
    zone = Zone(
        hosts=(("h1", 8, 4), ("h2", -5, 4), ("h3", 8, -1)),
        needs=(GroupNeed(group="g", memory_bytes=4, vcpus=2, candidate_rows=(0, 0, 1, 2)),),
    )
    assert zone.split().shares["g"].assigned_slots == 2


def test_groups_are_reported_in_the_order_they_were_given() -> None:
    split = zone_of("z 4/2; h - a 4/2; h", "h 4/2").split()
    assert list(split.shares) == ["z", "a"]
    assert split.shares["a"].assigned_slots == 1


@pytest.mark.parametrize(
    ("zone", "complaint"),
    [
        (
            Zone(
                hosts=(("h", 1, 1),),
                needs=(GroupNeed(group="g", memory_bytes=0, vcpus=1, candidate_rows=()),),
            ),
            "needs memory",
        ),
        (
            Zone(
                hosts=(("h", 1, 1),),
                needs=(GroupNeed(group="g", memory_bytes=1, vcpus=-1, candidate_rows=()),),
            ),
            "negative vCPUs",
        ),
        (
            Zone(
                hosts=(("h", 1, 1),),
                needs=(GroupNeed(group="g", memory_bytes=1, vcpus=1, candidate_rows=(1,)),),
            ),
            "not a row",
        ),
        (
            Zone(
                hosts=(("h", 1, 1),),
                needs=(GroupNeed(group="g", memory_bytes=1, vcpus=1, candidate_rows=(-1,)),),
            ),
            "not a row",
        ),
        (
            Zone(
                hosts=(),
                needs=2 * (GroupNeed(group="g", memory_bytes=1, vcpus=1, candidate_rows=()),),
            ),
            "comes twice",
        ),
    ],
)
def test_broken_input_is_refused(zone: Zone, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        zone.split()


def test_columns_of_different_length_are_refused() -> None:
    column = np.array([1], dtype=np.int64)
    with pytest.raises(ValueError, match="differ in length"):
        exclusive_split(column, column, ["a", "b"], ())


def assert_same_as_literal(zone: Zone) -> None:
    free, assigned, rest = literal_split(zone)
    split = zone.split()
    assert {g: share.assigned_slots for g, share in split.shares.items()} == assigned
    assert {g: share.free_slots for g, share in split.shares.items()} == free
    left = zip(split.unassigned_memory_bytes.tolist(), split.unassigned_vcpus.tolist(), strict=True)
    assert dict(zip(split.unassigned_rows.tolist(), left, strict=True)) == rest


@st.composite
def zones(draw: st.DrawFn, *, max_memory: int, max_need: int) -> Zone:
    host_count = draw(st.integers(1, 6))
    names = draw(st.permutations([f"h{index}" for index in range(host_count)]))
    hosts = tuple(
        (name, draw(st.integers(-1, max_memory)), draw(st.integers(-1, 2 * max_memory)))
        for name in names
    )
    groups = draw(st.permutations("abcde"))[: draw(st.integers(0, 5))]
    needs = tuple(
        GroupNeed(
            group=group,
            memory_bytes=draw(st.integers(1, max_need)),
            vcpus=draw(st.integers(0, max_need)),
            candidate_rows=tuple(draw(st.lists(st.integers(0, host_count - 1), max_size=6))),
        )
        for group in groups
    )
    return Zone(hosts=hosts, needs=needs)


@given(zones(max_memory=30, max_need=8))
def test_small_zones_split_like_the_literal_loop(zone: Zone) -> None:
    assert_same_as_literal(zone)


@settings(deadline=None)
@given(zones(max_memory=600, max_need=6))
def test_zones_of_long_repetitions_split_like_the_literal_loop(zone: Zone) -> None:
    assert_same_as_literal(zone)


@pytest.mark.parametrize("seed", range(12))
def test_random_regions_split_like_the_literal_loop(seed: int) -> None:
    random = np.random.default_rng(seed)
    host_count = 25
    hosts = tuple(
        (f"h{index:02}", int(memory), int(vcpus))
        for index, (memory, vcpus) in enumerate(
            zip(
                random.integers(0, 900, host_count),
                random.integers(0, 900, host_count),
                strict=True,
            )
        )
    )
    sizes: Sequence[int] = (1, 2, 4, 8, 16) if seed % 2 else (3, 4, 7, 10)
    needs = tuple(
        GroupNeed(
            group=f"g{group}",
            memory_bytes=int(random.choice(sizes)),
            vcpus=int(random.integers(0, 4)),
            candidate_rows=np.flatnonzero(random.random(host_count) < 0.4).astype(np.int64),
        )
        for group in range(7)
    )
    assert_same_as_literal(Zone(hosts=hosts, needs=needs))


@given(zones(max_memory=60, max_need=8), st.randoms(use_true_random=False))
def test_the_order_of_groups_and_candidates_does_not_matter(zone: Zone, random: object) -> None:
    shuffled = [
        replace(need, candidate_rows=tuple(reversed(tuple(need.candidate_rows))))
        for need in zone.needs
    ]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert dict(Zone(hosts=zone.hosts, needs=tuple(shuffled)).split().shares) == dict(
        zone.split().shares
    )


@given(zones(max_memory=60, max_need=8))
def test_groups_never_get_more_than_the_hosts_have(zone: Zone) -> None:
    split = zone.split()
    used = {row for need in zone.needs for row in need.candidate_rows}
    exclusive = ResourceVector()
    for share in split.shares.values():
        exclusive += share.exclusive
        assert share.assigned_slots <= share.free_slots
    assert exclusive.memory_bytes + unassigned_of(split).memory_bytes == sum(
        max(0, zone.hosts[row][1]) for row in used
    )
    assert exclusive.vcpus + unassigned_of(split).vcpus == sum(
        max(0, zone.hosts[row][2]) for row in used
    )


@pytest.mark.parametrize(
    ("flavors", "total"),
    [
        pytest.param([(10, 4, 2)], "40/20", id="10 x 4 GiB"),
        pytest.param([(10, 4, 2), (2, 32, 8)], "64/20", id="10 x 4 GiB and 2 x 32 GiB"),
        pytest.param([(0, 4, 2), (3, 8, 4)], "24/12", id="0 x 4 GiB and 3 x 8 GiB"),
        pytest.param([], "0/0", id="none"),
        pytest.param([(0, 4, 2), (0, 8, 4)], "0/0", id="all zero"),
    ],
)
def test_memory_and_cores_of_a_group_may_come_from_different_flavors(
    flavors: list[tuple[int, int, int]], total: str
) -> None:
    totals = group_totals(
        [FlavorSlots(slots=slots, memory_bytes=gib * GIB, vcpus=c) for slots, gib, c in flavors]
    )
    assert pair_of(totals) == total
