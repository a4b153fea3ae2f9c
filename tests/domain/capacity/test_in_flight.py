from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.ledger.in_flight_end import (
    INTENTS,
    InFlightPlacement,
    InFlightState,
    VMSighting,
    has_failed,
    holds_in_flight,
    in_flight_lifetime,
    in_flight_state,
    intent_label,
    is_gone,
)
from scheduling.resources import GIB, ResourceVector

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SMALL = ResourceVector(memory_bytes=4 * GIB, vcpus=2)
LARGE = ResourceVector(memory_bytes=8 * GIB, vcpus=4)


def placement(intent: str, hosts: str, source: str = "") -> InFlightPlacement:
    return InFlightPlacement(
        intent=intent, hosts=frozenset(hosts), resources=LARGE, source_host=source
    )


def seen(hosts: str, resources: ResourceVector = LARGE) -> VMSighting:
    return VMSighting(hosts=frozenset(hosts), resources=resources)


@pytest.mark.parametrize(
    ("placed", "sighting", "state"),
    [
        pytest.param(placement("create", "ABC"), seen("B"), "Landed", id="create ABC on B"),
        pytest.param(placement("create", "AB"), seen("D"), "Landed", id="create AB on D"),
        pytest.param(
            placement("live_migration", "AB", "S"), seen("S"), "InstanceOnSource", id="live on S"
        ),
        pytest.param(
            placement("live_migration", "AB", "S"), seen("AS"), "Landed", id="live on A and S"
        ),
        pytest.param(
            placement("resize", "SA", "S"), seen("S", SMALL), "VMSizeMismatch", id="resize old size"
        ),
        pytest.param(placement("resize", "SA", "S"), seen("S"), "Landed", id="resize new size"),
    ],
)
def test_landing_table_of_section_12_3(
    placed: InFlightPlacement, sighting: VMSighting, state: str
) -> None:
    assert in_flight_state(placed, sighting) == InFlightState(state)


@pytest.mark.parametrize(
    ("placed", "sighting", "state"),
    [
        pytest.param(placement("create", "A"), None, "InstanceNotFound", id="vm nowhere"),
        pytest.param(placement("create", "A"), seen(""), "InstanceNotFound", id="vm on no host"),
        pytest.param(placement("create", "A"), seen("A"), "Landed", id="vm on target"),
        pytest.param(placement("create", "A"), seen("B"), "Landed", id="vm on another host"),
        pytest.param(
            placement("resize", "A", "S"), seen("A", SMALL), "VMSizeMismatch", id="resize smaller"
        ),
        pytest.param(placement("resize", "A", "S"), seen("A"), "Landed", id="resize equal"),
        pytest.param(
            placement("resize", "A", "S"), seen("B", SMALL), "Landed", id="resize, another host"
        ),
        pytest.param(
            placement("resize", "A", "S"), seen("S", SMALL), "InstanceOnSource", id="resize begun"
        ),
        pytest.param(
            placement("rebuild", "A", "A"), seen("A", SMALL), "VMSizeMismatch", id="rebuild smaller"
        ),
        pytest.param(placement("rebuild", "A", "A"), seen("A"), "Landed", id="rebuild equal"),
        pytest.param(
            placement("live_migration", "A", "S"), seen("A", SMALL), "Landed", id="live, any size"
        ),
        pytest.param(
            placement("evacuate", "SA", "S"), seen("S"), "InstanceOnSource", id="evacuation begun"
        ),
    ],
)
def test_reconcile_table_of_section_12_2(
    placed: InFlightPlacement, sighting: VMSighting | None, state: str
) -> None:
    assert in_flight_state(placed, sighting) == InFlightState(state)


@given(
    intent=st.sampled_from(INTENTS),
    hosts=st.frozensets(st.sampled_from("ABCS"), min_size=1),
    source=st.sampled_from(["", "S", "A"]),
    listed=st.frozensets(st.sampled_from("ABCDS")),
    size=st.sampled_from([SMALL, LARGE]),
)
def test_landed_equals_the_rule_read_word_by_word(
    intent: str,
    hosts: frozenset[str],
    source: str,
    listed: frozenset[str],
    size: ResourceVector,
) -> None:
    placed = InFlightPlacement(intent=intent, hosts=hosts, resources=LARGE, source_host=source)
    sized = intent in {"rebuild", "resize"}
    landed = False
    for host in listed:
        if host in hosts and sized:
            landed = landed or size == LARGE
        elif host != source:
            landed = True
    state = in_flight_state(placed, VMSighting(hosts=listed, resources=size))
    assert (state is InFlightState.LANDED) == landed


@pytest.mark.parametrize(
    ("intent", "seconds"),
    [
        ("create", 900),
        ("evacuate", 900),
        ("rebuild", 900),
        ("resize", 3600),
        ("live_migration", 3600),
    ],
)
def test_a_move_that_copies_the_vm_may_take_longer(intent: str, seconds: int) -> None:
    lifetime = in_flight_lifetime(intent, ttl_seconds=900, slow_ttl_seconds=3600)
    assert lifetime == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("intent", "holds"),
    [
        ("create", True),
        ("rebuild", True),
        ("resize", True),
        ("live_migration", True),
        ("evacuate", True),
        ("unknown", True),
        ("reserve_for_failover", False),
        ("reuse_failover_reservation", False),
        ("reserve_for_committed_resource", False),
        ("capacity_probe", False),
    ],
)
def test_only_placements_that_bring_a_vm_hold_room(intent: str, holds: bool) -> None:
    assert holds_in_flight(intent) is holds


def test_an_intent_that_nobody_knows_is_counted_as_unknown() -> None:
    assert intent_label("teleport") == "unknown"
    assert intent_label("resize") == "resize"


@pytest.mark.parametrize(
    ("status", "vm_state", "updated", "failed"),
    [
        pytest.param("ERROR", "error", None, True, id="error"),
        pytest.param("error", "", 5, True, id="error since"),
        pytest.param("ERROR", "error", -5, False, id="in error before, as when evacuated"),
        pytest.param("DELETED", "deleted", None, True, id="deleted"),
        pytest.param("ACTIVE", "soft-delete", None, True, id="soft deleted by state"),
        pytest.param("SOFT_DELETED", "", None, True, id="soft deleted by status"),
        pytest.param("ACTIVE", "active", None, False, id="active"),
        pytest.param("BUILD", "building", None, False, id="building"),
    ],
)
def test_a_vm_in_error_or_deleted_since_its_placement_has_failed(
    status: str, vm_state: str, updated: int | None, failed: bool
) -> None:
    updated_at = None if updated is None else NOW + timedelta(seconds=updated)
    assert (
        has_failed(status=status, vm_state=vm_state, updated_at=updated_at, placed_at=NOW) is failed
    )


@pytest.mark.parametrize(
    ("source", "is_listed", "age_seconds", "gone"),
    [
        pytest.param("S", False, 300, True, id="moving VM vanished"),
        pytest.param("S", False, 299, False, id="just now"),
        pytest.param("S", True, 999, False, id="listed"),
        pytest.param("", False, 999, False, id="new VM is not listed yet"),
    ],
)
def test_a_vm_that_existed_and_is_listed_no_more_is_gone(
    source: str, is_listed: bool, age_seconds: int, gone: bool
) -> None:
    answer = is_gone(
        placement("resize", "A", source),
        is_listed=is_listed,
        placed_at=NOW - timedelta(seconds=age_seconds),
        now=NOW,
        gone_seconds=300,
    )
    assert answer is gone
