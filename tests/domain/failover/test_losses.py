"""Losses counted on columns say what a drill of every VM says (spec failover, 17.2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failover.domain.drill import simulate
from failover.domain.drill_columns import drill_state_of
from failover.domain.losses import Loss, loss_of
from failover.domain.zone_columns import ZoneSnapshot
from tests.domain.failover.drill_worlds import zones
from tests.domain.failover.zones import zone_of

MOST = 3


def drilled(snapshots: list[ZoneSnapshot], failing: list[str]) -> Loss:
    """Return what a drill of every VM says: the slow way."""
    state = drill_state_of(snapshots, failing=failing)
    names = [name for name in failing if name in state.hosts]
    return Loss.of(simulate(state, names), most=MOST)


@given(data=st.data())
def test_a_loss_is_what_a_drill_says(data: st.DataObject) -> None:
    zone = data.draw(zones())
    failing = data.draw(st.lists(st.sampled_from([*zone.hosts.names, "nowhere"]), unique=True))
    assert loss_of([zone], failing, most=MOST) == drilled([zone], failing)


@given(data=st.data())
def test_a_loss_in_two_zones_is_what_a_drill_says(data: st.DataObject) -> None:
    here = data.draw(zones())
    shared = here.vms.uuids if data.draw(st.booleans()) else ()
    there = data.draw(zones("az-b", shared))
    names = [*here.hosts.names, *there.hosts.names]
    failing = data.draw(st.lists(st.sampled_from(names), unique=True))
    assert loss_of([here, there], failing, most=MOST) == drilled([here, there], failing)


@pytest.mark.parametrize("most", [0, 1, 100])
def test_a_whole_zone_loses_all_that_is_owed(most: int) -> None:
    zone = zone_of(["h1", "h2"], {f"v{number}": "h1" for number in range(9)}, required=1)
    loss = loss_of([zone], ["h2", "h1"], most=most)
    assert (loss.saved, loss.lost, len(loss.shown)) == (0, 9, min(9, most))
    assert [row.vm for row in loss.shown] == [f"v{number}" for number in range(min(9, most))]
    assert (loss.failed_hosts, loss.taken) == (("h1", "h2"), {})
