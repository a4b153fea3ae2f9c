"""Who holds polls, without a database: what wakes them, what ends them, that no wake is missed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from hosts.agents.holding import Ended, HeldPoll, Holder, Standing

QUIET = Standing(change_seq=3, fence_epoch=1, timeline=UUID(int=1), is_taken=True)
LONG_SECONDS = 3600.0


class Hosts:
    """How hosts stand, and how often that was asked."""

    def __init__(self) -> None:
        self.standing: dict[str, Standing] = {}
        self.asked: list[list[str]] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def look(self, kids: Sequence[str]) -> dict[str, Standing]:
        self.asked.append(sorted(kids))
        seen = {kid: self.standing[kid] for kid in kids if kid in self.standing}
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return seen

    def poll(self, seconds: float = LONG_SECONDS) -> HeldPoll:
        """Return a poll of a new host that has nothing, begun now."""
        host_id = uuid4()
        self.standing[str(host_id)] = QUIET
        now = asyncio.get_running_loop().time()
        return HeldPoll(
            host_id=host_id, kid=str(host_id), before=QUIET, began_at=now, seconds=seconds
        )

    def change(self, held: HeldPoll, **fields: object) -> None:
        self.standing[held.kid] = replace(self.standing[held.kid], **fields)  # type: ignore[arg-type]  # as named


Body = Callable[[Hosts, Holder], Awaitable[None]]


def run(body: Body, *, most: int = 100) -> None:
    async def main() -> None:
        hosts = Hosts()
        await asyncio.wait_for(body(hosts, Holder(hosts.look, most=most)), 30)

    asyncio.run(main())


async def begun(holder: Holder, *polls: HeldPoll) -> list[asyncio.Task[Ended]]:
    """Hold polls; return once each waits."""
    tasks = [asyncio.ensure_future(holder.hold(one)) for one in polls]
    while len(holder) < len(polls):
        await asyncio.sleep(0)
    return tasks


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "fields",
    [{"change_seq": 4}, {"fence_epoch": 2}, {"timeline": UUID(int=2)}, {"is_taken": False}],
    ids=lambda fields: next(iter(fields)),
)
def test_a_wake_ends_a_poll_whose_host_stands_otherwise(fields: dict[str, object]) -> None:
    async def body(hosts: Hosts, holder: Holder) -> None:
        changed, other = hosts.poll(), hosts.poll()
        first, second = await begun(holder, changed, other)
        hosts.change(changed, **fields)

        holder.wake([changed.host_id, other.host_id, uuid4()])

        assert await first is Ended.NEWS
        await settled()
        assert not second.done()  # it looked, and nothing had changed
        assert len(holder) == 1
        holder.stop()
        assert await second is Ended.STOPPED

    run(body)


def test_a_host_that_is_not_there_any_more_ends_its_poll() -> None:
    async def body(hosts: Hosts, holder: Holder) -> None:
        gone = hosts.poll()
        (task,) = await begun(holder, gone)
        del hosts.standing[gone.kid]
        holder.wake([gone.host_id])
        assert await task is Ended.NEWS

    run(body)


def test_the_end_of_its_time_looks_once_more() -> None:
    async def body(hosts: Hosts, holder: Holder) -> None:
        quiet, changed = hosts.poll(0.01), hosts.poll(0.01)
        first, second = await begun(holder, quiet, changed)
        hosts.change(changed, change_seq=9)  # and the wake was lost
        assert (await first, await second) == (Ended.QUIET, Ended.NEWS)

    run(body)


def test_a_wake_between_the_first_answer_and_the_wait_is_not_missed() -> None:
    async def body(hosts: Hosts, holder: Holder) -> None:
        early = hosts.poll()
        hosts.change(early, change_seq=4)
        holder.wake([early.host_id])
        assert await holder.hold(early) is Ended.NEWS

    run(body)


def test_a_wake_during_a_look_is_not_missed() -> None:
    async def body(hosts: Hosts, holder: Holder) -> None:
        poll = hosts.poll()
        (task,) = await begun(holder, poll)
        hosts.gate = asyncio.Event()
        holder.wake([poll.host_id])
        await settled()
        assert len(hosts.asked) == 1
        hosts.change(poll, change_seq=4)  # too late for the look that is under way
        holder.wake([poll.host_id])
        hosts.gate.set()
        assert await task is Ended.NEWS

    run(body)


def test_all_are_looked_at_in_one_question_whoever_woke_them() -> None:
    async def body(hosts: Hosts, holder: Holder) -> None:
        polls = [hosts.poll() for _ in range(50)]
        tasks = await begun(holder, *polls)
        for one in polls[:20]:
            hosts.change(one, change_seq=4)
        await holder.look_at_all()
        assert len(hosts.asked) == 1
        holder.wake([one.host_id for one in polls[20:]])
        await settled()
        assert len(hosts.asked) <= 4  # the twenty and the thirty, each together
        assert [task.done() for task in tasks] == [True] * 20 + [False] * 30
        holder.stop()

    run(body)


def test_a_second_poll_of_a_host_replaces_the_first_and_limits_hold() -> None:
    async def body(hosts: Hosts, holder: Holder) -> None:
        poll = hosts.poll()
        (first,) = await begun(holder, poll)
        second = asyncio.ensure_future(holder.hold(poll))
        assert await first is Ended.REPLACED
        await settled()
        assert len(holder) == 1
        await begun(holder, hosts.poll())
        while len(holder) < 2:
            await asyncio.sleep(0)
        assert await holder.hold(hosts.poll()) is Ended.FULL
        holder.stop()
        assert await second is Ended.STOPPED
        assert await holder.hold(hosts.poll()) is Ended.STOPPED

    run(body, most=2)


def test_a_look_that_fails_is_the_error_of_those_who_asked() -> None:
    async def body(hosts: Hosts, holder: Holder) -> None:
        woken, other = hosts.poll(), hosts.poll()
        first, second = await begun(holder, woken, other)
        hosts.error = OSError("away")
        holder.wake([woken.host_id])
        with pytest.raises(OSError, match="away"):
            await first
        with pytest.raises(OSError, match="away"):
            await holder.look_at_all()
        hosts.error = None
        await settled()
        assert not second.done()
        hosts.change(other, change_seq=4)
        holder.wake([other.host_id])
        assert await second is Ended.NEWS

    run(body)
