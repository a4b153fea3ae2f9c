"""Writes that wait for the other Placement: their order, and how little is asked about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import orjson
import pytest
from django.db import connection

from placement.cutover import mirroring
from placement.cutover.peer import SENDERS
from placement.domain.errors import (
    PlacementError,
    ServiceUnavailable,
    UpstreamAway,
    UpstreamFailed,
    UpstreamUnreachable,
)
from placement.gateway.upstream import UpstreamAnswer
from placement.models import MirroredWrite

pytestmark = pytest.mark.django_db(transaction=True)

WRITES, TREES, CONSUMERS = 1000, 40, 60
DONE = UpstreamAnswer(status=204, reason="No Content", headers=(), body=b"")
REFUSED = UpstreamAnswer(status=409, reason="Conflict", headers=(), body=b"no")


class Other:
    """The other side, which has done at once what is begun.

    Attributes:
        came: Numbers of the writes that it got, in their order.
        refuses: Numbers of those that it does not take.
    """

    def __init__(self) -> None:
        self.came: list[int] = []
        self.refuses: set[int] = set()
        self.on_send: Callable[[int], None] = lambda _: None

    def begin(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work())
        except PlacementError as error:
            future.set_exception(error)
        return future

    def send(self, method: str, target: str, minor: int, body: bytes) -> UpstreamAnswer:
        del method, target, minor
        number = int(orjson.loads(body))
        self.on_send(number)
        self.came.append(number)
        return REFUSED if number in self.refuses else DONE


def mirrored(other: Other, **options: Any) -> mirroring.Backlog:
    peer: Any = other  # as much of a peer as is asked here
    return mirroring.mirror(peer, **options)


def keep(number: int, root: int, consumer: int) -> MirroredWrite:
    return MirroredWrite(
        id=number,
        method="PUT",
        target=f"/allocations/{UUID(int=consumer)}",
        minor=36,
        body=orjson.dumps(number),
        roots=[root],
        consumers=[UUID(int=consumer)],
    )


@contextmanager
def statements() -> Iterator[list[str]]:
    """Yield the statements of the block."""
    seen: list[str] = []

    def watch(execute: Any, sql: str, *rest: Any) -> Any:
        seen.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(watch):
        yield seen


def test_many_writes_go_in_their_order_with_few_statements() -> None:
    MirroredWrite.objects.bulk_create(
        keep(number, number * 7 % TREES + 1, number * 11 % CONSUMERS)
        for number in range(1, WRITES + 1)
    )
    other = Other()
    with statements() as seen:
        left = mirrored(other)

    assert (left.count, sorted(other.came)) == (0, list(range(1, WRITES + 1)))
    by_subject: dict[tuple[str, int], list[int]] = defaultdict(list)
    for number in other.came:
        by_subject["tree", number * 7 % TREES].append(number)
        by_subject["consumer", number * 11 % CONSUMERS].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_subject.values())
    assert len(seen) < 3 * WRITES / SENDERS


def test_a_write_that_was_committed_late_goes_although_its_number_was_passed() -> None:
    MirroredWrite.objects.bulk_create(keep(number, number, number) for number in range(10, 60))
    other = Other()

    def commit_late(number: int) -> None:
        if number == 20:
            keep(5, 1000, 1000).save(force_insert=True)

    other.on_send = commit_late
    left = mirrored(other)

    assert left.count == 0
    assert sorted(other.came) == [5, *range(10, 60)]


def test_what_is_refused_holds_what_shares_with_it_and_nothing_else() -> None:
    MirroredWrite.objects.bulk_create(
        keep(number, root, consumer)
        for number, root, consumer in ((1, 1, 1), (2, 1, 2), (3, 3, 2), (4, 4, 4), (5, 5, 1))
    )
    other = Other()
    other.refuses = {1}
    left = mirrored(other)

    assert other.came == [1, 4]
    assert (left.count, left.refused) == (4, 1)
    mirrored(other)
    assert other.came == [1, 4]
    other.refuses = set()
    mirroring.try_refused_again()
    MirroredWrite.objects.update(sent_at=None)
    assert mirrored(other).count == 0
    assert sorted(other.came[2:]) == [1, 2, 3, 5]


def test_few_may_be_left_while_writes_go_on() -> None:
    MirroredWrite.objects.bulk_create(keep(number, number, number) for number in range(1, 101))
    other = Other()
    left = mirrored(other, few=200)
    assert (left.count, other.came) == (100, [])
    MirroredWrite.objects.filter(id__gt=5).delete()
    assert mirrored(other, few=5).count == 5
    assert other.came == []


@pytest.mark.parametrize(
    ("error", "goes_at_once"),
    [
        pytest.param(UpstreamUnreachable("no connection"), True, id="no connection"),
        pytest.param(UpstreamAway("left alone"), True, id="left alone"),
        pytest.param(ServiceUnavailable("no token"), True, id="no token"),
        pytest.param(UpstreamFailed("the connection ended"), False, id="may have come"),
    ],
)
def test_what_was_never_sent_goes_as_soon_as_the_other_side_is_there(
    error: PlacementError, goes_at_once: bool
) -> None:
    write = keep(1, 1, 1)
    write.target = f"/resource_providers/{UUID(int=1)}/traits"  # tells by no generation
    write.save(force_insert=True)
    other = Other()

    def fail(_: int) -> None:
        raise error

    other.on_send = fail
    with pytest.raises(type(error)):
        mirrored(other)
    other.on_send = lambda _: None
    assert mirrored(other).count == (0 if goes_at_once else 1)
    assert other.came == ([1] if goes_at_once else [])
