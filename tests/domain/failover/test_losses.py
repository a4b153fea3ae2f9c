"""Losses counted on columns say what a drill of every VM says (spec failover, 17.2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from failover.domain.drill import simulate
from failover.domain.drill_columns import drill_state_of
from failover.domain.losses import Loss, loss_of
from failover.domain.zone_columns import MemberColumns, SlotColumns, ZoneSnapshot
from tests.domain.failover.zones import GIB, zone_of

MOST = 3


@st.composite
def zones(draw: st.DrawFn, name: str = "az-a", foreign: tuple[str, ...] = ()) -> ZoneSnapshot:
    """Draw a zone with dead, full and foreign hosts, and slots of every kind.

    Args:
        name: Name of the zone, with which those of its hosts, VMs and slots begin.
        foreign: VMs of other zones, which may have slots here.
    """
    hosts = [f"{name}-h{number}" for number in range(draw(st.integers(1, 5)))]
    places = st.sampled_from([*hosts, ""])
    uuids = [f"{name}-v{number}" for number in range(draw(st.integers(0, 6)))]
    homes = {uuid: draw(places) for uuid in uuids} | dict.fromkeys(foreign, "")
    required = {uuid: draw(st.integers(0, 2)) for uuid in homes}
    sizes = {uuid: draw(st.sampled_from((4, 8))) for uuid in homes}
    zone = zone_of(hosts, homes, required=required, vm_gib=sizes)
    number = len(hosts)
    held = [draw(st.sampled_from((0, 0, 2000))) * GIB for _ in hosts]
    zone = replace(
        zone,
        zone=name,
        hosts=replace(
            zone.hosts,
            is_ready=np.array([draw(st.booleans()) or draw(st.booleans()) for _ in hosts]),
            failover_memory_bytes=np.array(held, dtype=np.int64),
            used_vcpus=np.array([draw(st.sampled_from((0, 0, 20_000))) for _ in hosts]),
        ),
        vms=replace(zone.vms, is_owed=np.array([draw(st.booleans()) for _ in homes], dtype=bool)),
    )
    slots = range(draw(st.integers(0, 6)))
    pairs = draw(
        st.lists(
            st.tuples(
                st.integers(0, max(0, len(slots) - 1)), st.integers(0, max(0, len(homes) - 1))
            ),
            max_size=12,
            unique=True,
        )
    )
    if not (slots and homes):
        pairs = []
    return replace(
        zone,
        slots=SlotColumns(
            ids=np.arange(len(slots)),
            names=tuple(f"{name}-r{one}" for one in slots),
            host=np.array([draw(st.integers(-1, number - 1)) for _ in slots], dtype=np.int32),
            memory_bytes=np.array(
                [draw(st.sampled_from((4, 8))) * GIB for _ in slots], dtype=np.int64
            ),
            vcpus=np.array([draw(st.sampled_from((2, 4))) for _ in slots], dtype=np.int64),
            is_usable=np.array([draw(st.booleans()) for _ in slots], dtype=np.bool_),
            is_consuming=np.zeros(len(slots), dtype=np.bool_),
        ),
        members=MemberColumns(
            ids=np.arange(len(pairs)),
            slot=np.array([slot for slot, _ in pairs], dtype=np.int32),
            vm=np.array([vm for _, vm in pairs], dtype=np.int32),
            joined_host=np.full(len(pairs), -1, dtype=np.int32),
            is_validated=np.zeros(len(pairs), dtype=np.bool_),
        ),
    )


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
