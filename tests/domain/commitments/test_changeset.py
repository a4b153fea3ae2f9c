from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.changeset import (
    ChangeRequest,
    CommitmentChange,
    ProjectChanges,
    ResourceChangeset,
    detect_moves,
    find_contradictions,
    net_demand,
)
from commitments.domain.statuses import CommitmentStatus

PLANNED, PENDING, GUARANTEED, CONFIRMED, SUPERSEDED, EXPIRED = CommitmentStatus
RAM, CORES = "hw_version_x_ram", "hw_version_x_cores"

Entry = tuple[str, str, str, CommitmentStatus | None, CommitmentStatus | None]


def request(*entries: Entry) -> ChangeRequest:
    grouped: dict[str, dict[str, list[CommitmentChange]]] = {}
    for project_id, resource, uuid, old, new in entries:
        grouped.setdefault(project_id, {}).setdefault(resource, []).append(
            CommitmentChange(uuid=uuid, old_status=old, new_status=new, amount_units=1)
        )
    return ChangeRequest(
        zone="az-a",
        by_project={
            project_id: ProjectChanges(
                domain_id=f"domain-of-{project_id}",
                by_resource={
                    resource: ResourceChangeset(commitments=tuple(changes))
                    for resource, changes in resources.items()
                },
            )
            for project_id, resources in grouped.items()
        },
    )


def test_entries_come_sorted_by_project_and_resource_and_else_as_given() -> None:
    asked = request(
        ("b", RAM, "one111", None, PLANNED),
        ("a", RAM, "two222", None, PLANNED),
        ("a", CORES, "zzz333", None, PLANNED),
        ("a", CORES, "aaa444", None, PLANNED),
    )

    assert [(e.project_id, e.change.uuid) for e in asked.entries()] == [
        ("a", "zzz333"),
        ("a", "aaa444"),
        ("a", "two222"),
        ("b", "one111"),
    ]


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        pytest.param([("a", RAM, "abc123", None, None)], "both null", id="both null"),
        pytest.param(
            [("a", RAM, "abc123", None, SUPERSEDED)], "final status superseded", id="superseded"
        ),
        pytest.param([("a", RAM, "abc123", None, EXPIRED)], "final status expired", id="expired"),
        pytest.param(
            [("a", RAM, "abc123", CONFIRMED, None), ("a", RAM, "abc123", None, CONFIRMED)],
            "occurs 2 times",
            id="same project and resource",
        ),
        pytest.param(
            [("a", RAM, "abc123", CONFIRMED, None), ("b", RAM, "abc123", CONFIRMED, None)],
            "occurs 2 times",
            id="two departures",
        ),
        pytest.param(
            [("a", RAM, "abc123", None, CONFIRMED), ("b", RAM, "abc123", None, CONFIRMED)],
            "occurs 2 times",
            id="two arrivals",
        ),
        pytest.param(
            [("a", RAM, "abc123", CONFIRMED, None), ("b", RAM, "abc123", PLANNED, CONFIRMED)],
            "occurs 2 times",
            id="departure and update",
        ),
        pytest.param(
            [
                ("a", RAM, "abc123", CONFIRMED, None),
                ("b", RAM, "abc123", None, CONFIRMED),
                ("c", RAM, "abc123", None, CONFIRMED),
            ],
            "occurs 3 times",
            id="three times",
        ),
    ],
)
def test_a_contradiction_is_named(entries: list[Entry], problem: str) -> None:
    (contradiction,) = find_contradictions(request(*entries))
    found = contradiction.message

    assert problem in found
    assert "abc123" in found


