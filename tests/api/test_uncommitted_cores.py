"""Running cores that no commitment covers, an option of the headroom (spec liquid, 20 row 21)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from commitments.models import Commitment
from hosts.models import Host
from tests.api.liquid_client import LiquidClient
from tests.api.test_what_if import answer, batch
from tests.commitments.change_requests import CORES, change, decide
from tests.factories import make_group, make_host, make_vm

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"

pytestmark = pytest.mark.django_db


def switch_on(settings: Any, **others: Any) -> None:
    liquid = settings.HEADROOM.liquid.model_copy(
        update={"subtract_uncommitted_cores": True, **others}
    )
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"liquid": liquid})


def region() -> None:
    """16 vCPUs in az-a; VMs of beta take 6 of them, and 20 in az-b."""
    make_group("hana_1", flavors=[("small", 1024, 2)], ram_unit_gib=1)
    make_group("gp", flavors=[("other", 1024, 2)], ram_unit_gib=1)
    host = make_host("h1", zone="az-a", memory_gib=8, vcpus=16)
    elsewhere = make_host("h2", zone="az-b", memory_gib=64, vcpus=64)
    for _ in range(3):
        make_vm(host=host, memory_gib=1, vcpus=2, project_id="beta", flavor_name="small")
    make_vm(host=host, memory_gib=1, vcpus=0, project_id="beta", flavor_name="other")
    gone = make_vm(memory_gib=1, vcpus=2, project_id="beta", flavor_name="small")
    gone.host, gone.status = host, "SHELVED_OFFLOADED"
    gone.save()
    for _ in range(10):
        make_vm(host=elsewhere, memory_gib=1, vcpus=2, project_id="beta", flavor_name="small")


@pytest.fixture
def cloud() -> None:
    region()


@pytest.mark.usefixtures("cloud")
@pytest.mark.parametrize("dry_run", [True, False], ids=["dry run", "change"])
def test_off_by_default(*, dry_run: bool) -> None:
    outcome = decide({"alpha": {CORES: [change(A, 16)]}}, is_dry_run=dry_run)
    assert outcome.rejection_reason == ""


@pytest.mark.usefixtures("cloud")
@pytest.mark.parametrize(
    ("dry_run", "mode"),
    [
        pytest.param(True, "net", id="net dry run"),
        pytest.param(True, "exact", id="exact dry run"),
        pytest.param(False, "net", id="change"),
    ],
)
class TestAnswers:
    def test_running_cores_of_others_are_left_out(
        self, settings: Any, *, dry_run: bool, mode: str
    ) -> None:
        switch_on(settings, dry_run_mode=mode)
        outcome = decide({"alpha": {CORES: [change(A, 11)]}}, is_dry_run=dry_run)
        assert "insufficient CPU cores: 10 available, 11 requested" in outcome.rejection_reason
        outcome = decide({"alpha": {CORES: [change(A, 10)]}}, is_dry_run=dry_run)
        assert outcome.rejection_reason == ""

    def test_a_project_may_commit_to_what_it_runs(
        self, settings: Any, *, dry_run: bool, mode: str
    ) -> None:
        switch_on(settings, dry_run_mode=mode)
        outcome = decide({"beta": {CORES: [change(A, 16)]}}, is_dry_run=dry_run)
        assert outcome.rejection_reason == ""


@pytest.mark.usefixtures("cloud")
def test_covered_cores_are_counted_once(settings: Any) -> None:
    switch_on(settings)
    assert decide({"beta": {CORES: [change(A, 4)]}}).rejection_reason == ""
    outcome = decide({"alpha": {CORES: [change(B, 11)]}})
    assert "insufficient CPU cores: 10 available, 11 requested" in outcome.rejection_reason
    assert decide({"alpha": {CORES: [change(B, 10)]}}).rejection_reason == ""


def test_what_if_answers_the_same(liquid: LiquidClient, settings: Any) -> None:
    region()
    Host.objects.filter(name="h2").update(zone="az-c")
    switch_on(settings)
    assert answer({"batch": batch(A, 10, resource=CORES)})["accepted"] is True
    document = answer({"batch": batch(A, 11, resource=CORES)})
    (decision,) = document["decisions"]
    assert decision["message"] == "insufficient CPU cores: 10 available, 11 requested"
    assert decision["fits_now_units"] == 10
    added = {"edit": {"hosts_added": [{"like": "h1", "count": 1}]}}
    assert answer({"batch": batch(A, 26, resource=CORES), **added})["accepted"] is True
    assert answer({"batch": batch(A, 27, resource=CORES), **added})["accepted"] is False


@pytest.mark.django_db(transaction=True)
def test_two_requests_at_once_never_promise_running_cores(settings: Any) -> None:
    """Both read what is left under the lock of the zone."""
    region()
    switch_on(settings)
    assert decide({"gamma": {CORES: [change(A, 1)]}}).rejection_reason == ""

    def fire(number: int) -> bool:
        try:
            asked = change(f"cccccccc-0000-{number:04d}", 3)
            return not decide({f"project-{number}": {CORES: [asked]}}).rejection_reason
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(fire, range(4)))
    assert sum(answers) == 3
    held = Commitment.objects.values_list("accepted_amount", flat=True)
    assert sum(amount or 0 for amount in held) == 10
