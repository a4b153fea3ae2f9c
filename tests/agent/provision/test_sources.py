"""Where jobs come from (spec hosts, B.3, B.7)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence

import pytest
from headroom_host_agent.provision.sources import (
    LAST,
    CombinedSource,
    Emit,
    ExpirySource,
    Job,
    Page,
    PollSource,
    RetryablePollError,
    UnreadablePageError,
    in_order,
)
from headroom_host_agent.provision.wire import Reservation
from hypothesis import given
from hypothesis import strategies as st

PATIENCE_SECONDS = 30
Answer = Page | Exception


def one(identity: str, kind: str = "volume", *, to_delete: bool = False) -> Reservation:
    return Reservation(id=identity, node_id="n", user_id="u", type=kind, to_delete=to_delete)


def page(*identities: str, last: int, end: bool = False, caught_up: bool | None = None) -> Page:
    reservations = tuple(one(identity) for identity in identities)
    return Page(reservations=reservations, last_id=last, end_of_stream=end, caught_up=caught_up)


class Told:
    """Answers polls one after the other, and remembers them."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = iter(answers)
        self.asked: list[tuple[int, int]] = []

    def poll(self, host_id: str, start: int, limit: int) -> Page:
        assert host_id == "host"
        self.asked.append((start, limit))
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def polled(poller: Told) -> list[str]:
    """Return what a poll source emits until the stream ends."""
    said: list[str] = []
    source = PollSource(poller, "host", min_interval_seconds=0)
    source.run(threading.Event(), lambda job: said.append(name_of(job)))
    return said


def name_of(job: Job) -> str:
    return job.reservation.id if job.reservation is not None else "LAST"


END = page(last=10**6, end=True, caught_up=False)


@pytest.mark.parametrize(
    ("answers", "emitted", "starts"),
    [
        ([page("1-1", "1-2", last=1, end=True)], ["1-1", "1-2"], [0]),
        (
            [page("1-1", "2-1", last=2), page("3-1", "4-1", last=6, end=True)],
            ["1-1", "2-1", "3-1", "4-1"],
            [0, 3],
        ),
        (
            [page("1-1", "2-1", "3-1", "4-1", last=4), page(last=4, end=True)],
            ["1-1", "2-1", "3-1", "4-1", "LAST"],
            [0, 5],
        ),
        ([page(last=0), page(last=0), page(last=0, end=True)], ["LAST"], [0, 1, 1]),
        (
            [page("1-1", last=2), RetryablePollError("cut"), page("3-1", last=3, end=True)],
            ["1-1", "3-1"],
            [0, 3, 3],
        ),
    ],
    ids=["no marker at once", "two pages", "a marker", "an empty host", "a cut line"],
)
def test_polls_follow_the_last_number(
    answers: Sequence[Answer], emitted: list[str], starts: list[int]
) -> None:
    poller = Told(*answers)

    assert polled(poller) == emitted
    assert [start for start, _ in poller.asked] == starts


def test_a_server_that_says_so_has_told_all_at_once() -> None:
    poller = Told(
        page("1-1", last=200, caught_up=False),
        page(last=200, caught_up=False),
        page("2-1", last=201, caught_up=True),
        page(last=201, caught_up=True, end=True),
    )

    assert polled(poller) == ["1-1", "2-1", "LAST"]


def test_only_what_cannot_be_read_is_left_out() -> None:
    bad = UnreadablePageError("no JSON")
    poller = Told(
        page("1-1", "2-1", last=2),
        *[bad] * 5,  # from 3, full pages
        page("3-1", last=3),
        *[bad] * 5,  # the fourth alone
        page("5-1", last=5),
        page("6-1", last=6, end=True, caught_up=False),
    )

    assert polled(poller) == ["1-1", "2-1", "3-1", "5-1", "6-1"]
    assert poller.asked == [(0, 200), *[(3, 200)] * 5, (3, 1), *[(4, 1)] * 5, (5, 200), (6, 200)]


def test_a_number_that_is_known_is_stepped_over_at_once() -> None:
    bad = UnreadablePageError("no JSON", last_id=90)
    poller = Told(*[bad] * 6, END)

    polled(poller)

    assert poller.asked == [*[(0, 200)] * 5, (0, 1), (91, 200)]


def test_failures_that_heal_leave_nothing_out() -> None:
    bad = UnreadablePageError("no JSON")
    poller = Told(
        *[bad] * 4, page("1-1", last=1), *[bad] * 4, page("2-1", last=2), page("3-1", last=3), END
    )

    assert polled(poller) == ["1-1", "2-1", "3-1"]
    assert {limit for _, limit in poller.asked} == {200}


def test_pages_are_full_again_behind_one_that_could_not_be_read() -> None:
    bad = UnreadablePageError("no JSON")
    singles = [page(f"{number}-1", last=number) for number in range(1, 4)]
    poller = Told(*[bad] * 5, *singles, END)
    source = PollSource(poller, "host", min_interval_seconds=0, limit=3)

    source.run(threading.Event(), lambda _: None)

    assert [limit for _, limit in poller.asked] == [3] * 5 + [1] * 3 + [3]


