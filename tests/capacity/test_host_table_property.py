from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import LazySettings
from django.db import DatabaseError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from capacity.host_table import current_host_table, verify_host_table
from hosts.models import Host
from journal.errors import HeadroomError
from tests.capacity.host_table_moves import (
    AGGREGATES,
    MOVES,
    Move,
    Writer,
    add_aggregate,
    add_host,
    empty_tables,
)
from tests.capacity.pipeline_moves import (
    ALL_MOVES,
    PIPELINE_MOVES,
    assert_as_if_loaded_anew,
    learn,
    save,
)
from tests.examples import few
from tests.factories import make_commitment
from tests.process_tables import reset_host_table

pytestmark = pytest.mark.django_db(transaction=True)

WRITERS = 3
START = 3


@pytest.fixture
def writers(settings: LazySettings) -> Iterator[list[Writer]]:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"lock_timeout_seconds": 0.02})
    opened = [Writer() for _ in range(WRITERS)]
    yield opened
    for writer in opened:
        writer.close()


numbers = st.integers(0, 2**12)
steps = st.one_of(
    st.tuples(st.sampled_from(MOVES), st.integers(0, WRITERS - 1), numbers),
    st.tuples(st.sampled_from(MOVES), st.integers(0, WRITERS - 1), numbers),
    st.tuples(st.sampled_from(MOVES), st.integers(0, WRITERS - 1), numbers),
    st.tuples(st.sampled_from(PIPELINE_MOVES), st.integers(0, WRITERS - 1), numbers),
    st.tuples(st.sampled_from(PIPELINE_MOVES), st.integers(0, WRITERS - 1), numbers),
    st.tuples(st.just("commit"), st.integers(0, WRITERS - 1), st.just(0)),
    st.tuples(st.just("roll back"), st.integers(0, WRITERS - 1), st.just(0)),
    st.tuples(st.just("refresh"), st.just(0), st.just(0)),
    st.tuples(st.just("compare"), st.just(0), st.just(0)),
    st.tuples(st.just("verify"), st.just(0), st.just(0)),
    st.tuples(st.just("write and read"), st.integers(0, 1), numbers),
)


def write_and_read(number: int, *, is_kept: bool) -> None:
    """Read in the middle of the reader's own transaction, which sees what others do not."""
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '20ms'")
            ALL_MOVES[number % len(ALL_MOVES)](number // len(ALL_MOVES))
            assert_as_if_loaded_anew()
            if not is_kept:
                transaction.set_rollback(True)
    except (DatabaseError, HeadroomError):
        pass


def take(step: Move | str, writer: Writer, number: int, *, is_kept: bool) -> None:
    if step == "refresh":
        current_host_table()
    elif step == "compare":
        assert_as_if_loaded_anew()
    elif step == "verify":
        assert verify_host_table() == {}
    elif step == "write and read":
        write_and_read(number, is_kept=is_kept)
    elif step == "commit":
        writer.commit()
    elif step == "roll back":
        writer.roll_back()
    elif callable(step):
        writer.write(step, number)


def start() -> None:
    """Have a little of everything, so that most moves find what they change."""
    make_commitment()
    for number in range(START):
        add_host(number)
        add_aggregate(number)
        save(number)
    Host.objects.update(aggregate_uuids=list(AGGREGATES))
    learn(1)


@pytest.mark.sql("capacity_changes", "capacity_touched_with_vms", "capacity_pipeline_mark")
@few(8)
@given(script=st.lists(steps, min_size=60, max_size=120))
def test_incremental_table_and_pipelines_equal_rebuilt_ones_whatever_overlapping_transactions_do(
    writers: list[Writer], script: list[tuple[Move | str, int, int]]
) -> None:
    """Hosts, VMs, reservations and pipelines change in transactions whose order the script says."""
    for writer in writers:
        writer.roll_back()
    empty_tables()
    reset_host_table()
    start()
    current_host_table()
    for step, who, number in script:
        take(step, writers[who], number, is_kept=bool(who))
    assert verify_host_table() == {}
    for writer in writers:
        writer.commit()
        assert_as_if_loaded_anew()
