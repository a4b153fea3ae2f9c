"""A RAM unit that stored commitments are no multiple of is refused (spec liquid, 12.2)."""

from __future__ import annotations

import pytest

from capacity.models import FlavorGroupSettings
from capacity.services.group_settings import save_group_settings
from journal.actors import Actor
from journal.errors import InvalidInput
from tests.factories import make_commitment, make_group_settings

pytestmark = pytest.mark.django_db


def set_unit(group_name: str, gib: int) -> None:
    save_group_settings(
        group_name=group_name,
        settings={"ram_unit_gib": gib},
        actor=Actor(name="operator"),
        request_id="r",
    )


@pytest.mark.parametrize(
    ("amounts_gib", "unit_gib", "is_accepted"),
    [
        ((64, 96), 32, True),
        ((64, 80), 32, False),
        ((64, 80), 8, True),
        ((), 32, True),
    ],
    ids=["amounts 4 and 6", "there was a 5", "16 GiB to 8 GiB always works", "no commitments"],
)
@pytest.mark.parametrize("state", ["confirmed", "superseded", "expired"])
def test_unit_has_to_divide_every_amount_limes_may_keep(
    amounts_gib: tuple[int, ...], unit_gib: int, *, is_accepted: bool, state: str
) -> None:
    make_group_settings("hana_1", ram_unit_gib=16)
    for number, amount_gib in enumerate(amounts_gib):
        make_commitment(f"aaaaaaaa-{number:06}", amount_gib=amount_gib, state=state)
    if is_accepted:
        set_unit("hana_1", unit_gib)
    else:
        with pytest.raises(InvalidInput, match="1 commitments, ended ones included"):
            set_unit("hana_1", unit_gib)
    stored = FlavorGroupSettings.objects.get().ram_unit_gib
    assert stored == (unit_gib if is_accepted else 16)


def test_catch_all_speaks_for_groups_without_settings_of_their_own() -> None:
    make_commitment("aaaaaaaa-000001", amount_gib=5)
    make_group_settings("hana_1", ram_unit_gib=1)
    set_unit("*", 2)
    FlavorGroupSettings.objects.filter(group_name="hana_1").delete()
    with pytest.raises(InvalidInput, match="no multiple of 4 GiB"):
        set_unit("*", 4)


def test_cores_and_other_groups_do_not_matter() -> None:
    make_commitment("aaaaaaaa-000001", resource_type="cores", requested_amount=5)
    make_commitment("aaaaaaaa-000002", amount_gib=5, group="gp_1")
    set_unit("hana_1", 4)
    assert FlavorGroupSettings.objects.get().ram_unit_gib == 4