@given(
    bad=st.sets(st.integers(min_value=1, max_value=12)),
    limit=st.integers(min_value=2, max_value=5),
)
def test_everything_that_can_be_read_is_emitted_once(bad: set[int], limit: int) -> None:
    class Server:
        def poll(self, host_id: str, start: int, limit: int) -> Page:
            numbers = [number for number in range(1, 13) if number >= start][:limit]
            if bad & set(numbers):
                raise UnreadablePageError("bad item", last_id=numbers[-1])
            ids = [f"{number}-1" for number in numbers]
            return page(*ids, last=max([12 if not numbers else 0, *numbers]), end=not numbers)

    said: list[str] = []
    source = PollSource(Server(), "host", min_interval_seconds=0, limit=limit)
    source.run(threading.Event(), lambda job: said.append(name_of(job)))

    assert [name for name in said if name != "LAST"] == [
        f"{number}-1" for number in range(1, 13) if number not in bad
    ]


class Waits(threading.Event):
    """Remembers for how long it was waited for; sets itself in the end."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.waited = times, list[float | None]()

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        if len(self.waited) >= self.times:
            self.set()
        return self.is_set()


def test_polls_start_at_most_once_per_interval() -> None:
    clock = itertools.chain([100.0, 103.0, 200.0, 215.0, 300.0, 300.0])
    stop = Waits(3)
    source = PollSource(
        Told(*[page(last=0)] * 3),
        "host",
        min_interval_seconds=10,
        monotonic=lambda: next(clock),
    )

    source.run(stop, lambda _: None)

    assert stop.waited == [7.0, 0.0, 10.0]


class Ends:
    def __init__(self, *rounds: Iterable[Reservation] | Exception) -> None:
        self.rounds = iter(rounds)

    def get_expired(self) -> Iterable[Reservation]:
        found = next(self.rounds)
        if isinstance(found, Exception):
            raise found
        return found


def test_what_has_ended_is_emitted_every_interval_and_an_error_is_left_out() -> None:
    said: list[str] = []
    stop = Waits(4)
    ends = Ends([one("1-1"), one("2-1")], OSError("disk"), [one("1-1")])

    ExpirySource(ends, interval_seconds=20).run(stop, lambda job: said.append(name_of(job)))

    assert said == ["1-1", "2-1", "1-1"]
    assert stop.waited == [20] * 4


def stopping(make: Callable[[threading.Event], object]) -> None:
    """Run something that would wait for an hour, stop it, and see it end."""
    stop = threading.Event()
    thread = threading.Thread(target=make, args=(stop,))
    thread.start()
    stop.set()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_sources_stop_while_they_wait() -> None:
    polls = PollSource(Told(*[page(last=0)] * 2), "host", min_interval_seconds=3600)
    ends = ExpirySource(Ends(), interval_seconds=3600)

    stopping(lambda stop: CombinedSource(polls, ends).run(stop, lambda _: None))


def test_a_stop_ends_a_page_between_its_items() -> None:
    stop, said = threading.Event(), list[str]()

    def emit(job: Job) -> None:
        said.append(name_of(job))
        stop.set()

    PollSource(Told(page("1-1", "2-1", last=2)), "host").run(stop, emit)

    assert said == ["1-1"]


class Once:
    """Emits one job when it may, then is closed."""

    def __init__(self, job: Job, may: threading.Event, then: threading.Event) -> None:
        self.job, self.may, self.then = job, may, then

    def run(self, stop: threading.Event, emit: Emit) -> None:
        assert self.may.wait(PATIENCE_SECONDS)
        emit(self.job)
        self.then.set()


def test_sources_together_close_when_all_have() -> None:
    first, second = threading.Event(), threading.Event()
    first.set()
    said: list[str] = []
    late = Once(Job(reservation=one("2-1")), second, threading.Event())
    early = Once(LAST, first, second)  # its stream ends before the other begins

    CombinedSource(late, early).run(threading.Event(), lambda job: said.append(name_of(job)))

    assert said == ["LAST", "2-1"]


def test_a_source_that_breaks_is_heard_after_the_others_closed() -> None:
    class Broken:
        def run(self, stop: threading.Event, emit: Emit) -> None:
            raise MemoryError("broken")

    free, said = threading.Event(), list[str]()
    free.set()
    whole = Once(LAST, free, threading.Event())

    with pytest.raises(MemoryError, match="broken"):
        CombinedSource(Broken(), whole).run(
            threading.Event(), lambda job: said.append(name_of(job))
        )

    assert said == ["LAST"]


def test_a_page_is_handled_deletions_first_and_in_reverse() -> None:
    handled = in_order(
        [
            one("1-1", "container"),
            one("2-1", "network", to_delete=True),
            one("3-1", "volume"),
            one("4-1", "container", to_delete=True),
            one("5-1", "unknown"),
            one("6-1", "network"),
            one("7-1", "public_ip"),
            one("8-1", "kubernetes"),
            one("9-1", "zdb"),
            one("10-1", "network_resource"),
            one("11-1", "debug"),
        ]
    )

    assert [reservation.id for reservation in handled] == [
        *("4-1", "2-1"),
        *("5-1", "11-1", "6-1", "10-1", "9-1", "3-1", "1-1", "8-1", "7-1"),
    ]
