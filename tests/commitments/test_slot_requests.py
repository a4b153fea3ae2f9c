"""What a slot asks the scheduler for (spec commitments, 9.5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from capacity.groups.flavor_groups import FlavorSpec
from capacity.ledger.placing import place_slots
from capacity.ledger.slot_request import NO_DOMAIN, DomainHint, SlotAsk
from capacity.models import ProjectQuota, Reservation, SchedulingDecision
from capacity.nova.slot_requests import domain_hints
from commitments.models import Commitment
from commitments.services.change import change_commitments
from hosts.models import Domain
from scheduling.engine import SLOT_PIPELINE
from scheduling.evaluation import CompiledPipeline
from scheduling.intents import Intent
from scheduling.resources import GIB, ResourceVector
from scheduling.table import HostTable
from tests.commitments.change_requests import ACTOR, NOW, RAM, change, decide_ram, request
from tests.factories import make_domain, make_group, make_host, make_quota

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
LABELS = {
    "flavor_group": "hana_1",
    "intent": "reserve_for_committed_resource",
    "cr_slot": "slot_missed",
}


def ask(index: int, **fields: Any) -> SlotAsk:
    defaults: dict[str, Any] = {
        "slot_id": None,
        "slot_index": index,
        "slot_name": f"commitment-x-{index}",
        "flavor": FlavorSpec(
            name="small", memory_bytes=8 * GIB, vcpus=2, extra_specs={"quota:hw_version": "g"}
        ),
        "slot": ResourceVector(memory_bytes=4 * GIB, vcpus=2),
        "zone": "az-a",
        "project_id": "alpha",
        "domain": DomainHint(name="monsoon3"),
    }
    return SlotAsk(**{**defaults, **fields})


@pytest.mark.django_db
class TestRequest:
    @pytest.fixture
    def hosts(self) -> HostTable:
        from capacity.host_table import current_host_table  # noqa: PLC0415 - after rows

        make_host("h1", memory_gib=8, vcpus=4)
        make_host("h2", memory_gib=8, vcpus=4)
        return current_host_table()

    def test_slot_asks_for_its_own_size_as_its_flavor(self, hosts: HostTable) -> None:
        (decision,) = place_slots(hosts, [ask(0)])
        assert decision is not None
        request = decision.request
        assert request.request_key == "commitment-x-0"
        assert request.num_instances == 1
        assert (request.project_id, request.zone) == ("alpha", "az-a")
        assert (request.flavor_name, request.memory_bytes) == ("small", 4 * GIB)
        assert request.extra_specs == {"quota:hw_version": "g"}
        assert request.intent is Intent.RESERVE_FOR_COMMITTED_RESOURCE
        assert request.lock_reservations
        assert not request.assume_empty_hosts
        assert request.ignored_kinds == frozenset()
        assert request.domain_name == "monsoon3"

    def test_slots_of_several_pipelines_see_each_other(self, hosts: HostTable) -> None:
        other = CompiledPipeline(
            name="other", filters=SLOT_PIPELINE.filters, weighers=SLOT_PIPELINE.weighers
        )
        asks = [ask(n, pipeline=other if n % 2 else None) for n in range(5)]
        decisions = place_slots(hosts, asks)
        names = [d.host_name if d is not None else None for d in decisions]
        assert sorted(n for n in names if n is not None) == ["h1", "h1", "h2", "h2"]
        assert names[4] is None


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("domain_id", "hint"),
    [
        pytest.param("domain-uuid-1", DomainHint(name="monsoon3"), id="returns monsoon3"),
        pytest.param("unknown", DomainHint(is_unresolved=True), id="fails"),
        pytest.param("", NO_DOMAIN, id="no domain"),
    ],
)
def test_domain_is_told_by_name(domain_id: str, hint: DomainHint) -> None:
    make_domain("domain-uuid-1", name="monsoon3")
    assert domain_hints([domain_id]).get(domain_id, NO_DOMAIN) == hint


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("told", "hint"),
    [
        pytest.param("monsoon3", DomainHint(name="monsoon3"), id="told"),
        pytest.param("", DomainHint(is_unresolved=True), id="not told"),
    ],
)
def test_domain_that_no_list_names_has_the_name_told_with_a_quota(
    told: str, hint: DomainHint
) -> None:
    row = make_quota("alpha")
    ProjectQuota.objects.filter(pk=row.pk).update(domain_id="not-listed", domain_name=told)
    assert domain_hints(["not-listed"]) == {"not-listed": hint}


def use_pipelines(settings: Any, pipelines: dict[str, str]) -> None:
    slots = settings.HEADROOM.slots.model_copy(update={"group_pipelines": pipelines})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"slots": slots})


@pytest.mark.django_db
class TestPipelines:
    @pytest.fixture(autouse=True)
    def _cloud(self) -> None:
        make_group("hana_1", flavors=[("small", 1024, 1)])
        make_host("h1", memory_gib=8, vcpus=8)

    @pytest.mark.parametrize(
        ("pipelines", "name"),
        [
            pytest.param({}, "slot-bin-packing", id="none chosen"),
            pytest.param(
                {"hana_1": "kvm-hana-bin-packing", "*": "x"}, "kvm-hana-bin-packing", id="by name"
            ),
            pytest.param({"*": "kvm-hana-bin-packing"}, "kvm-hana-bin-packing", id="every other"),
            pytest.param({"*": "unknown"}, "slot-bin-packing", id="unknown"),
        ],
    )
    def test_operator_chooses_by_group(
        self, settings: Any, pipelines: dict[str, str], name: str
    ) -> None:
        use_pipelines(settings, pipelines)
        make_domain("domain-1", name="monsoon3")
        assert not decide_ram("alpha", change(A, 1)).rejection_reason
        decision = Reservation.objects.get().decision
        assert decision is not None
        assert decision["pipeline"] == name

    def test_placing_a_slot_leaves_the_slot_alone(self) -> None:
        """Options of 9.5: no history, no room held in flight, no tracking, one candidate."""
        placed = REGISTRY.get_sample_value("cortex_nova_placement_total", LABELS)
        assert not decide_ram("alpha", change(A, 1)).rejection_reason
        assert decide_ram("alpha", change(B, 99)).rejection_reason
        assert set(Reservation.objects.values_list("kind", flat=True)) == {"committed"}
        assert not SchedulingDecision.objects.exists()
        assert REGISTRY.get_sample_value("cortex_nova_placement_total", LABELS) == placed
        assert not Reservation.objects.get().allocations.exists()

    @pytest.mark.parametrize(("told", "is_accepted"), [("monsoon3", True), ("", False)])
    def test_domain_that_no_list_names_has_the_name_that_limes_tells(
        self, told: str, is_accepted: bool
    ) -> None:
        Domain.objects.all().delete()
        asked = request({"alpha": {RAM: [change(A, 1)]}})
        projects = {
            name: replace(project, domain_name=told) for name, project in asked.by_project.items()
        }
        outcome = change_commitments(
            replace(asked, by_project=projects), actor=ACTOR, request_id="req-1", now=NOW
        )
        assert (outcome.rejection_reason == "") is is_accepted

    def test_unknown_domain_waits_where_customers_are_kept_apart(self, settings: Any) -> None:
        """Fail closed: without its name a slot might land on a host it must not use."""
        Domain.objects.all().delete()
        use_pipelines(settings, {"*": "kvm-general-purpose-load-balancing"})
        outcome = decide_ram("alpha", change(A, 1))
        assert "insufficient capacity: 0/1" in outcome.rejection_reason
        assert not Commitment.objects.exists()
        make_domain("domain-1", name="monsoon3")
        assert not decide_ram("alpha", change(A, 1)).rejection_reason
