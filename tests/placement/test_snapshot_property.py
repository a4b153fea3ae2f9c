"""The snapshot of a process against one built anew (spec placement, 9.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, transaction
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from placement.selectors.snapshot import current_snapshot
from placement.services.standards import sync_standards
from tests.capacity.host_table_moves import Writer
from tests.domain.placement.facts import facts
from tests.placement.provider_moves import MOVES, Move, seed
from tests.process_tables import load_snapshot, reset_snapshot

pytestmark = pytest.mark.django_db(transaction=True)

WRITERS = 3


@pytest.fixture
def writers(settings: Any) -> Iterator[list[Writer]]:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"lock_timeout_seconds": 0.02})
    opened = [Writer() for _ in range(WRITERS)]
    yield opened
    for writer in opened:
        writer.close()


def empty_tables() -> None:
    tables = [model._meta.db_table for model in apps.get_app_config("placement").get_models()]
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(tables)} CASCADE")
    sync_standards()


def write_and_read(number: int, *, is_kept: bool) -> None:
    """Read in the middle of the reader's own transaction, which sees what others do not."""
    with transaction.atomic():
        MOVES[number % len(MOVES)](number // len(MOVES))
        assert facts(current_snapshot()) == facts(load_snapshot())
        if not is_kept:
            transaction.set_rollback(True)


def take(step: Move | str, writer: Writer, number: int, *, is_kept: bool) -> None:
    if step == "refresh":
        current_snapshot()
    elif step == "write and read":
        write_and_read(number, is_kept=is_kept)
    elif step == "commit":
        writer.commit()
    elif step == "roll back":
        writer.roll_back()
    elif callable(step):
        writer.write(step, number)


numbers = st.integers(0, 2**12)
writes = st.tuples(st.sampled_from(MOVES), st.integers(0, WRITERS - 1), numbers)
steps = st.one_of(
    *(writes, writes, writes),
    *(st.tuples(st.just("commit"), st.integers(0, WRITERS - 1), st.just(0)),) * 2,
    st.tuples(st.just("roll back"), st.integers(0, WRITERS - 1), st.just(0)),
    st.tuples(st.just("refresh"), st.just(0), st.just(0)),
    st.tuples(st.just("write and read"), st.integers(0, 1), numbers),
)


@pytest.mark.sql("placement_changes")
@settings(max_examples=15, phases=(Phase.explicit, Phase.generate))  # shrinking takes minutes
@given(script=st.lists(steps, min_size=60, max_size=100))
def test_a_snapshot_brought_forward_is_the_one_built_anew_whatever_overlapping_transactions_do(
    writers: list[Writer], script: list[tuple[Move | str, int, int]]
) -> None:
    for writer in writers:
        writer.roll_back()
    empty_tables()
    reset_snapshot()
    seed()
    current_snapshot()
    for step, who, number in script:
        take(step, writers[who], number, is_kept=bool(who))
    assert facts(current_snapshot()) == facts(load_snapshot())
    for writer in writers:
        writer.commit()
        assert facts(current_snapshot()) == facts(load_snapshot())
