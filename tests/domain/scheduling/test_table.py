from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.columns import CAPACITY_COLUMNS
from scheduling.engine import SLOT_PIPELINE, passing_hosts, schedule_many
from scheduling.request import PlacementRequest
from scheduling.resources import GIB, ZERO, ResourceVector
from scheduling.table import HostTable
from scheduling.table_rows import HostRow

from .worlds import TRAITS, ask, gib, host_rows, requests, roomy, worlds


def row_back(table: HostTable, name: str) -> dict[str, object]:
    row = table.row_of[name]
    return {
        "name": table.names[row],
        "host_id": int(table.host_ids[row]),
        "zone": table.zones[table.zone[row]],
        "is_ready": bool(table.state_ok[row]),
        "hypervisor_type": table.hypervisor_types[table.hypervisor_type[row]],
        "traits": {
            trait
            for trait, bit in table.trait_bit.items()
            if int(table.traits[row, bit // 64]) >> (bit % 64) & 1
        },
        "allowed_projects": table.tenant_classes[table.tenant_class[row]],
        "figures": [int(getattr(table, column)[row]) for column in CAPACITY_COLUMNS],
    }


def expected_back(row: HostRow) -> dict[str, object]:
    kind = row.hypervisor_type.lower()
    vectors = (row.effective, row.allocated, row.committed, row.failover, row.in_flight)
    return {
        "name": row.name,
        "host_id": row.host_id,
        "zone": row.zone,
        "is_ready": row.is_ready,
        "hypervisor_type": "qemu" if kind == "kvm" else kind,
        "traits": set(row.traits),
        "allowed_projects": frozenset(row.allowed_projects),
        "figures": [part for vector in vectors for part in (vector.memory_bytes, vector.vcpus)],
    }


def dump(table: HostTable) -> list[dict[str, object]]:
    return [row_back(table, name) for name in table.names]


@given(rows=worlds)
def test_table_gives_back_every_host_it_was_built_from(rows: list[HostRow]) -> None:
    assert dump(HostTable.from_rows(rows)) == [expected_back(row) for row in rows]


@given(
    rows=worlds,
    changed=st.lists(host_rows, max_size=5, unique_by=lambda row: row.name),
    removed=st.frozensets(st.sampled_from([f"host-{number}" for number in range(9)])),
    request=requests,
)
def test_replaced_rows_equal_a_table_built_anew(
    rows: list[HostRow], changed: list[HostRow], removed: frozenset[str], request: PlacementRequest
) -> None:
    table = HostTable.from_rows(rows)
    passing_hosts(table, request)  # fills the mask cache that the new table may share
    before = dump(table)
    gone = removed - {row.name for row in changed}
    by_name = {row.name: row for row in rows if row.name not in gone}
    by_name.update({row.name: row for row in changed})
    updated = table.replace_rows(changed, removed=gone)
    anew = HostTable.from_rows(by_name.values())
    assert dump(updated) == dump(anew)
    assert dump(table) == before
    batch = [request, ask(2, 1), request]
    assert schedule_many(updated, batch, SLOT_PIPELINE) == schedule_many(anew, batch, SLOT_PIPELINE)


def test_capacity_change_copies_only_the_columns_that_differ() -> None:
    table = HostTable.from_rows([roomy("a"), roomy("b")])
    updated = table.replace_rows([roomy("b", allocated=gib(5, 0))])
    assert updated.alloc_memory_bytes.tolist() == [0, 5 * GIB]
    assert updated.alloc_vcpus is table.alloc_vcpus
    assert updated.traits is table.traits
    assert updated.mask_cache is table.mask_cache


def test_changed_zone_drops_the_cached_masks() -> None:
    table = HostTable.from_rows([roomy("a", zone="az-1"), roomy("b", zone="az-1")])
    assert passing_hosts(table, ask(zone="az-1")).tolist() == [True, True]
    updated = table.replace_rows([roomy("b", zone="az-2")])
    assert passing_hosts(updated, ask(zone="az-1")).tolist() == [True, False]


def test_replaced_columns_change_the_named_rows_alone() -> None:
    table = HostTable.from_rows([roomy("a"), roomy("b"), roomy("c")])
    updated = table.replace_columns([0, 2], {"committed_vcpus": [7, 9]})
    assert updated.free_vcpus().tolist() == [993, 1000, 991]
    assert table.free_vcpus().tolist() == [1000, 1000, 1000]
    assert updated.mask_cache is table.mask_cache


def test_replaced_columns_must_be_capacity_columns() -> None:
    table = HostTable.from_rows([roomy("a")])
    with pytest.raises(ValueError, match="not a capacity column: zone"):
        table.replace_columns([0], {"zone": [1]})


def test_free_is_effective_minus_allocation_minus_blocks_and_not_clamped() -> None:
    row = roomy(
        "h",
        effective=gib(10, 10),
        allocated=gib(4, 4),
        committed=gib(3, 3),
        failover=gib(2, 2),
        in_flight=gib(5, 2),
    )
    table = HostTable.from_rows([row])
    assert table.free_memory_bytes().tolist() == [-4 * GIB]
    assert table.free_vcpus().tolist() == [-1]


def test_traits_beyond_one_word_are_kept_apart() -> None:
    rows = [roomy(trait, traits=(trait,)) for trait in TRAITS]
    table = HostTable.from_rows(rows)
    assert table.traits.shape == (70, 2)
    for trait in TRAITS:
        passing = passing_hosts(table, ask(required_traits=frozenset({trait})))
        assert np.flatnonzero(passing).tolist() == [table.row_of[trait]]


def test_new_trait_in_a_second_word_widens_the_table() -> None:
    table = HostTable.from_rows([roomy("many", traits=TRAITS[:64]), roomy("none")])
    assert table.traits.shape == (2, 1)
    wider = table.replace_rows([roomy("none", traits=("NEW",))])
    assert wider.traits.shape == (2, 2)
    assert row_back(wider, "none")["traits"] == {"NEW"}
    assert row_back(wider, "many")["traits"] == set(TRAITS[:64])


def test_same_projects_in_another_order_are_one_tenant_class() -> None:
    rows = [roomy("a", allowed_projects=("p", "q")), roomy("b", allowed_projects=["q", "p", "p"])]
    assert HostTable.from_rows(rows).tenant_classes == (frozenset({"p", "q"}),)


@pytest.mark.parametrize("column", ["host_ids", "zone", "traits", *CAPACITY_COLUMNS])
def test_arrays_cannot_be_written(column: str) -> None:
    table = HostTable.from_rows([roomy("a")]).replace_rows([roomy("a", allocated=gib(1, 1))])
    with pytest.raises(ValueError, match="read-only"):
        getattr(table, column)[0] = 1


def test_host_name_may_occur_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        HostTable.from_rows([roomy("a"), replace(roomy("a"), zone="az-1")])
    with pytest.raises(ValueError, match="removed"):
        HostTable.from_rows([roomy("a")]).replace_rows([roomy("a")], removed=["a"])


def test_unknown_removed_host_is_ignored() -> None:
    table = HostTable.from_rows([roomy("a")])
    assert table.replace_rows([], removed=["x"]) is table
    assert table.replace_rows([], removed=["a"]).names == ()


def test_a_copy_is_an_empty_host_that_passes_and_fails_as_its_model() -> None:
    model = HostRow(
        name="h1",
        host_id=1,
        zone="az",
        traits=("CUSTOM_A",),
        effective=ResourceVector(memory_bytes=8, vcpus=4),
        allocated=ResourceVector(memory_bytes=3, vcpus=1),
        instances=("vm",),
    )
    table = HostTable.from_rows([model])
    wider = table.with_copies([0], names=["h2"], host_ids=[-1])
    expected = HostTable.from_rows(
        [model, replace(model, name="h2", host_id=-1, allocated=ZERO, instances=())]
    )
    for column in (*CAPACITY_COLUMNS, "host_ids", "name_hashes", "zone", "state_ok", "traits"):
        assert np.array_equal(getattr(wider, column), getattr(expected, column)), column
    assert wider.instance_index.lists(0, ("vm",))
    assert wider.instance_index.lists(1, ())
    assert len(table) == 1
    with pytest.raises(ValueError, match="exists"):
        wider.with_copies([0], names=["h1"], host_ids=[-2])
    with pytest.raises(ValueError, match="exists"):
        table.with_copies([0, 0], names=["h3", "h3"], host_ids=[-1, -2])
    assert len(table.with_copies([], names=[], host_ids=[])) == 1