@pytest.mark.parametrize(
    ("departs", "arrives"),
    [
        pytest.param(("a", RAM), ("b", RAM), id="a to b"),
        pytest.param(("b", RAM), ("a", RAM), id="b to a"),
        pytest.param(("a", CORES), ("a", RAM), id="conversion to memory"),
        pytest.param(("a", RAM), ("a", CORES), id="conversion to cores"),
    ],
)
def test_a_departure_and_an_arrival_are_one_move_however_projects_sort(
    departs: tuple[str, str], arrives: tuple[str, str]
) -> None:
    asked = request(
        (*departs, "abc123", CONFIRMED, None),
        (*arrives, "abc123", None, PENDING),
        ("c", RAM, "other1", CONFIRMED, None),
    )

    assert find_contradictions(asked) == ()
    resolved = detect_moves(asked)
    (move,) = resolved.moves
    assert (move.departure.project_id, move.departure.resource_name) == departs
    assert (move.arrival.project_id, move.arrival.resource_name) == arrives
    assert move.arrival.domain_id == f"domain-of-{arrives[0]}"
    assert move.arrival.change.new_status is PENDING
    assert [entry.change.uuid for entry in resolved.single] == ["other1"]


def test_detecting_moves_refuses_a_contradictory_request() -> None:
    with pytest.raises(ValueError, match="abc123"):
        detect_moves(
            request(("a", RAM, "abc123", CONFIRMED, None), ("b", RAM, "abc123", CONFIRMED, None))
        )


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from([RAM, CORES]),
        st.sampled_from(["uuid-1", "uuid-2", "uuid-3"]),
        st.sampled_from([None, PLANNED, CONFIRMED]),
        st.sampled_from([None, PENDING, CONFIRMED, EXPIRED]),
    ),
    max_size=5,
)


def _messages(asked: ChangeRequest) -> list[str]:
    return sorted(one.message for one in find_contradictions(asked))


@given(ENTRIES)
def test_the_names_of_projects_do_not_change_what_is_found(entries: list[Entry]) -> None:
    renamed = {"a": "z", "b": "y", "c": "x"}
    asked = request(*entries)
    mirrored = request(*((renamed[p], r, u, old, new) for p, r, u, old, new in entries))

    assert _messages(asked) == _messages(mirrored)
    if find_contradictions(asked):
        return
    found, other = detect_moves(asked), detect_moves(mirrored)
    assert {
        (renamed[m.departure.project_id], renamed[m.arrival.project_id], m.arrival.change)
        for m in found.moves
    } == {(m.departure.project_id, m.arrival.project_id, m.arrival.change) for m in other.moves}
    assert len(found.single) + 2 * len(found.moves) == len(entries)


def totals(*rows: tuple[str, str, int], guaranteed: bool = False) -> ChangeRequest:
    grouped: dict[str, dict[str, ResourceChangeset]] = {}
    for project_id, resource, net in rows:
        before, after = max(0, -net), max(0, net)
        grouped.setdefault(project_id, {})[resource] = (
            ResourceChangeset(total_guaranteed_before=before, total_guaranteed_after=after)
            if guaranteed
            else ResourceChangeset(total_confirmed_before=before, total_confirmed_after=after)
        )
    return ChangeRequest(
        zone="az-a",
        is_dry_run=True,
        by_project={p: ProjectChanges(by_resource=r) for p, r in grouped.items()},
    )


@pytest.mark.parametrize("guaranteed", [False, True])
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([("a", RAM, 5)], ((RAM, 5),), id="+5"),
        pytest.param([("a", RAM, -5)], (), id="-5"),
        pytest.param([("a", RAM, 5), ("b", RAM, -5)], (), id="+5 -5"),
        pytest.param([("a", RAM, 5), ("b", RAM, -3)], ((RAM, 2),), id="+5 -3"),
        pytest.param([("a", RAM, 3), ("b", RAM, -5)], (), id="+3 -5"),
        pytest.param([("a", RAM, 4), ("a", CORES, 2)], ((CORES, 2), (RAM, 4)), id="two resources"),
        pytest.param(
            [("a", RAM, 5), ("b", RAM, -5), ("b", CORES, 3)], ((CORES, 3),), id="one of two"
        ),
        pytest.param([], (), id="empty"),
    ],
)
def test_net_demand_follows_the_table(
    rows: list[tuple[str, str, int]], guaranteed: bool, expected: tuple[tuple[str, int], ...]
) -> None:
    assert net_demand(totals(*rows, guaranteed=guaranteed)) == expected
