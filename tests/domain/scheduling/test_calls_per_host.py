"""What a call of Nova needs done for each host is done in columns, not in steps of Python."""

from __future__ import annotations

from dataclasses import replace

import orjson

from capacity.api.nova_request import parse_nova_call
from scheduling.intents import CallOptions
from scheduling.pipelines import compile_pipeline
from scheduling.record import record_run
from scheduling.shipped_pipelines import SHIPPED
from scheduling.table import HostTable
from tests.api.scheduler_client import NovaClient
from tests.calls import calls_of

from .worlds import roomy

PIPELINE = "kvm-general-purpose-load-balancing"


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


class CountedRows(dict[str, int]):
    """Rows by name that count how often one is looked up."""

    asked = 0

    def get(self, name: str, default: int | None = None) -> int | None:  # type: ignore[override]  # narrower
        self.asked += 1
        return super().get(name, default)


def test_names_of_a_call_are_found_together_in_whatever_order() -> None:
    names = [f"node{number:05d}" for number in range(1000)]
    table = HostTable.from_rows([roomy(name) for name in names])
    rows = CountedRows(table.row_of)
    table = replace(table, row_of=rows)
    pipeline = compile_pipeline(SHIPPED[PIPELINE])

    def started_with(offered: list[str]) -> set[str]:
        body = orjson.dumps(
            NovaClient(tuple(offered)).body(availability_zone="", pipeline=PIPELINE)
        )
        request = parse_nova_call(body).request
        limited = replace(request, restrict_to_hosts=request.hosts)
        record = record_run(table, limited, pipeline)
        return {record.names[row] for row in record.candidates.rows().tolist()}

    assert started_with(names) == set(names)
    assert started_with(names[::-1]) == set(names)
    assert started_with(names[500:]) == set(names[500:])
    assert rows.asked < 200  # of 2500, those whose slot another has
    assert started_with(["new-2", *names[:3], "new-1"]) == set(names[:3])


def test_hosts_that_no_loader_knows_make_one_listing_in_whatever_order() -> None:
    table = HostTable.from_rows([roomy("a")])
    expected = ("a", "x", "y", "z")
    assert table.with_unknown(("y", "a", "x", "z")).names == expected
    assert table.with_unknown(("z", "y", "x")).names == expected
