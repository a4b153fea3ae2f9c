"""A list in which commitments are ours and none is understood is no success (spec liquid, 15.3)."""

from __future__ import annotations

from typing import Any

import pytest

from capacity.models import FlavorGroup
from commitments.models import Commitment, SyncRun
from commitments.services.sync_runs import accept_shrink
from journal.errors import InvalidInput
from journal.metrics import metrics_page
from tests.peers.fake_cloud import FakeCloud, limes_commitment

from .world import (
    GROUP,
    SYNCER,
    UUID,
    live_row,
    many,
    metric,
    sync,
    tuples,
    understood,
    uuid_of,
)

pytestmark = pytest.mark.django_db(transaction=True)


def told() -> float | None:
    name = b"cortex_committed_resource_syncer_nothing_understood "
    lines = [line for line in metrics_page().splitlines() if line.startswith(name)]
    return float(lines[0].split()[1]) if lines else None


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"service_type": "nova"}, id="another service type, our resource"),
        pytest.param({"resource_name": "ram"}, id="our service, another resource"),
        pytest.param({"resource_name": "hw_version_other_ram"}, id="unknown group"),
        pytest.param({"unit": "2048 MiB"}, id="another unit"),
        pytest.param({"status": "odd"}, id="unknown status"),
        pytest.param({"uuid": ""}, id="no uuid"),
        pytest.param({"amount": "2"}, id="another type"),
    ],
)
def test_it_fails_and_nothing_counts_as_missing(cloud: FakeCloud, fields: dict[str, Any]) -> None:
    live_row(uuid_of(1))
    for number in range(2, 6):
        cloud.add("p1", [limes_commitment(uuid_of(number)) | fields])
    before, errors = tuples(), metric("errors_total")
    assert told() is None
    report = sync(cloud)
    assert (report.outcome, report.error_code) == ("failed", "nothing_understood")
    assert report.message.startswith("Limes lists 4 commitments and none is understood: 4 ")
    assert "HEADROOM_LIQUID__LIMES_SERVICE_TYPE is 'compute'" in report.message
    assert tuples() == before
    assert metric("errors_total") == errors + 1
    assert told() == 1.0
    understood(cloud)
    assert sync(cloud).outcome == "success"
    assert told() == 0.0


def test_it_is_ours_when_we_hold_it_whatever_it_is_called(cloud: FakeCloud) -> None:
    """Limes may give resources other names in its first API."""
    live_row(UUID)
    renamed = limes_commitment(UUID, service_type="nova", resource_name="memory_of_hana")
    cloud.add("p1", [renamed])
    assert sync(cloud).error_code == "nothing_understood"


def test_a_list_of_nothing_but_other_services_is_a_success(cloud: FakeCloud) -> None:
    """The last commitment of compute may end while those of storage go on."""
    row = live_row(UUID)
    foreign = limes_commitment(uuid_of(1), service_type="volumev2", resource_name="capacity")
    cloud.add("p1", [foreign])
    assert sync(cloud).outcome == "success"
    row.refresh_from_db()
    assert row.missed_syncs == 1


def test_commitments_of_a_retired_group_are_explained(cloud: FakeCloud) -> None:
    FlavorGroup.objects.filter(name=GROUP).update(is_retired=True)
    cloud.add("p1", [limes_commitment(UUID)])
    report = sync(cloud)
    assert (report.outcome, report.error_code) == ("success", "")
    assert report.counts["skipped_unknown_flavor_group"] == 1
    assert not Commitment.objects.exists()


def test_an_incomplete_list_is_incomplete_first(cloud: FakeCloud) -> None:
    cloud.add("p1", [limes_commitment(UUID, service_type="nova")])
    cloud.add("p2")
    cloud.always = {"/limes/v1/domains/domain-1/projects/p2/": 500}
    assert sync(cloud).error_code == "sync_incomplete"


def test_it_cannot_be_accepted_as_a_shrink(cloud: FakeCloud) -> None:
    many(cloud, 12)
    sync(cloud)
    for commitments in cloud.commitments.values():
        for commitment in commitments:
            commitment["service_type"] = "nova"
    assert sync(cloud).error_code == "nothing_understood"
    with pytest.raises(InvalidInput, match="not stopped by the guard"):
        accept_shrink(SyncRun.objects.latest("pk").pk, actor=SYNCER, request_id="req")
