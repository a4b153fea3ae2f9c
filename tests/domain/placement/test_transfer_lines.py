from __future__ import annotations

from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.domain.capacity import InventoryAmounts
from placement.domain.transfer import ConsumerRecord, Contents, ProviderRecord
from placement.domain.transfer_lines import (
    UnreadableExportError,
    contents_of_lines,
    export_lines,
)

NAMES = st.text(min_size=1, max_size=8)
AMOUNTS = st.integers(1, 2**31 - 1)
INVENTORIES = st.builds(
    InventoryAmounts,
    total=AMOUNTS,
    reserved=st.integers(0, 2**31 - 1),
    allocation_ratio=st.floats(0, 3e38),
)


@st.composite
def contents(draw: st.DrawFn) -> Contents:
    uuids = draw(st.lists(st.uuids().map(str), unique=True, max_size=6))
    providers: dict[str, ProviderRecord] = {}
    for uuid in uuids:
        parent = draw(st.sampled_from(["", *providers]))
        providers[uuid] = ProviderRecord(
            uuid=uuid,
            name=draw(NAMES),
            parent=parent,
            generation=draw(AMOUNTS),
            inventories=draw(st.dictionaries(NAMES, INVENTORIES, max_size=2)),
            traits=draw(st.frozensets(NAMES, max_size=3)),
            aggregates=draw(st.frozensets(NAMES, max_size=2)),
        )
    held = st.dictionaries(NAMES, st.dictionaries(NAMES, AMOUNTS, min_size=1, max_size=2))
    consumers = {
        uuid: ConsumerRecord(
            uuid=uuid,
            project=draw(NAMES),
            user=draw(NAMES),
            type_name=draw(st.sampled_from(["", "INSTANCE"])),
            generation=draw(AMOUNTS),
            allocations=draw(held),
        )
        for uuid in draw(st.lists(st.uuids().map(str), unique=True, max_size=3))
    }
    return Contents(
        classes=draw(st.frozensets(NAMES, max_size=3)),
        traits=draw(st.frozensets(NAMES, max_size=3)),
        providers=providers,
        consumers=consumers,
    )


@given(contents())
def test_what_is_written_is_read_back(stored: Contents) -> None:
    lines = list(export_lines(stored))
    assert contents_of_lines(lines) == stored
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    again = replace(stored, providers=dict(reversed(list(stored.providers.items()))))
    assert list(export_lines(again)) == lines


@given(contents())
def test_parents_come_before_their_children(stored: Contents) -> None:
    seen = {""}
    for line in export_lines(stored):
        provider = orjson.loads(line).get("provider")
        if provider:
            assert provider["parent"] in seen
            seen.add(provider["uuid"])
    assert seen == {"", *stored.providers}


HEAD = b'{"format": "headroom-placement", "version": 1}'


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        pytest.param([], "the file is empty", id="nothing"),
        pytest.param([b'{"class": "VCPU"}'], "line 1", id="no head"),
        pytest.param([b'{"format": "headroom-placement", "version": 2}'], "line 1", id="newer"),
        pytest.param([HEAD, b'{"class": "VCPU"'], "line 2", id="cut off"),
        pytest.param([HEAD, b'{"class": "VCPU"}', b"[]"], "line 3", id="no object"),
        pytest.param([HEAD, b'{"provider": {"uuid": "u"}}'], "line 2", id="a field is missing"),
        pytest.param([HEAD, b'{"consumer": {"uuid": "u", "x": 1}}'], "line 2", id="unknown field"),
        pytest.param([HEAD, b'{"other": 1}'], "line 2", id="unknown kind"),
        pytest.param([HEAD, b"\xff"], "line 2", id="no text"),
    ],
)
def test_damaged_files_are_refused_with_the_line(lines: list[bytes], told: str) -> None:
    with pytest.raises(UnreadableExportError, match=told):
        contents_of_lines(lines)
