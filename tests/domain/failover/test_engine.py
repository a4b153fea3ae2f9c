"""The bit-set engine against the plain rules (spec failover, 17.5, 18.5)."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from failover.domain.bits import bits_as_rows
from failover.domain.engine import EligibilityEngine
from failover.domain.slots import FailoverSlot, SlotUser
from hosts.domain.vm import VM
from tests.domain.failover.oracle import five_rules_hold, may_join

HOSTS = 7

steps = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "join", "slot", "vm"]),
        st.integers(0, 1 << 16),
        st.integers(0, 1 << 16),
    ),
    max_size=40,
)


def plain(engine: EligibilityEngine) -> list[FailoverSlot]:
    return [
        FailoverSlot(
            name=str(slot),
            host=str(engine.slot_host[slot]),
            users=tuple(
                SlotUser(vm_uuid=str(vm), host=str(engine.vm_host[vm]))
                for vm in engine.slot_users[slot]
            ),
        )
        for slot in bits_as_rows(engine.alive).tolist()
    ]


def by_oracle(engine: EligibilityEngine, vm: int) -> set[int]:
    slots = plain(engine)
    one = VM(vm_uuid=str(vm), host=str(engine.vm_host[vm]))
    return {int(slot.name) for slot in slots if may_join(one, slot, slots)}


def new_hosts_by_oracle(engine: EligibilityEngine, vm: int) -> set[int]:
    slots = plain(engine)
    one = VM(vm_uuid=str(vm), host=str(engine.vm_host[vm]))
    found = set()
    for host in range(HOSTS):
        fresh = FailoverSlot(name="new", host=str(host))
        if may_join(one, fresh, [*slots, fresh]):
            found.add(host)
    return found


def walked(moves: list[tuple[str, int, int]]) -> EligibilityEngine:
    engine = EligibilityEngine(HOSTS, [0, 1, 2])
    for slot_host in (3, 4):
        engine.add_slot(slot_host)
    for kind, one, other in moves:
        vm = one % len(engine.vm_host)
        if kind == "vm":
            engine.vm_host.append(one % HOSTS)
            engine.vm_slots.append([])
        elif kind == "slot":
            engine.add_slot(one % HOSTS)
        elif kind == "join":
            eligible = bits_as_rows(engine.eligible_slots(vm)).tolist()
            if eligible:
                engine.join(vm, eligible[other % len(eligible)])
    return engine


@settings(max_examples=300, deadline=None)
@given(steps)
def test_engine_answers_as_the_rules_do_after_any_sequence(
    moves: list[tuple[str, int, int]],
) -> None:
    engine = walked(moves)

    assert five_rules_hold(plain(engine))
    for vm in range(len(engine.vm_host)):
        assert set(bits_as_rows(engine.eligible_slots(vm)).tolist()) == by_oracle(engine, vm)
        closed = set(bits_as_rows(engine.closed_hosts(vm)).tolist())
        assert set(range(HOSTS)) - closed == new_hosts_by_oracle(engine, vm)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_engine_built_at_once_equals_the_one_that_grew(moves: list[tuple[str, int, int]]) -> None:
    grown = walked(moves)
    kept = bits_as_rows(grown.alive).tolist()
    members = [(kept.index(slot), vm) for slot in kept for vm in grown.slot_users[slot]]
    built = EligibilityEngine.from_columns(
        HOSTS,
        grown.vm_host,
        np.array([grown.slot_host[slot] for slot in kept], dtype=np.int64),
        np.array([slot for slot, _ in members], dtype=np.int64),
        np.array([vm for _, vm in members], dtype=np.int64),
    )

    for vm in range(len(grown.vm_host)):
        expected = {kept.index(slot) for slot in bits_as_rows(grown.eligible_slots(vm)).tolist()}
        assert set(bits_as_rows(built.eligible_slots(vm)).tolist()) == expected
        assert built.closed_hosts(vm) == grown.closed_hosts(vm)
    rows = np.arange(len(kept))
    blocked = grown.block_counts(np.array(kept, dtype=np.int64))
    assert built.block_counts(rows).tolist() == blocked.tolist()
