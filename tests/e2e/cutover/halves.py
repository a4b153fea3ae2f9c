"""A cloud of which hosts are on either side, and what is compared of it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from benchmarks.placement_equality import what_differs
from placement.clients.reference_database import read_database
from placement.cutover.rounds import one_round
from placement.models import MirroredWrite, Origin, ResourceProvider, WriteFence
from placement.selectors.contents import read_contents
from placement.services.audit import find_problems
from tests.e2e.cutover.driving import wait_for_mirror
from tests.e2e.processes import database_url
from tests.e2e.upstream_placement import UpstreamPlacement
from tests.e2e.write_load import cell_of

HOSTS, CONSUMERS = 4, 8
LEFT = (
    "UPDATE placement_write_fence SET ends_at = clock_timestamp() - interval '1 second'",
    "UPDATE placement_forwarded_write SET ends_at = clock_timestamp() - interval '1 second'",
    "UPDATE placement_mirrored_write SET sent_at = sent_at - interval '1 hour'",
    "UPDATE placement_cutover SET closes_at = closes_at - interval '1 hour'",
)


def assert_same(upstream: UpstreamPlacement) -> None:
    """Let both sides come to rest, and compare their databases by SQL alone."""
    wait_for_mirror()
    for _ in range(3):
        one_round()
    assert not MirroredWrite.objects.exists()
    assert not WriteFence.objects.exists()
    assert what_differs(upstream.database, database_url()) == []
    there, here = read_database(upstream.database), read_contents(with_copies=True)
    assert there.providers == here.providers
    assert not [one for one in find_problems() if one.kind in {"drift", "project_usage"}]


def ours() -> set[str]:
    return {
        str(uuid)
        for uuid in ResourceProvider.objects.exclude(origin=Origin.UPSTREAM).values_list(
            "uuid", flat=True
        )
    }


def consumer(number: int) -> str:
    return str(UUID(int=(1 << 103) + number))


def old(number: int) -> str:
    return str(UUID(int=(1 << 101) + number))


def hosts_of(answer: Any) -> set[int]:
    used = {uuid for one in answer.json["allocation_requests"] for uuid in one["allocations"]}
    return {number for number in range(HOSTS) if cell_of(number) in used}
