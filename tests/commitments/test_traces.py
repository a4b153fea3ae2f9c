"""Whose request a row goes back to (spec commitments, 18)."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest
import structlog
from structlog.contextvars import bound_contextvars

from capacity.models import Reservation
from commitments.domain.limes_intake import Converted
from commitments.models import Commitment, CommitmentEvent
from commitments.services.intake import Intake, take_in_commitments
from commitments.tasks import dispatch_due
from journal.actors import Actor
from journal.tracing import (
    accepted_request_id,
    correlation_id,
    current_global_request_id,
    current_request_id,
    with_global_request_id,
    with_new_global_request_id,
)
from scheduling.resources import GIB
from tests.commitments.change_requests import NOW, change, decide_ram
from tests.commitments.due_rows import A, due, make_all_due, repair
from tests.commitments.test_limes_service import STATE
from tests.factories import make_group, make_host

UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
GLOBAL_ID = re.compile(f"committed-resource-{UUID4}")


class TestIds:
    @pytest.fixture(autouse=True)
    def _nobody_called(self) -> None:
        structlog.contextvars.clear_contextvars()  # the last request of a thread leaves its ids

    def test_new_global_id_is_named_for_what_it_is(self) -> None:
        with with_new_global_request_id() as first:
            assert current_global_request_id() == first
            with with_new_global_request_id() as second:
                assert current_global_request_id() == second != first
            assert current_global_request_id() == first
        assert GLOBAL_ID.fullmatch(first)
        assert GLOBAL_ID.fullmatch(second)

    def test_unset_ids_read_as_nothing(self) -> None:
        assert (current_global_request_id(), current_request_id()) == ("", "")

    def test_both_ids_are_in_every_line(self) -> None:
        with with_global_request_id("g"), bound_contextvars(req="r"):
            assert (current_global_request_id(), current_request_id()) == ("g", "r")
            logged = structlog.contextvars.merge_contextvars(None, "", {"event": "x"})
        assert logged == {"event": "x", "greq": "g", "req": "r"}
        assert structlog.contextvars.get_contextvars() == {}

    def test_id_of_the_caller_becomes_the_global_one(self) -> None:
        assert correlation_id(accepted_request_id("limes-42")) == "committed-resource-limes-42"
        assert GLOBAL_ID.fullmatch(correlation_id(accepted_request_id(None)))


@pytest.mark.django_db
class TestRows:
    @pytest.fixture(autouse=True)
    def _cloud(self) -> None:
        make_group("hana_1", flavors=[("small", 4096, 4)])
        make_host("h1", zone="az-a", memory_gib=16, vcpus=64)

    def slot_ids(self) -> list[str]:
        return list(Reservation.objects.order_by("pk").values_list("creator_request_id", flat=True))

    def test_request_is_kept_on_the_commitment_and_its_slots(self) -> None:
        decide_ram("alpha", change(A, 8))
        assert Commitment.objects.get().creator_request_id == "committed-resource-test-request-1"
        assert self.slot_ids() == ["committed-resource-test-request-1"] * 2

    def test_repair_goes_on_with_the_id_of_the_commitment(self) -> None:
        due(creator_request_id="committed-resource-limes-42")
        repair()
        assert self.slot_ids() == ["committed-resource-limes-42"]
        assert CommitmentEvent.objects.get().request_id == "repair-1"

    def test_slot_that_is_made_again_goes_back_to_the_same_request(self) -> None:
        decide_ram("alpha", change(A, 4))
        Reservation.objects.all().delete()
        make_all_due()
        repair()
        assert self.slot_ids() == ["committed-resource-test-request-1"]

    def test_repair_of_a_commitment_without_one_has_its_own(self) -> None:
        due(end_time=None, next_reconcile_at=NOW - timedelta(days=365))
        dispatch_due()
        (only,) = self.slot_ids()
        assert GLOBAL_ID.fullmatch(only)

    def test_syncer_leaves_its_own(self) -> None:
        intake = Intake(actor=Actor(name="t"), request_id="committed-resource-sync", now=NOW)
        take_in_commitments(
            [(Converted(limes_id=1, state=replace(STATE, flavor_group_name="hana_1")), {})], intake
        )
        row = Commitment.objects.get()
        assert (row.creator_request_id, row.requested_amount) == (
            "committed-resource-sync",
            2 * GIB,
        )
