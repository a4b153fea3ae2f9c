"""Renewals of cores take over what ends, as those of memory do (spec liquid, 11.3; decisions)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest
from django.db import transaction
from django.db.models import Sum
from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.changeset import CommitmentChange
from commitments.domain.statuses import CommitmentStatus
from commitments.models import Commitment
from tests.commitments.change_requests import CORES, NOW, change, decide
from tests.commitments.due_rows import repair
from tests.examples import few
from tests.factories import make_group, make_host
from tests.process_tables import reset_host_table

OLD = "aaaaaaaa-0000-4000-8000-000000000001"
NEW = "bbbbbbbb-0000-4000-8000-000000000002"
RIVAL = "cccccccc-0000-4000-8000-000000000003"
LATE = "dddddddd-0000-4000-8000-000000000004"
END = NOW + timedelta(days=30)
LATER = END + timedelta(minutes=20)
FAR = END + timedelta(days=365)
VCPUS = 8

pytestmark = pytest.mark.django_db


@pytest.fixture
def _zone() -> None:
    """A zone of eight cores."""
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_host("h1", zone="az-a", memory_gib=VCPUS, vcpus=VCPUS)


def ask(project: str, *changes: CommitmentChange, now: datetime = NOW) -> str:
    outcome = decide({project: {CORES: changes}}, now=now)
    assert outcome.status == 200
    return outcome.rejection_reason


def sell_and_renew() -> None:
    """Sell all cores, renew, and have a rival wait for any."""
    assert ask("alpha", change(OLD, VCPUS, expires_at=END)) == ""
    assert ask("alpha", change(NEW, VCPUS, "planned", confirm_by=END, expires_at=FAR)) == ""
    assert ask("aaa", change(RIVAL, 1, "pending", expires_at=FAR)) == ""


def confirm(amount: int = VCPUS, now: datetime = LATER) -> str:
    asked = change(NEW, amount, old="planned", confirm_by=END, expires_at=FAR)
    return ask("alpha", asked, now=now)


def held(uuid: str) -> int:
    return Commitment.objects.get(commitment_uuid=uuid).accepted_amount or 0


def all_held() -> int:
    return int(Commitment.objects.aggregate(sum=Sum("accepted_amount", default=0))["sum"])


@pytest.mark.usefixtures("_zone")
def test_a_renewal_keeps_the_cores_between_the_old_end_and_its_confirmation() -> None:
    sell_and_renew()
    repair(END)
    assert (held(OLD), held(NEW), held(RIVAL)) == (0, VCPUS, 0)
    assert Commitment.objects.get(commitment_uuid=NEW).state == CommitmentStatus.PLANNED
    repair(END + timedelta(minutes=10))
    assert (held(NEW), held(RIVAL)) == (VCPUS, 0)
    refused = ask("gamma", change(LATE, 1, expires_at=FAR), now=LATER)
    assert "insufficient CPU cores: 0 available, 1 requested" in refused
    assert confirm() == ""
    assert (held(NEW), all_held()) == (VCPUS, VCPUS)


@pytest.mark.usefixtures("_zone")
def test_nobody_comes_between_the_end_and_the_repair_that_sees_it() -> None:
    sell_and_renew()
    refused = ask("gamma", change(LATE, 1, expires_at=FAR), now=END)
    assert "insufficient CPU cores: 0 available, 1 requested" in refused
    assert confirm(now=END) == ""
    repair(END)
    assert (held(NEW), all_held()) == (VCPUS, VCPUS)


@pytest.mark.usefixtures("_zone")
def test_cores_that_nobody_takes_over_are_free_at_the_end() -> None:
    assert ask("alpha", change(OLD, VCPUS, expires_at=END)) == ""
    assert ask("beta", change(RIVAL, VCPUS, expires_at=FAR), now=END) == ""
    repair(END)
    assert (held(OLD), held(RIVAL)) == (0, VCPUS)


@pytest.mark.usefixtures("_zone")
def test_a_renewal_that_is_deleted_gives_its_cores_to_who_waits() -> None:
    sell_and_renew()
    repair(END)
    assert ask("alpha", change(NEW, VCPUS, None, old="planned"), now=LATER) == ""
    repair(LATER + timedelta(hours=1))
    assert held(RIVAL) == 1


@pytest.mark.usefixtures("_zone")
def test_a_planned_commitment_without_predecessor_holds_no_cores() -> None:
    assert ask("alpha", change(NEW, 1, "planned", confirm_by=END, expires_at=FAR)) == ""
    repair(LATER)
    assert held(NEW) == 0


@pytest.mark.usefixtures("_zone")
def test_others_of_the_zone_do_not_inherit_cores() -> None:
    assert ask("alpha", change(OLD, VCPUS, expires_at=END)) == ""
    assert ask("gamma", change(NEW, VCPUS, "planned", confirm_by=END, expires_at=FAR)) == ""
    repair(END)
    assert (held(OLD), held(NEW)) == (0, 0)


@pytest.mark.usefixtures("_zone")
def test_a_split_of_cores_is_not_spoiled_by_who_is_asked_first() -> None:
    assert ask("beta", change(OLD, VCPUS)) == ""
    split = [change(OLD, VCPUS, "superseded", old="confirmed"), change(NEW, 3), change(LATE, 5)]
    first = [change(RIVAL, 1, "guaranteed")]
    outcome = decide({"aaa": {CORES: first}, "beta": {CORES: split}})
    assert f"commitment {RIVAL}: insufficient CPU cores: 0 available" in outcome.rejection_reason
    assert NEW not in outcome.rejection_reason
    assert LATE not in outcome.rejection_reason


@given(
    amounts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    renewed=st.integers(1, VCPUS),
    chunk=st.integers(1, 3),
)
@few(10)
def test_no_renewal_of_cores_up_to_what_ended_ever_fails(
    amounts: list[int], renewed: int, chunk: int
) -> None:
    with a_world():
        ended = 0
        for number, amount in enumerate(amounts):
            uuid = f"{OLD[:-2]}{number:02}"
            ended += amount if ask("alpha", change(uuid, amount, expires_at=END)) == "" else 0
        ask("alpha", change(NEW, renewed, "planned", confirm_by=END, expires_at=FAR))
        ask("aaa", change(RIVAL, VCPUS, "pending", expires_at=FAR))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("commitments.services.repair.CHUNK_ROWS", chunk)
            repair(END)
        assert held(NEW) in {0, renewed}
        if renewed <= ended:
            assert held(NEW) == renewed
            assert confirm(renewed) == ""
        assert all_held() <= VCPUS


@contextmanager
def a_world() -> Iterator[None]:
    """Give one example a zone of its own, and take it away again."""
    savepoint = transaction.atomic()
    savepoint._from_testcase = True  # type: ignore[attr-defined]  # set by Django itself
    with savepoint:
        make_group("hana_1", flavors=[("small", 1024, 1)])
        make_host("h1", zone="az-a", memory_gib=VCPUS, vcpus=VCPUS)
        reset_host_table()
        yield
        transaction.set_rollback(True)
    reset_host_table()
