from __future__ import annotations

import json
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models import F

from capacity.models import HostCapacity, Reservation
from commitments.models import Commitment
from hosts.models import Host
from hosts.region.generator.plan import GeneratorOptions
from hosts.region.generator.write import generate_region
from tests.hosts.region_files import load

TAKEN_AT = 1_795_168_800


def generate(hosts: int = 240, vms: int = 4800, commitments: int = 160, seed: int = 1) -> bytes:
    stream = BytesIO()
    generate_region(
        stream,
        GeneratorOptions(
            hosts=hosts, vms=vms, commitments=commitments, seed=seed, taken_at=TAKEN_AT
        ),
    )
    return stream.getvalue()


@pytest.fixture(scope="module")
def region() -> dict[str, Any]:
    return dict(json.loads(generate()))


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert generate(30, 200, 20) == generate(30, 200, 20)


def test_every_vm_that_is_written_is_told() -> None:
    told: list[int] = []
    options = GeneratorOptions(hosts=30, vms=200, commitments=20, seed=1, taken_at=TAKEN_AT)
    generate_region(BytesIO(), options, told.append)
    assert sum(told) == 200


def test_another_seed_gives_another_region() -> None:
    assert generate(30, 200, 20) != generate(30, 200, 20, seed=2)


def test_sizes_are_those_asked_for(region: dict[str, Any]) -> None:
    assert len(region["compute"]["hypervisors"]) == 240
    assert len(region["compute"]["servers"]) == 4800
    assert len(region["limes"]["commitments"]) == 160


def test_there_are_three_zones_and_all_six_states(region: dict[str, Any]) -> None:
    zones = {a["metadata"].get("availability_zone") for a in region["compute"]["aggregates"]}
    assert len(zones - {None}) == 3
    states = {commitment["status"] for commitment in region["limes"]["commitments"]}
    assert states == {"planned", "pending", "guaranteed", "confirmed", "superseded", "expired"}


def test_vms_stand_on_hosts_with_their_traits(region: dict[str, Any]) -> None:
    traits = {
        provider["name"]: set(provider["traits"]["traits"])
        for provider in region["placement"]["resource_providers"]
    }
    for server in region["compute"]["servers"]:
        host = server["OS-EXT-SRV-ATTR:host"]
        for key, rule in server["flavor"]["extra_specs"].items():
            if key.startswith("trait:") and host in traits:
                has_trait = key.removeprefix("trait:") in traits[host]
                assert has_trait is (rule == "required")


def test_each_host_stands_in_a_rack_of_its_zone(region: dict[str, Any]) -> None:
    zones = {service["host"]: service["zone"] for service in region["compute"]["services"]}
    racks: dict[str, list[str]] = {}
    for facts in region["headroom"]["hosts"]:
        racks.setdefault(facts["building_block"], []).append(facts["name"])
    assert sorted(name for names in racks.values() for name in names) == sorted(zones)
    assert {len({zones[name] for name in names}) for names in racks.values()} == {1}
    assert max(map(len, racks.values())) == 6
    assert len(racks) == 42


def test_dedicated_hosts_hold_vms_of_their_project_only(region: dict[str, Any]) -> None:
    (dedicated,) = [a for a in region["compute"]["aggregates"] if a["name"] == "dedicated"]
    owner = dedicated["metadata"]["filter_tenant_id"]
    assert dedicated["hosts"]
    tenants = {
        server["tenant_id"]
        for server in region["compute"]["servers"]
        if server["OS-EXT-SRV-ATTR:host"] in dedicated["hosts"]
    }
    assert tenants == {owner}


def test_live_commitments_end_years_ahead(region: dict[str, Any]) -> None:
    for commitment in region["limes"]["commitments"]:
        is_over = commitment["expires_at"] < TAKEN_AT
        assert is_over is (commitment["status"] == "expired")
        if commitment["status"] in {"pending", "confirmed", "guaranteed", "planned"}:
            assert commitment["expires_at"] > 1_830_000_000


@pytest.mark.django_db
def test_a_generated_region_imports_without_skips_and_mostly_fits(tmp_path: Path) -> None:
    path = tmp_path / "region.json"
    path.write_bytes(generate(90, 900, 60))
    report = load(path, place=True, with_ended=True)
    assert [remark for remark in report.remarks if not remark.is_kept] == []
    reasons = Counter(Commitment.objects.values_list("ready_reason", flat=True))
    assert reasons["Accepted"] > 40
    assert 1 <= reasons["Reserving"] <= 6
    waiting = Commitment.objects.exclude(ready_reason="Accepted")
    assert not Reservation.objects.filter(
        commitment__in=waiting, target_host__isnull=False
    ).exists()
    over = HostCapacity.objects.filter(
        effective_memory_bytes__lt=F("allocated_memory_bytes") + F("committed_memory_bytes")
    )
    assert not over.exists()
    assert Host.objects.filter(zone="").count() == 0
    rooms = HostCapacity.objects.all()
    used = sum(r.allocated_memory_bytes for r in rooms) / sum(
        r.effective_memory_bytes for r in rooms
    )
    assert 0.5 < used < 0.76


@pytest.mark.parametrize("arguments", [["--hosts", "0"], ["--hosts", "5", "--commitments", "-1"]])
def test_numbers_out_of_range_are_refused(arguments: list[str]) -> None:
    with pytest.raises(CommandError) as caught:
        call_command("generate_region", *arguments)
    assert caught.value.returncode == 2


def test_the_profile_of_a_large_provider_has_its_published_size(tmp_path: Path) -> None:
    path = tmp_path / "sap.json"
    call_command("generate_region", "--profile", "sap", "--output", str(path))
    content = json.loads(path.read_bytes())
    assert len(content["compute"]["hypervisors"]) == 1800
    assert len(content["compute"]["servers"]) == 48_000
    assert len(content["compute"]["aggregates"]) >= 7
