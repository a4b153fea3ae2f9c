"""``placement_export`` and reading it back (spec placement, 10.3)."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from uuid import uuid4

import orjson
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from placement.selectors.contents import read_contents
from placement.services.names import ensure_class
from tests.placement.client import drift
from tests.placement.rows import grow_providers

pytestmark = pytest.mark.django_db(transaction=True)


def empty_tables() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE placement_provider, placement_consumer CASCADE")


@pytest.mark.sql("set_inventories")
def test_what_was_exported_is_imported_into_empty_tables(tmp_path: Path) -> None:
    for name in ("h1", "h2"):
        grow_providers(name, consumer_uuid=uuid4())
    ensure_class("CUSTOM_SPARE")
    stored = read_contents()
    file = tmp_path / "placement.jsonl"
    call_command("placement_export", "--output", str(file))
    empty_tables()
    assert read_contents() != stored
    out = StringIO()
    call_command("placement_import", "--from-file", str(file), "--json", stdout=out)
    assert orjson.loads(out.getvalue())["written"]["new providers"] == 4
    copied = read_contents()
    assert copied.consumers == stored.consumers
    assert {uuid: provider.inventories for uuid, provider in copied.providers.items()} == {
        uuid: provider.inventories for uuid, provider in stored.providers.items()
    }
    assert copied.classes == stored.classes
    assert drift() == []
    again = StringIO()
    call_command("placement_import", "--from-file", str(file), "--json", stdout=again)
    assert not any(orjson.loads(again.getvalue())["written"].values())


def test_an_export_goes_to_standard_output_when_no_file_is_named() -> None:
    grow_providers("h1", consumer_uuid=uuid4())
    out = StringIO()
    call_command("placement_export", stdout=out)
    first, *rest = out.getvalue().splitlines()
    assert orjson.loads(first) == {"format": "headroom-placement", "version": 1}
    assert [orjson.loads(line)["provider"]["name"] for line in rest if '"provider"' in line] == [
        "h1",
        "h1-cell",
    ]


def test_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text("{}\n")
    for file in (damaged, tmp_path / "missing"):
        with pytest.raises(CommandError, match="nothing was imported"):
            call_command("placement_import", "--from-file", str(file))
    with pytest.raises(CommandError, match="No such file"):
        call_command("placement_export", "--output", str(tmp_path / "missing" / "file"))
