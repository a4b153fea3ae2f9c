from __future__ import annotations

import pytest

from capacity.groups.group_settings import GroupSettings, ResourceFlags, settings_for_group

EXACT = GroupSettings(ram=ResourceFlags(handles_commitments=True), ram_unit_gib=480)
ANY = GroupSettings(cores=ResourceFlags(has_quota=True, has_capacity=True))


@pytest.mark.parametrize(
    ("group", "expected"), [("hana", EXACT), ("general", ANY), ("*", ANY), ("", ANY)]
)
def test_the_exact_name_wins_over_the_catch_all(group: str, expected: GroupSettings) -> None:
    assert settings_for_group({"hana": EXACT, "*": ANY}, group) == expected


def test_an_exact_match_is_not_merged_with_the_catch_all() -> None:
    found = settings_for_group({"hana": EXACT, "*": ANY}, "hana")

    assert not found.cores.has_quota
    assert found.ram_unit_mib == 480 * 1024


def test_without_any_match_everything_is_off_and_the_unit_is_one_gib() -> None:
    found = settings_for_group({"hana": EXACT}, "general")

    assert found.ram == found.cores == found.instances == ResourceFlags()
    assert not any(
        (
            found.ram.handles_commitments,
            found.ram.handles_dry_run,
            found.ram.has_capacity,
            found.ram.has_quota,
        )
    )
    assert found.ram_unit_mib == 1024
