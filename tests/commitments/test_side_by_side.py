"""Work for many projects over two connections."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, transaction

from commitments.services.side_by_side import CONNECTIONS, WORTH_A_CONNECTION, refused_of

MANY = [f"project-{number}" for number in range(WORTH_A_CONNECTION)]


def backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        row = cursor.fetchone()
    assert row is not None
    return int(row[0])


class TestManyProjects:
    @pytest.mark.django_db(transaction=True)
    def test_each_is_done_once_and_the_refused_are_told_in_order(self) -> None:
        done: list[str] = []

        def is_done(project_id: str) -> bool:
            done.append(project_id)
            return not project_id.endswith("7")

        assert refused_of(MANY, is_done) == [name for name in MANY if name.endswith("7")]
        assert sorted(done) == sorted(MANY)

    @pytest.mark.django_db(transaction=True)
    def test_they_are_spread_over_connections(self) -> None:
        both_here = threading.Barrier(CONNECTIONS, timeout=60)
        backends: dict[int, int] = {}

        def is_done(project_id: str) -> bool:
            if threading.get_ident() not in backends:
                backends[threading.get_ident()] = backend()
                both_here.wait()  # nobody goes on alone
            return True

        assert refused_of(MANY, is_done) == []
        assert len(set(backends.values())) == CONNECTIONS

    @pytest.mark.django_db(transaction=True)
    def test_what_the_work_raises_ends_the_run(self) -> None:
        begun: list[str] = []

        def is_done(project_id: str) -> bool:
            begun.append(project_id)
            raise ValueError(project_id)

        with pytest.raises(ValueError, match="project-"):
            refused_of(MANY, is_done)
        assert len(begun) <= CONNECTIONS

    @pytest.mark.django_db(transaction=True)
    def test_within_a_transaction_its_own_connection_does_all(self) -> None:
        backends: set[int] = set()

        def is_done(project_id: str) -> bool:
            backends.add(backend())
            return bool(project_id)

        with transaction.atomic():
            assert refused_of(MANY, is_done) == []
            assert backends == {backend()}

    @pytest.mark.django_db(transaction=True)
    def test_a_few_are_done_by_one_connection(self) -> None:
        threads: set[int] = set()

        def is_done(project_id: str) -> bool:
            threads.add(threading.get_ident())
            return bool(project_id)

        assert refused_of(MANY[1:], is_done) == []
        assert threads == {threading.get_ident()}
