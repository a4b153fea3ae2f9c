from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from config.environment import load_environment, secret_files, setting_names
from config.reference import configuration_page
from tests.docs.tour import ROOT

PAGE = ROOT / "docs" / "configuration.md"
DEBUG = {"HEADROOM_DEBUG": "true"}


def test_configuration_page_is_what_the_code_says() -> None:
    call_command("export_configuration", check=True)


def test_check_fails_when_the_page_is_out_of_date(settings: Any, tmp_path: Path) -> None:
    settings.BASE_DIR = tmp_path
    (tmp_path / "docs").mkdir()
    with pytest.raises(CommandError, match="out of date"):
        call_command("export_configuration", check=True)
    call_command("export_configuration", stdout=io.StringIO())
    call_command("export_configuration", check=True)
    page = tmp_path / "docs" / "configuration.md"
    page.write_text(page.read_text().replace("`10.0`", "`11.0`"))
    with pytest.raises(CommandError, match="out of date"):
        call_command("export_configuration", check=True)


def test_every_setting_is_on_the_page_with_a_meaning() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", page, re.MULTILINE))
    names = set(setting_names())
    groups = {name for name in names if any(other.startswith(f"{name}__") for other in names)}
    secrets = secret_files()
    wanted = names - groups - secrets
    assert wanted | {"DATABASE_URL", "REDIS_URL", "PROMETHEUS_MULTIPROC_DIR"} == set(rows)
    for name in set(setting_names()) - wanted:
        assert name in page
    for name, cells in rows.items():
        assert all(cell.strip() for cell in re.split(r"(?<!\\)\|", cells)), name


def test_defaults_on_the_page_are_accepted_values() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(HEADROOM_\w+)` \|[^|]*\| `([^`]*)` \|", page, re.MULTILINE)
    assert len(rows) > 20
    given = load_environment({**dict(rows), "HEADROOM_DEBUG": "true"})
    assert given == load_environment(DEBUG)


def test_a_group_may_be_given_as_json_and_single_variables_win() -> None:
    given = load_environment(
        {
            **DEBUG,
            "HEADROOM_LIQUID": '{"enable_quota": false, "max_body_mib": 7}',
            "HEADROOM_LIQUID__MAX_BODY_MIB": "9",
        }
    )
    assert not given.liquid.enable_quota
    assert given.liquid.max_body_mib == 9


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("s" * 40 + "\n")
    given = load_environment({"HEADROOM_SECRET_KEY_FILE": str(path)})
    assert given.secret_key is not None
    assert given.secret_key.get_secret_value() == "s" * 40


def test_page_does_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = configuration_page()
    monkeypatch.setenv("HEADROOM_LOG_LEVEL", "ERROR")
    assert configuration_page() == before
