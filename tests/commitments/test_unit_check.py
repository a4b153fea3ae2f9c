"""A RAM unit that stored commitments are no multiple of is refused (spec liquid, 12.2)."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from capacity.groups.editing import remove_group_settings, save_group_settings
from capacity.models import FlavorGroupSettings
from commitments.models import Commitment
from journal.actors import Actor
from journal.errors import InvalidInput
from tests.commitments.change_requests import change, decide_ram
from tests.factories import make_commitment, make_group, make_group_settings, make_host
from tests.hosts.region_files import load

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


def remove(group_name: str) -> None:
    remove_group_settings(group_name=group_name, actor=Actor(name="operator"), request_id="r")


def units() -> dict[str, int]:
    return dict(FlavorGroupSettings.objects.values_list("group_name", "ram_unit_gib"))


@pytest.mark.parametrize(
    ("amount_gib", "stored", "removed", "is_accepted"),
    [
        pytest.param(4, {"hana_1": 2, "*": 4}, "hana_1", True, id="* speaks for the group"),
        pytest.param(6, {"hana_1": 2, "*": 4}, "hana_1", False, id="* does not divide"),
        pytest.param(6, {"hana_1": 2}, "hana_1", True, id="1 GiB when there is no *"),
        pytest.param(5, {"hana_1": 2, "*": 2}, "hana_1", True, id="the unit stays"),
        pytest.param(5, {"hana_1": 1, "*": 4}, "*", True, id="* does not speak for the group"),
    ],
)
def test_removed_settings_leave_a_unit_that_divides_every_amount(
    amount_gib: int, stored: dict[str, int], removed: str, *, is_accepted: bool
) -> None:
    for name, unit_gib in stored.items():
        make_group_settings(name, ram_unit_gib=unit_gib)
    make_commitment("aaaaaaaa-000001", amount_gib=amount_gib)
    if is_accepted:
        remove(removed)
    else:
        with pytest.raises(InvalidInput, match=r"must stay: .* no multiple of 4 GiB"):
            remove(removed)
    assert (removed in units()) is not is_accepted


def test_settings_that_repeat_the_unit_in_force_are_not_asked_about_old_amounts() -> None:
    make_group_settings("*", ram_unit_gib=4)
    make_commitment("aaaaaaaa-000001", amount_gib=5)
    set_unit("hana_1", 4)
    assert units() == {"*": 4, "hana_1": 4}


@pytest.mark.parametrize(
    ("age_days", "is_accepted"), [(0, False), (400, True)], ids=["Limes keeps it", "forgotten"]
)
def test_deleted_commitment_counts_as_long_as_limes_keeps_it(
    monkeypatch: pytest.MonkeyPatch, age_days: int, *, is_accepted: bool
) -> None:
    make_group("hana_1", flavors=[("small", 1024, 4)], ram_unit_gib=1)
    make_host(memory_gib=10, vcpus=40)
    decide_ram("alpha", change("aaaaaaaa-000001", 5))
    decide_ram("alpha", change("aaaaaaaa-000001", 5, None, old="confirmed"))
    assert not Commitment.objects.exists()
    later = timezone.now() + timedelta(days=age_days)
    monkeypatch.setattr("commitments.hooks_capacity.database_now", lambda: later)
    if is_accepted:
        set_unit("hana_1", 2)
    else:
        with pytest.raises(InvalidInput, match="1 commitments, ended ones included"):
            set_unit("hana_1", 2)


def region(tmp_path: Path, **unit_by_group: int) -> Path:
    path = tmp_path / "region.json"
    groups = {name: {"ram_unit_gib": unit} for name, unit in unit_by_group.items()}
    path.write_text(json.dumps({"headroom": {"flavor_groups": groups}}))
    return path


@pytest.mark.parametrize(
    ("amount_gib", "stored", "wanted", "is_accepted"),
    [
        pytest.param(5, {"hana_1": 1}, {"hana_1": 2}, False, id="unit that does not divide"),
        pytest.param(6, {"hana_1": 1}, {"hana_1": 2}, True, id="unit that divides"),
        pytest.param(5, {"*": 1}, {"*": 2, "hana_1": 1}, True, id="own settings beside *"),
        pytest.param(5, {"*": 1, "hana_1": 1}, {"*": 2}, False, id="own settings pruned"),
        pytest.param(5, {"*": 2, "hana_1": 1}, {}, True, id="everything pruned"),
    ],
)
def test_region_file_is_held_to_the_units_that_apply_in_the_end(
    tmp_path: Path,
    amount_gib: int,
    stored: dict[str, int],
    wanted: dict[str, int],
    *,
    is_accepted: bool,
) -> None:
    for name, unit_gib in stored.items():
        make_group_settings(name, ram_unit_gib=unit_gib)
    make_commitment("aaaaaaaa-000001", amount_gib=amount_gib)
    path = region(tmp_path, **wanted)
    if is_accepted:
        load(path, prune=True)
    else:
        with pytest.raises(InvalidInput, match=r"flavor group .* no multiple of 2 GiB"):
            load(path, prune=True)
    assert units() == (wanted if is_accepted else stored)


class TestAdmin:
    """The admin says no on its page, and never breaks."""

    def test_unit_that_does_not_divide_is_an_error_of_its_field(self, admin_client: Client) -> None:
        row = make_group_settings("hana_1", ram_unit_gib=1)
        make_commitment("aaaaaaaa-000001", amount_gib=5)
        url = reverse("admin:capacity_flavorgroupsettings_change", args=[row.pk])
        answer = admin_client.post(url, {"ram_unit_gib": "2"})
        assert answer.status_code == 200
        assert "no multiple of 2 GiB" in answer.content.decode()
        assert units() == {"hana_1": 1}

    def test_settings_that_must_stay_are_not_deleted(self, admin_client: Client) -> None:
        row = make_group_settings("hana_1", ram_unit_gib=1)
        make_group_settings("*", ram_unit_gib=2)
        make_commitment("aaaaaaaa-000001", amount_gib=5)
        url = reverse("admin:capacity_flavorgroupsettings_delete", args=[row.pk])
        answer = admin_client.post(url, {"post": "yes"}, follow=True)
        assert "must stay" in answer.content.decode()
        assert units() == {"hana_1": 1, "*": 2}
