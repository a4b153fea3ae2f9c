from __future__ import annotations

import json

import pytest

from capacity.models import Reservation, SchedulingDecision
from capacity.nova.explanations import explain
from scheduling.engine import SLOT_PIPELINE
from scheduling.evaluation import CompiledPipeline
from scheduling.intents import CallOptions
from scheduling.request import PlacementRequest
from scheduling.resources import GIB
from tests import factories
from tests.ledger import fingerprint

pytestmark = pytest.mark.django_db


def ask(memory_gib: int = 8, vcpus: int = 2) -> PlacementRequest:
    return PlacementRequest(
        request_key="vm-1",
        memory_bytes=memory_gib * GIB,
        vcpus=vcpus,
        zone="az-a",
        required_traits=frozenset({"CUSTOM_X"}),
    )


@pytest.fixture(autouse=True)
def _hosts() -> None:
    factories.make_host("good", memory_gib=64, traits=["CUSTOM_X"])
    factories.make_host("better", memory_gib=16, traits=["CUSTOM_X"])
    factories.make_host("small", memory_gib=4)
    factories.make_host("far", zone="az-b", traits=["CUSTOM_X"])


def test_every_candidate_has_its_first_filter_or_its_rank() -> None:
    document = explain(ask(), SLOT_PIPELINE).as_document()

    hosts = {entry["host"]: entry for entry in document["hosts"]}
    assert [entry["host"] for entry in document["hosts"][:2]] == ["better", "good"]
    assert (hosts["better"]["rank"], hosts["good"]["rank"]) == (1, 2)
    assert hosts["far"]["removed_by"] == "filter_correct_az"
    assert hosts["small"]["removed_by"] == "filter_has_requested_traits"
    assert (document["started"], document["remaining"], document["target"]) == (4, 2, "better")
    assert sum(step["removed"] for step in document["steps"]) == 2


def test_a_named_host_has_every_objection_with_what_would_have_to_change() -> None:
    (small,) = explain(ask(), SLOT_PIPELINE, host_names=["small"]).as_document()["details"]

    steps = [objection["step"] for objection in small["objections"]]
    assert steps == ["filter_has_requested_traits", "filter_has_enough_capacity"]
    assert small["removed_by"] == "filter_has_requested_traits"
    assert "CUSTOM_X" in small["objections"][0]["remedy"]
    assert "4 GiB" in small["objections"][1]["remedy"]
    assert set(small["contributions"]) == {weigher.name for weigher in SLOT_PIPELINE.weighers}


def test_without_names_the_best_hosts_are_shown_in_detail() -> None:
    details = explain(ask(), SLOT_PIPELINE).as_document()["details"]

    assert [(host["host"], host["rank"], host["objections"]) for host in details] == [
        ("better", 1, []),
        ("good", 2, []),
    ]
    assert details[0]["score"] == pytest.approx(
        details[0]["start_weight"] + sum(details[0]["contributions"].values())
    )


def test_an_unknown_host_is_explained_too() -> None:
    (host,) = explain(ask(), SLOT_PIPELINE, host_names=["nowhere"]).as_document()["details"]

    assert (host["is_known"], host["rank"]) == (False, None)
    assert host["objections"]


def test_at_most_so_many_hosts_are_explained_in_detail() -> None:
    names = [f"n{number}" for number in range(80)]

    assert len(explain(ask(), SLOT_PIPELINE, host_names=names).details) == 50


def test_a_run_that_fails_says_why() -> None:
    gathering = CompiledPipeline(
        name="gathering", filters=SLOT_PIPELINE.filters, weighers=(), ignore_preselection=True
    )

    document = explain(ask(), gathering).as_document()

    assert document["failure"] == "missing hypervisor_type"
    assert (document["hosts"], document["details"]) == ([], [])


def test_explaining_writes_nothing_and_its_document_is_json() -> None:
    before = fingerprint()

    text = json.dumps(explain(ask(), SLOT_PIPELINE, options=CallOptions()).as_document())

    assert "better" in text
    assert fingerprint() == before
    assert not SchedulingDecision.objects.exists()
    assert not Reservation.objects.exists()
