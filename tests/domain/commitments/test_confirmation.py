from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.changeset import (
    ChangeRequest,
    CommitmentChange,
    ProjectChanges,
    ResourceChangeset,
)
from commitments.domain.confirmation import requires_confirmation
from commitments.domain.statuses import CommitmentStatus

PLANNED, PENDING, GUARANTEED, CONFIRMED, SUPERSEDED, EXPIRED = CommitmentStatus
LIVE = (PLANNED, PENDING, GUARANTEED, CONFIRMED)
END = datetime(2027, 1, 1, tzinfo=UTC)
STATUSES = st.sampled_from([None, *CommitmentStatus])

Step = tuple[CommitmentStatus | None, CommitmentStatus | None, int]


def moving_totals(*steps: Step, extends: bool = False) -> ResourceChangeset:
    before: Counter[CommitmentStatus | None] = Counter({CONFIRMED: 100, GUARANTEED: 100})
    after = Counter(before)
    for old, new, amount in steps:
        after[old] -= amount
        after[new] += amount
    return ResourceChangeset(
        total_confirmed_before=before[CONFIRMED],
        total_confirmed_after=after[CONFIRMED],
        total_guaranteed_before=before[GUARANTEED],
        total_guaranteed_after=after[GUARANTEED],
        commitments=tuple(
            CommitmentChange(
                uuid=f"uuid-{position}",
                old_status=old,
                new_status=new,
                amount_units=amount,
                old_expires_at=END if extends else None,
            )
            for position, (old, new, amount) in enumerate(steps)
        ),
    )


def request(*changesets: ResourceChangeset) -> ChangeRequest:
    return ChangeRequest(
        zone="az-a",
        by_project={
            f"project-{position}": ProjectChanges(by_resource={"hw_version_x_ram": changeset})
            for position, changeset in enumerate(changesets)
        },
    )


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        *[pytest.param([(None, s, 5)], False, id=f"new {s}") for s in (PLANNED, PENDING)],
        *[pytest.param([(None, s, 5)], True, id=f"new {s}") for s in (CONFIRMED, GUARANTEED)],
        pytest.param([(PLANNED, PENDING, 5)], False, id="planned to pending"),
        pytest.param([(PLANNED, CONFIRMED, 5)], True, id="planned to confirmed"),
        pytest.param([(PENDING, CONFIRMED, 5)], True, id="pending to confirmed"),
        pytest.param([(GUARANTEED, CONFIRMED, 5)], False, id="guaranteed to confirmed"),
        *[
            pytest.param([(s, SUPERSEDED, 10), (None, s, 3), (None, s, 7)], False, id=f"split {s}")
            for s in LIVE
        ],
        pytest.param(
            [(CONFIRMED, SUPERSEDED, 4), (CONFIRMED, SUPERSEDED, 6), (None, CONFIRMED, 10)],
            False,
            id="merge",
        ),
        *[pytest.param([(s, EXPIRED, 5)], False, id=f"{s} expires") for s in LIVE],
        *[pytest.param([(s, None, 5)], False, id=f"{s} deleted") for s in LIVE],
        pytest.param([(CONFIRMED, SUPERSEDED, 5)], True, id="superseded alone"),
        pytest.param([(GUARANTEED, SUPERSEDED, 5)], True, id="guaranteed superseded alone"),
    ],
)
def test_a_single_changeset_follows_the_table(steps: list[Step], expected: bool) -> None:
    assert requires_confirmation(request(moving_totals(*steps))) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [(PLANNED, False), (PENDING, False), (GUARANTEED, True), (CONFIRMED, True)],
)
def test_moving_or_converting_asks_when_the_gain_is_not_explained(
    status: CommitmentStatus, expected: bool
) -> None:
    gone, there = moving_totals((status, None, 5)), moving_totals((None, status, 5))

    assert requires_confirmation(request(gone, there)) == expected
    conversion = ChangeRequest(
        zone="az-a",
        by_project={"p": ProjectChanges(by_resource={"a": gone, "b": there})},
    )
    assert requires_confirmation(conversion) == expected


