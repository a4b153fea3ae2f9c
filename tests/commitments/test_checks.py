"""What `manage.py check --database default` says of units (spec commitments, 3.3)."""

from __future__ import annotations

import pytest
from django.core.checks import Tags, run_checks
from django.db import connection

from capacity.models import FlavorGroupSettings
from tests.factories import make_group, make_group_settings

pytestmark = pytest.mark.django_db
FIXED = [("s", 2048, 1), ("l", 4096, 2)]
VARIABLE = [("s", 2048, 1), ("l", 4096, 4)]


def said() -> list[tuple[str, str]]:
    found = run_checks(tags=[Tags.database], databases=["default"])
    return [(str(one.id), one.msg) for one in found if str(one.id).startswith("commitments.")]


@pytest.mark.parametrize(
    ("flavors", "unit_gib", "problem"),
    [
        pytest.param(FIXED, 2, None, id="fixed ratio, unit of the smallest flavor"),
        pytest.param(
            FIXED, 1, "one unit is 1 GiB, but the smallest flavor has 2 GiB", id="fixed, differs"
        ),
        pytest.param(FIXED, 0, "ram_unit_gib is unset, one unit is 1 GiB", id="fixed, unset"),
        pytest.param(VARIABLE, 1, None, id="variable ratio, 1 GiB"),
        pytest.param(VARIABLE, 0, "ram_unit_gib is unset, one unit is 1 GiB", id="variable, unset"),
    ],
)
def test_unit_that_differs_from_that_of_the_flavors_is_told(
    flavors: list[tuple[str, int, int]], unit_gib: int, problem: str | None
) -> None:
    make_group("g", flavors=flavors, ram_unit_gib=unit_gib)
    assert said() == ([("commitments.W001", f"flavor group g: {problem}")] if problem else [])


def test_groups_are_told_in_order_of_their_names() -> None:
    for name in ("b", "a"):
        make_group(name, flavors=[(f"{name}-s", 2048, 1)])
    assert [text.split(":")[0] for _, text in said()] == ["flavor group a", "flavor group b"]


def test_catch_all_speaks_for_groups_without_settings() -> None:
    make_group("g", flavors=FIXED, ram_unit_gib=2)
    FlavorGroupSettings.objects.all().delete()
    make_group_settings("*", ram_unit_gib=1)
    assert len(said()) == 1


def test_no_settings_at_all_are_told() -> None:
    make_group("g", flavors=FIXED)
    FlavorGroupSettings.objects.all().delete()
    assert [code for code, _ in said()] == ["commitments.I001"]


def test_nothing_is_said_before_groups_are_known() -> None:
    assert said() == []


def test_nothing_is_said_while_there_are_no_tables() -> None:
    make_group("g", flavors=FIXED)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE capacity_flavorgroupsnapshot RENAME TO elsewhere")
        cursor.execute("SAVEPOINT before_the_check")
        assert said() == []
        cursor.execute("ROLLBACK TO SAVEPOINT before_the_check")
