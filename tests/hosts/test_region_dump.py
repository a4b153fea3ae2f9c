from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from commitments.models import Commitment
from hosts.models import Instance
from hosts.region.generator.plan import GeneratorOptions
from hosts.region.generator.write import generate_region
from scheduling.resources import GIB
from tests.examples import scaled
from tests.hosts.region_files import (
    LIMES,
    REGION,
    dump,
    empty_database,
    load,
    small_region,
    write_file,
)

pytestmark = pytest.mark.django_db


def assert_round_trip(tmp_path: Path, *, with_ended: bool = False) -> bytes:
    first = dump(with_ended=with_ended)
    path = tmp_path / "dump.json"
    path.write_bytes(first)
    empty_database()
    load(path, with_ended=with_ended)
    assert dump(with_ended=with_ended) == first
    return first


def test_the_real_dump_round_trips_and_changes_nothing_in_its_own_database(tmp_path: Path) -> None:
    load(REGION, LIMES)
    path = tmp_path / "own.json"
    path.write_bytes(dump())
    report = load(path)
    assert [counts.section for counts in report.counts.values() if counts.changed] == []
    content = json.loads(assert_round_trip(tmp_path))
    assert len(content["compute"]["servers"]) == 53
    assert len(content["limes"]["commitments"]) == 10


def test_the_real_dump_round_trips_with_ended_and_placed_commitments(tmp_path: Path) -> None:
    load(REGION, LIMES, place=True, with_ended=True)
    content = json.loads(assert_round_trip(tmp_path, with_ended=True))
    assert len(content["limes"]["commitments"]) == 12


@pytest.mark.parametrize("seed", range(1, 1 + scaled(1)))
def test_a_generated_region_round_trips(tmp_path: Path, seed: int) -> None:
    stream = BytesIO()
    options = GeneratorOptions(hosts=40, vms=400, commitments=40, seed=seed, taken_at=1_795_168_800)
    generate_region(stream, options)
    path = tmp_path / "region.json"
    path.write_bytes(stream.getvalue())
    load(path)
    assert_round_trip(tmp_path)


def test_an_empty_database_round_trips(tmp_path: Path) -> None:
    assert_round_trip(tmp_path)


def test_a_commitment_that_limes_described_is_dumped_unchanged(tmp_path: Path) -> None:
    content = small_region()
    content["limes"]["commitments"][0]["creator_name"] = "someone@acme"
    load(write_file(tmp_path, content))
    assert json.loads(dump())["limes"]["commitments"] == content["limes"]["commitments"]


def test_a_commitment_changed_since_is_dumped_as_it_is_now(tmp_path: Path) -> None:
    load(write_file(tmp_path, small_region()))
    Commitment.objects.update(requested_amount=24 * GIB, state="pending")
    (found,) = json.loads(dump())["limes"]["commitments"]
    assert (found["amount"], found["status"], found["unit"]) == (3, "pending", "8 GiB")
    assert_round_trip(tmp_path)


def test_a_commitment_that_limes_never_described_is_dumped(tmp_path: Path) -> None:
    load(write_file(tmp_path, small_region()))
    Commitment.objects.update(limes_record=None, limes_id=None)
    (found,) = json.loads(dump())["limes"]["commitments"]
    assert found["resource_name"] == "hw_version_gp_ram"
    assert_round_trip(tmp_path)


def test_the_command_writes_a_file(tmp_path: Path) -> None:
    load(write_file(tmp_path, small_region()))
    path = tmp_path / "out.json"
    call_command("dump_region", "--from-db", "--output", str(path))
    assert path.read_bytes() == dump()
    assert Instance.objects.count() == 1


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be written"):
        call_command("dump_region", "--from-db", "--output", str(tmp_path / "no" / "out.json"))
