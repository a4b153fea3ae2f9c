"""What a call of Nova needs done for each host is done in columns, not in steps of Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import orjson

from capacity.api.nova_request import parse_nova_call
from scheduling.pipelines import compile_pipeline
from scheduling.record import record_run
from scheduling.request import CallOptions
from scheduling.shipped_pipelines import SHIPPED
from scheduling.table import HostTable
from tests.api.scheduler_client import NovaClient

from .worlds import roomy

PIPELINE = "kvm-general-purpose-load-balancing"


def calls_of(work: Callable[[], object]) -> int:
    """Return how often Python functions and generators were entered."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def calls_with(hosts: int) -> int:
    names = tuple(f"node{number:05d}" for number in range(hosts))
    nova = NovaClient(names)
    body = orjson.dumps(nova.body(availability_zone="", pipeline=PIPELINE))
    table = HostTable.from_rows([roomy(name) for name in names])
    pipeline = compile_pipeline(SHIPPED[PIPELINE])

    def one_call() -> None:
        call = parse_nova_call(body)
        assert call.request.hosts == names
        record = record_run(table, call.request, pipeline, CallOptions(max_candidates=3))
        assert f"Started with {hosts} host(s)" in record.text()

    one_call()  # masks and names of a table are kept
    return calls_of(one_call)


def test_call_with_many_hosts_runs_as_many_functions_as_one_with_few() -> None:
    assert calls_with(2000) - calls_with(200) < 200
