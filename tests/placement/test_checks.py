from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings as django_settings
from django.core.checks import run_checks
from django.core.management import CommandError, call_command

from capacity.models import GroupCapacity
from placement.checks import TAG
from placement.models import Inventory, Trait
from tests.placement.rows import allocate, make_provider


def configure(settings: Any, **placement: object) -> None:
    """Change settings of the deployment for one test."""
    known = django_settings.HEADROOM
    changed = known.placement.model_copy(update=placement)
    settings.HEADROOM = known.model_copy(update={"placement": changed})


def ids() -> list[str | None]:
    return [message.id for message in run_checks(tags=[TAG])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param('"placement:usages": "@"', [], id="fine"),
        pytest.param("", [], id="empty"),
        pytest.param("[", ["placement.E001"], id="not YAML"),
        pytest.param("- a", ["placement.E001"], id="a list"),
        pytest.param('"placement:dance": "@"', ["placement.W002"], id="unknown rule"),
    ],
)
def test_the_policy_file_is_looked_at(
    settings: Any, tmp_path: Path, text: str, expected: list[str]
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    configure(settings, policy_file=str(path))

    assert ids() == expected


def test_a_missing_policy_file_is_an_error(settings: Any) -> None:
    configure(settings, policy_file="/gone/policy.yaml")

    assert ids() == ["placement.E001"]


def run_check(*arguments: str) -> str:
    out = StringIO()
    call_command("placement_check", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
class TestCommand:
    @pytest.fixture(autouse=True)
    def _closed(self, settings: Any) -> None:
        configure(settings)

    def test_a_sound_installation_passes(self) -> None:
        assert run_check() == "ok, 0 warnings\n"

    def test_it_says_how_many_hosts_nova_should_ask_for(self) -> None:
        for zone, name, hosts in (("a", "small", 3), ("b", "small", 4), ("a", "large", 6)):
            row, _ = GroupCapacity.objects.get_or_create(group_name=f"of-{name}", zone=zone)
            for flavor, fewer in (("one", 0), ("two", 1)):
                row.flavors.create(flavor_name=flavor, total_hosts=hosts - fewer)

        assert run_check().splitlines()[0] == (
            "note: flavor group of-small may use 7 hosts, more than any other: "
            "max_placement_results of Nova should be 7 or more"
        )

    def test_drift_is_an_error(self) -> None:
        host = make_provider("h1", inventories={"VCPU": 8})
        allocate(uuid4(), {host: {"VCPU": 2}})
        Inventory.objects.update(used=3)

        with pytest.raises(CommandError, match="1 errors, 0 warnings"):
            run_check()

    def test_missing_standard_names_are_an_error_until_they_are_inserted(self) -> None:
        Trait.objects.filter(name="HW_CPU_X86_AVX").delete()
        with pytest.raises(CommandError, match="1 errors"):
            run_check()
        out = StringIO()

        call_command("placement_sync_standards", stdout=out)

        assert out.getvalue() == "1 names were new\n"
        assert run_check() == "ok, 0 warnings\n"

    def test_warnings_fail_when_asked_to(self, settings: Any, tmp_path: Path) -> None:
        path = tmp_path / "policy.yaml"
        path.write_text('"placement:dance": "@"')
        configure(settings, policy_file=str(path))

        assert run_check().endswith("ok, 1 warnings\n")
        with pytest.raises(CommandError, match="0 errors, 1 warnings"):
            run_check("--fail-on-warning")
