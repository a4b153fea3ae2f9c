from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from scheduling.filters import filter_quota_enforcement
from scheduling.intents import Intent
from scheduling.quota import CommitmentFact, QuotaDemand, QuotaFacts, quota_verdict
from scheduling.record import record_run
from scheduling.request import PlacementRequest
from scheduling.resources import GIB, MIB
from scheduling.table import HostTable

from .full_worlds import kept, only
from .worlds import roomy

ENFORCED, SHADOW = filter_quota_enforcement(enforce=True), filter_quota_enforcement()
RAM, CORES, INSTANCES = (f"hw_version_v1_{name}" for name in ("ram", "cores", "instances"))


def held(amount: int, used: int, **fields: object) -> CommitmentFact:
    fact = CommitmentFact(
        project_id="p", zone="az-1", group="v1", amount_bytes=amount * GIB, used_bytes=used * GIB
    )
    return replace(fact, **fields)  # type: ignore[arg-type]  # keyword pass-through


def facts(
    *commitments: CommitmentFact,
    limits: Mapping[str, int] | None = None,
    used: Mapping[str, int] = {},
) -> QuotaFacts:
    return QuotaFacts(commitments=commitments, quota=limits, payg_usage=used)


def ask(known: QuotaFacts | None, **fields: object) -> PlacementRequest:
    request = PlacementRequest(
        request_key="r",
        memory_bytes=10 * GIB,
        vcpus=4,
        zone="az-1",
        project_id="p",
        extra_specs={"quota:hw_version": "v1"},
        quota=known,
    )
    return replace(request, **fields)  # type: ignore[arg-type]  # keyword pass-through


AMPLE = {RAM: 200, CORES: 100, INSTANCES: 100}
FULL: Mapping[str, Any] = {"limits": {RAM: 5}, "used": {RAM: 5}}
ROWS = [
    pytest.param(facts(held(100, 50)), {}, "accept_cr", "", id="100/50"),
    pytest.param(
        facts(held(100, 90, state="guaranteed")), {}, "accept_cr", "", id="guaranteed, exact"
    ),
    pytest.param(
        facts(held(50, 50), limits=AMPLE, used={RAM: 100}), {}, "accept_payg", "", id="payg"
    ),
    pytest.param(
        facts(held(50, 50), limits={RAM: 100}, used={RAM: 50}), {}, "reject", "ram", id="ram 100"
    ),
    pytest.param(facts(limits={RAM: 50}, used={RAM: 60}), {}, "reject", "ram", id="ram 50"),
    pytest.param(facts(), {}, "accept_no_quota", "", id="no record"),
    pytest.param(None, {}, "accept_no_quota", "", id="nothing known"),
    pytest.param(
        facts(held(90, 0, project_id="q"), **FULL), {}, "reject", "ram", id="other project"
    ),
    pytest.param(facts(held(90, 0, zone="az-2"), **FULL), {}, "reject", "ram", id="other AZ"),
    pytest.param(facts(held(90, 0, group="v2"), **FULL), {}, "reject", "ram", id="other group"),
    pytest.param(facts(held(90, 0, state="planned"), **FULL), {}, "reject", "ram", id="planned"),
    pytest.param(
        facts(held(90, 0, resource_type="cores"), **FULL), {}, "reject", "ram", id="cores type"
    ),
    pytest.param(facts(held(90, 0, is_current=False), **FULL), {}, "reject", "ram", id="ended"),
    pytest.param(
        facts(limits={RAM: 500}, used={RAM: 100}),
        {"num_instances": 3},
        "accept_payg",
        "",
        id="three instances",
    ),
    pytest.param(
        facts(limits={RAM: 120}, used={RAM: 100}),
        {"num_instances": 3},
        "reject",
        "ram",
        id="three instances, too many",
    ),
    pytest.param(
        facts(limits={RAM: 10}, used={RAM: 10}),
        {"intent": Intent.RESIZE},
        "reject",
        "ram",
        id="resize is not skipped",
    ),
    pytest.param(facts(limits={CORES: 100}, used={CORES: 10}), {}, "accept_payg", "", id="cores"),
    pytest.param(facts(limits={CORES: 5}, used={CORES: 3}), {}, "reject", "cores", id="no cores"),
    pytest.param(
        facts(limits={INSTANCES: 10}, used={INSTANCES: 5}), {}, "accept_payg", "", id="instances"
    ),
    pytest.param(
        facts(limits={INSTANCES: 3}, used={INSTANCES: 3}),
        {},
        "reject",
        "instances",
        id="no instances",
    ),
    pytest.param(
        facts(held(100, 50), limits={CORES: 0}), {}, "accept_cr", "", id="cores not looked at"
    ),
    pytest.param(
        facts(held(6, 0), held(6, 0), **FULL), {}, "accept_cr", "", id="pooled headroom (product)"
    ),
    pytest.param(
        facts(held(20, 0), held(6, 50)), {}, "accept_cr", "", id="an overused one takes nothing"
    ),
    pytest.param(facts(**FULL), {"zone": ""}, "accept_skipped_missing_data", "", id="no zone"),
    pytest.param(facts(**FULL), {"project_id": ""}, "accept_skipped_missing_data", "", id="no p"),
    pytest.param(facts(**FULL), {"extra_specs": {}}, "accept_skipped_missing_data", "", id="no g"),
    *(
        pytest.param(facts(**FULL), {"intent": intent}, decision, "", id=intent.value)
        for intent, decision in {
            Intent.EVACUATE: "accept_skipped_intent_migration",
            Intent.LIVE_MIGRATION: "accept_skipped_intent_migration",
            Intent.RESERVE_FOR_FAILOVER: "accept_skipped_intent_internal",
            Intent.REUSE_FAILOVER_RESERVATION: "accept_skipped_intent_internal",
            Intent.RESERVE_FOR_COMMITTED_RESOURCE: "accept_skipped_intent_internal",
            Intent.CAPACITY_PROBE: "accept_skipped",
        }.items()
    ),
]