WORKFLOWS: dict[str, tuple[dict[str, list[Step]], bool]] = {
    "create without confirm_by": ({"a": [(None, CONFIRMED, 4)]}, True),
    "create, consuming all of another": (
        {"a": [(None, CONFIRMED, 4)], "b": [(CONFIRMED, SUPERSEDED, 4)]},
        True,
    ),
    "create, consuming a part of another": (
        {"a": [(None, CONFIRMED, 4)], "b": [(None, CONFIRMED, 3), (CONFIRMED, SUPERSEDED, 7)]},
        True,
    ),
    "create with confirm_by": ({"a": [(None, PLANNED, 4)]}, False),
    "v2 create with status pending": ({"a": [(None, PENDING, 4)]}, False),
    "confirm a pending one": ({"a": [(PENDING, CONFIRMED, 4)]}, True),
    "confirm by consumption": (
        {"a": [(PENDING, CONFIRMED, 2)], "b": [(None, CONFIRMED, 3), (CONFIRMED, SUPERSEDED, 5)]},
        True,
    ),
    "merge": (
        {"a": [(None, CONFIRMED, 10), (CONFIRMED, SUPERSEDED, 4), (CONFIRMED, SUPERSEDED, 6)]},
        False,
    ),
    "renew": ({"a": [(None, PLANNED, 4)]}, False),
    "transfer of a part starts": (
        {"a": [(CONFIRMED, SUPERSEDED, 10), (None, CONFIRMED, 3), (None, CONFIRMED, 7)]},
        False,
    ),
    "transfer of a confirmed one": (
        {"a": [(CONFIRMED, None, 4)], "b": [(None, CONFIRMED, 4)]},
        True,
    ),
    "transfer of a planned one": ({"a": [(PLANNED, None, 4)], "b": [(None, PLANNED, 4)]}, False),
    "convert a part": (
        {"a": [(CONFIRMED, SUPERSEDED, 7), (None, CONFIRMED, 5)], "b": [(None, CONFIRMED, 2)]},
        True,
    ),
    "delete a confirmed one": ({"a": [(CONFIRMED, None, 4)]}, False),
}


@pytest.mark.parametrize(("changesets", "expected"), WORKFLOWS.values(), ids=list(WORKFLOWS))
def test_workflows_of_limes_ask_as_its_table_says(
    changesets: dict[str, list[Step]], expected: bool
) -> None:
    asked = request(*(moving_totals(*steps) for steps in changesets.values()))
    assert requires_confirmation(asked) == expected


def test_a_resize_asks() -> None:
    resize = ResourceChangeset(
        total_confirmed_before=1,
        total_confirmed_after=2,
        commitments=(
            CommitmentChange(
                uuid="abc123", old_status=CONFIRMED, new_status=CONFIRMED, amount_units=2
            ),
        ),
    )

    assert requires_confirmation(request(resize))


@pytest.mark.parametrize(
    ("status", "expected"),
    [(PLANNED, False), (PENDING, False), (GUARANTEED, True), (CONFIRMED, True)],
)
def test_a_changed_end_asks_when_the_commitment_is_promised(
    status: CommitmentStatus, expected: bool
) -> None:
    changeset = moving_totals((status, status, 5), extends=True)

    assert changeset.net_units == 0
    assert requires_confirmation(request(changeset)) == expected


def test_an_empty_request_does_not_ask() -> None:
    assert not requires_confirmation(request())
    assert not requires_confirmation(request(ResourceChangeset()))


def literal_rule(by_project: Mapping[str, ProjectChanges]) -> bool:  # noqa: C901 - the rule as written
    for project in by_project.values():
        for rc in project.by_resource.values():
            for c in rc.commitments:
                if c.new_status in (CONFIRMED, GUARANTEED) and c.old_expires_at:
                    return True
            if (
                rc.total_confirmed_before == rc.total_confirmed_after
                and rc.total_guaranteed_before == rc.total_guaranteed_after
            ):
                continue
            cr = gr = ci = 0
            for c in rc.commitments:
                gone = c.new_status is None or c.new_status == EXPIRED
                if c.old_status == CONFIRMED and gone:
                    cr += c.amount_units
                elif c.old_status == GUARANTEED and gone:
                    gr += c.amount_units
                elif c.old_status == GUARANTEED and c.new_status == CONFIRMED:
                    gr += c.amount_units
                    ci += c.amount_units
            if rc.total_confirmed_before + ci != rc.total_confirmed_after + cr:
                return True
            if rc.total_guaranteed_before != rc.total_guaranteed_after + gr:
                return True
    return False


@given(
    st.lists(
        st.builds(
            ResourceChangeset,
            total_confirmed_before=st.integers(0, 3),
            total_confirmed_after=st.integers(0, 3),
            total_guaranteed_before=st.integers(0, 3),
            total_guaranteed_after=st.integers(0, 3),
            commitments=st.lists(
                st.builds(
                    CommitmentChange,
                    uuid=st.just("abc123"),
                    old_status=STATUSES,
                    new_status=STATUSES,
                    amount_units=st.integers(0, 3),
                    old_expires_at=st.sampled_from([None, None, END]),
                ),
                max_size=3,
            ).map(tuple),
        ),
        max_size=3,
    )
)
def test_the_predicate_equals_the_rule_as_written(changesets: list[ResourceChangeset]) -> None:
    asked = request(*changesets)

    assert requires_confirmation(asked) == literal_rule(asked.by_project)
