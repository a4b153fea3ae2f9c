from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.models import SchedulingDecision
from capacity.nova import decisions
from capacity.nova.run_records import FinishedRun, keep_run
from capacity.nova.stored_decisions import Fate, decode_decision
from scheduling.engine import SLOT_PIPELINE
from scheduling.explain import explain_host
from scheduling.intents import CallOptions
from scheduling.record import record_run
from scheduling.table import HostTable
from scheduling.table_rows import HostRow
from tests.domain.scheduling.worlds import ask, host_rows
from tests.examples import few

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _write_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write inside the test's transaction, whose commit never comes."""
    monkeypatch.setattr(decisions, "_after_commit", lambda write: write())


@few(20)
@given(st.lists(host_rows, max_size=9, unique_by=lambda row: row.name), st.integers(1, 12))
def test_a_stored_run_tells_of_each_host_what_explaining_it_tells(
    rows: list[HostRow], memory_gib: int
) -> None:
    table = HostTable.from_rows(rows)
    request = ask(memory_gib, zone="az-1", project_id="p1", required_traits=frozenset({"T0"}))
    record = record_run(table, request, SLOT_PIPELINE, CallOptions())
    keep_run(
        FinishedRun(
            record=record,
            host_names=record.ordered_hosts,
            message="",
            outcome_class="",
            flavor_group="",
            request_id="",
            duration_microseconds=1,
        )
    )
    row = SchedulingDecision.objects.select_related("listing").latest("id")
    decoded = decode_decision(row)

    assert row.message == record.text()
    if not rows:
        assert decoded is None
        return
    assert decoded is not None
    passed = {Fate.PASSED, Fate.CHOSEN}
    left = {name for name in decoded.names if decoded.fate_of(name).fate in passed}
    assert left == set(record.ordered_hosts)
    for host in rows:
        fate = decoded.fate_of(host.name)
        explained = explain_host(table, request, SLOT_PIPELINE, host.name)
        assert fate.step == (explained.removed_by or "")
        if explained.rank is None:
            assert fate.fate is Fate.REMOVED
        else:
            assert fate.fate is (Fate.CHOSEN if explained.rank == 1 else Fate.PASSED)
            assert fate.position == explained.rank
            assert fate.score == pytest.approx(explained.score, abs=1e-5)
