"""What is published for a group and zone is what one request gets, in whole regions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.core.management import call_command

from capacity.figures.group_capacity import ensure_fresh, known_zones
from capacity.groups.group_settings import settings_for_group
from capacity.groups.reading import load_group_definitions, load_group_settings
from capacity.models import GroupCapacity
from commitments.domain.admission import CommitmentTarget, plan_admission
from commitments.domain.state import CommitmentState
from commitments.domain.statuses import CommitmentStatus, ResourceType
from commitments.services.admission import read_snapshot
from scheduling.resources import GIB, MIB
from tests.examples import is_thorough
from tests.hosts.region_files import LIMES, REGION, load

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def is_granted(row: GroupCapacity, memory_bytes: int) -> bool:
    desired = CommitmentState(
        commitment_uuid="asked",
        project_id="somebody",
        domain_id="",
        flavor_group_name=row.group_name,
        zone=row.zone,
        resource_type=ResourceType.MEMORY,
        requested_amount=memory_bytes,
        status=CommitmentStatus.CONFIRMED,
        end_time=NOW + timedelta(days=365),
    )
    target = CommitmentTarget(commitment_uuid="asked", desired=desired, is_holding=True)
    snapshot = read_snapshot(rooms={}, cores={}, targets=[target])
    return not plan_admission(snapshot, [target], may_reject=True, now=NOW).rejections


def check_every_group() -> Mapping[tuple[str, str], GroupCapacity]:
    """Check every group and zone; return their rows.

    What a group has for itself alone is published up to a rest smaller than its smallest flavor.
    """
    ensure_fresh(known_zones())
    groups = load_group_definitions()
    rows = list(GroupCapacity.objects.order_by("zone", "group_name"))
    for row in rows:
        unit_bytes = settings_for_group(load_group_settings(), row.group_name).ram_unit_mib * MIB
        published = row.exclusively_free_memory_bytes // unit_bytes
        for units in {published, published - 1, published // 2, published // 3} - {-1, 0}:
            assert is_granted(row, units * unit_bytes)
        smallest_bytes = groups[row.group_name].smallest.memory_bytes
        assert not is_granted(row, row.free_memory_bytes + smallest_bytes)
    return {(row.group_name, row.zone): row for row in rows}


def test_every_group_of_the_real_dump_gets_in_one_request_what_is_published() -> None:
    load(REGION, LIMES, place=True)
    row = check_every_group()["general", "az-c"]
    assert row.exclusively_free_memory_bytes == row.free_memory_bytes
    of_smallest_alone = row.exclusively_free_slots * 2 * GIB
    assert row.exclusively_free_memory_bytes > 1.9 * of_smallest_alone


@pytest.mark.parametrize("seed", [1, 7] if is_thorough() else [7])
def test_every_group_of_a_made_up_region_gets_in_one_request_what_is_published(
    seed: int, tmp_path: Path
) -> None:
    file = tmp_path / "region.json"
    call_command("generate_region", profile="demo", hosts=24, seed=seed, output=str(file))
    load(file, place=True)
    check_every_group()