@pytest.mark.parametrize(("known", "fields", "decision", "resource"), ROWS)
def test_quota_decides_for_all_hosts_or_none(
    known: QuotaFacts | None, fields: Mapping[str, Any], decision: str, resource: str
) -> None:
    table = HostTable.from_rows([roomy("1"), roomy("2")])
    request = ask(known, **fields)
    assert kept(table, request, ENFORCED) == ([] if decision == "reject" else ["1", "2"])
    assert kept(table, request, SHADOW) == ["1", "2"]
    for step, mode in ((ENFORCED, "enforce"), (SHADOW, "shadow")):
        (event,) = record_run(table, request, only(step)).events
        assert event.labels["mode"] == mode
        assert (event.labels["decision"], event.labels["resource"]) == (decision, resource)


def test_quota_that_cannot_be_looked_up_lets_the_request_pass() -> None:
    table = HostTable.from_rows([roomy("1")])
    request = ask(QuotaFacts(lookup_error="no answer"))
    record = record_run(table, request, only(ENFORCED))
    assert record.ordered_hosts == ("1",)
    assert record.events == ()
    assert record.filters[0].skipped_because == "the quota could not be looked up: no answer"


@pytest.mark.parametrize(
    ("memory_bytes", "quota_gib", "decision"),
    [
        (512 * MIB, 1, "accept_payg"),
        (512 * MIB, 0, "reject"),
        (1536 * MIB, 2, "accept_payg"),
        (1536 * MIB, 1, "reject"),
        (1024 * GIB, 1024, "accept_payg"),
        (1024 * GIB, 1023, "reject"),
    ],
)
def test_memory_is_rounded_up_to_gib(memory_bytes: int, quota_gib: int, decision: str) -> None:
    known = facts(limits={RAM: quota_gib})
    assert quota_verdict(demand(memory_bytes), known).decision == decision


def demand(memory_bytes: int) -> QuotaDemand:
    return QuotaDemand(
        project_id="p", zone="az-1", group="v1", memory_bytes=memory_bytes, vcpus=1, instances=1
    )


@pytest.mark.parametrize(
    ("amount_bytes", "used_bytes", "room_gib"),
    [
        pytest.param(512 * MIB, 0, 1, id="512 Mi is 1"),
        pytest.param(1536 * MIB, 0, 2, id="1.5 Gi is 2"),
        pytest.param(1024 * GIB, 0, 1024, id="1 Ti is 1024"),
        pytest.param(4 * GIB, 1536 * MIB, 2, id="a started GiB is used"),
        pytest.param(1536 * MIB, 512 * MIB, 1, id="both are rounded"),
    ],
)
def test_commitments_are_counted_in_started_gib(
    amount_bytes: int, used_bytes: int, room_gib: int
) -> None:
    held_bytes = replace(held(0, 0), amount_bytes=amount_bytes, used_bytes=used_bytes)
    known = facts(held_bytes, limits={RAM: 0})
    decisions = [
        quota_verdict(demand(asked * GIB), known).decision for asked in (room_gib, room_gib + 1)
    ]
    assert decisions == ["accept_cr", "reject"]
