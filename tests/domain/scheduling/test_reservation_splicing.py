from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scheduling.reservations import ReservationIndex
from scheduling.table_rows import ReservationRow
from tests.domain.scheduling.worlds import gib

KINDS = ("committed", "failover", "in_flight")
GROUPINGS = (
    "by_id",
    "committed",
    "failover_of_vm",
    "failover_on",
    "failover_of_size",
    "in_flight_of_vm",
    "in_flight",
    "slots_expecting",
)


def made(number: int, kind: str) -> ReservationRow:
    return ReservationRow(
        reservation_id=number,
        kind=kind,
        project_id=f"p{number % 5}",
        resource_group="g",
        full=gib(number % 7, 1),
        vm_uuids=(f"vm-{number % 50}",),
        expected_vms=((f"vm-{number % 40}", gib(1, 1)),) if number % 3 else (),
    )


@pytest.mark.parametrize("seed", range(20))
def test_few_changes_in_many_reservations_equal_a_new_index(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - a reproducible load, nothing secret
    rows = {number: made(number, rng.choice(KINDS)) for number in rng.sample(range(2000), 1000)}
    index = ReservationIndex.from_rows(rows.values())
    for _ in range(5):
        removed = rng.sample(sorted(rows), 2)
        changed = [
            replace(rows[number], kind=rng.choice(KINDS), project_id="new")
            for number in rng.sample(sorted(set(rows) - set(removed)), 2)
        ]
        new_key = rng.choice(sorted(set(range(2000)) - set(rows)))
        changed.append(made(new_key, rng.choice(KINDS)))
        index = index.replace_rows(changed, removed=removed)
        for number in removed:
            del rows[number]
        rows |= {row.reservation_id: row for row in changed}
    fresh = ReservationIndex.from_rows(rows.values())
    for name in GROUPINGS:
        assert getattr(index, name) == getattr(fresh, name), name
    assert index.failover == fresh.failover
    assert index.all_committed == fresh.all_committed
