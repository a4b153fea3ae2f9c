"""The workflows of Limes (spec liquid, 12.1), accepted once and the same when they are repeated.

On our 401 Limes logs in again and sends the same request, with the same uuids, once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest

from capacity.figures.group_capacity import ensure_totals
from commitments.domain.changeset import CommitmentChange
from tests.commitments.change_requests import NOW, RAM, change, decide
from tests.factories import make_group, make_host
from tests.ledger import assert_rooms_add_up, database_fingerprint, unchanged_since

pytestmark = pytest.mark.django_db

A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
C = "cccccccc-0000-4000-8000-000000000003"
OTHER_RAM = "hw_version_gp_1_ram"

Changes = Mapping[str, Mapping[str, Sequence[CommitmentChange]]]


@pytest.fixture(autouse=True)
def cloud() -> None:
    """Two groups of 1 and 2 GiB flavors on one host of 10 GiB in az-a."""
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    make_group("gp_1", flavors=[("gp-small", 2048, 4)], ram_unit_gib=1)
    make_host("h1", zone="az-a", memory_gib=10, vcpus=40)
    ensure_totals("az-a")
    decide({})  # settles the info version


LATER = NOW + timedelta(days=400)
WORKFLOWS: dict[str, tuple[list[Changes], Changes]] = {
    "create without confirm_by": ([], {"alpha": {RAM: [change(A, 4)]}}),
    "create with confirm_by": (
        [],
        {"alpha": {RAM: [change(A, 4, "planned", confirm_by=LATER)]}},
    ),
    "v2 create with status pending": ([], {"alpha": {RAM: [change(A, 4, "pending")]}}),
    "confirm a pending one": (
        [{"alpha": {RAM: [change(A, 4, "pending")]}}],
        {"alpha": {RAM: [change(A, 4, old="pending")]}},
    ),
    "confirm by consumption": (
        [{"alpha": {RAM: [change(A, 5)]}}, {"beta": {RAM: [change(B, 2, "pending")]}}],
        {
            "beta": {RAM: [change(B, 2, old="pending")]},
            "alpha": {RAM: [change(C, 3), change(A, 5, "superseded", old="confirmed")]},
        },
    ),
    "merge": (
        [{"alpha": {RAM: [change(A, 2), change(B, 3)]}}],
        {
            "alpha": {
                RAM: [
                    change(C, 5, expires_at=LATER),
                    change(A, 2, "superseded", old="confirmed"),
                    change(B, 3, "superseded", old="confirmed"),
                ]
            }
        },
    ),
    "renew": (
        [{"alpha": {RAM: [change(A, 4)]}}],
        {"alpha": {RAM: [change(B, 4, "planned", confirm_by=LATER)]}},
    ),
    "start transfer of a part": (
        [{"alpha": {RAM: [change(A, 5)]}}],
        {"alpha": {RAM: [change(A, 5, "superseded", old="confirmed"), change(B, 2), change(C, 3)]}},
    ),
    "transfer": (
        [{"alpha": {RAM: [change(A, 4)]}}],
        {"alpha": {RAM: [change(A, 4, None, old="confirmed")]}, "beta": {RAM: [change(A, 4)]}},
    ),
    "transfer of a planned one": (
        [{"zeta": {RAM: [change(A, 4, "planned")]}}],
        {
            "zeta": {RAM: [change(A, 4, None, old="planned")]},
            "beta": {RAM: [change(A, 4, "planned")]},
        },
    ),
    "convert a part": (
        [{"alpha": {RAM: [change(A, 5)]}}],
        {
            "alpha": {
                RAM: [change(A, 5, "superseded", old="confirmed"), change(B, 3)],
                OTHER_RAM: [change(C, 2)],
            }
        },
    ),
    "change duration": (
        [{"alpha": {RAM: [change(A, 4)]}}],
        {
            "alpha": {
                RAM: [
                    change(
                        A,
                        4,
                        old="confirmed",
                        expires_at=LATER,
                        old_expires_at=NOW + timedelta(days=365),
                    )
                ]
            }
        },
    ),
    "delete": (
        [{"alpha": {RAM: [change(A, 4)]}}],
        {"alpha": {RAM: [change(A, 4, None, old="confirmed")]}},
    ),
}


@pytest.mark.parametrize(("before", "asked"), WORKFLOWS.values(), ids=list(WORKFLOWS))
def test_workflow_of_limes_is_accepted_and_the_same_again_changes_nothing(
    before: list[Changes], asked: Changes
) -> None:
    for changes in before:
        assert decide(changes).rejection_reason == ""
    first = decide(asked)
    assert (first.status, first.rejection_reason) == (200, "")
    done = database_fingerprint()
    again = decide(asked, now=NOW + timedelta(minutes=1))
    assert again == first
    assert unchanged_since(done)
    assert_rooms_add_up()
