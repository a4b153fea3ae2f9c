from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.apps import apps
from django.db import DatabaseError, connection, transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.selectors.host_table import (
    current_host_table,
    load_host_table,
    reset_host_table,
    table_differences,
    verify_host_table,
)
from tests.capacity.host_table_moves import MOVES, Move, Writer, add_host
from tests.factories import make_commitment

pytestmark = pytest.mark.django_db(transaction=True)

WRITERS = 3
START_HOSTS = 3


@pytest.fixture
def writers() -> Iterator[list[Writer]]:
    opened = [Writer() for _ in range(WRITERS)]
    yield opened
    for writer in opened:
        writer.close()


def empty_tables() -> None:
    tables = [
        model._meta.db_table
        for label in ("journal", "hosts", "capacity", "commitments")
        for model in apps.get_app_config(label).get_models()
    ]
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(tables)} CASCADE")


numbers = st.integers(0, 2**12)
steps = st.one_of(
    st.tuples(st.sampled_from(MOVES), st.integers(0, WRITERS - 1), numbers),
    st.tuples(st.sampled_from(MOVES), st.integers(0, WRITERS - 1), numbers),
    st.tuples(st.sampled_from(MOVES), st.integers(0, WRITERS - 1), numbers),
    st.tuples(st.just("commit"), st.integers(0, WRITERS - 1), st.just(0)),
    st.tuples(st.just("roll back"), st.integers(0, WRITERS - 1), st.just(0)),
    st.tuples(st.just("refresh"), st.just(0), st.just(0)),
    st.tuples(st.just("verify"), st.just(0), st.just(0)),
    st.tuples(st.just("write and read"), st.integers(0, 1), numbers),
)


def write_and_read(number: int, *, is_kept: bool) -> None:
    """Read in the middle of the reader's own transaction, which sees what others do not."""
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '20ms'")
            MOVES[number % len(MOVES)](number // len(MOVES))
            assert table_differences(current_host_table(), load_host_table()) == {}
            if not is_kept:
                transaction.set_rollback(True)
    except DatabaseError:
        pass


def take(step: Move | str, writer: Writer, number: int, *, is_kept: bool) -> None:
    if step == "refresh":
        current_host_table()
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


@settings(max_examples=15)
@given(script=st.lists(steps, min_size=60, max_size=120))
def test_incremental_table_equals_a_rebuilt_one_whatever_overlapping_transactions_do(
    writers: list[Writer], script: list[tuple[Move | str, int, int]]
) -> None:
    for writer in writers:
        writer.roll_back()
    empty_tables()
    reset_host_table()
    make_commitment()
    for number in range(START_HOSTS):
        add_host(number)
    current_host_table()
    for step, who, number in script:
        take(step, writers[who], number, is_kept=bool(who))
    assert verify_host_table() == {}
    for writer in writers:
        writer.commit()
        assert table_differences(current_host_table(), load_host_table()) == {}
