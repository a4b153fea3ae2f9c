from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from capacity.guard.oversubscription import HostOutcome
from capacity.metrics.gauges import OVERSUBSCRIPTION
from capacity.models import Reservation
from hosts.agents.resource_models import HostResource
from hosts.models import Flavor, Host
from journal.models import AuditEntry
from tests import factories
from tests.capacity.guarding import NOW, guard, on_host, room_of, seen, shrink
from tests.ledger import assert_rooms_add_up

pytestmark = pytest.mark.django_db


class TestOtherResources:
    """GPUs, network and disk I/O, as agents report them (spec hosts, C.6)."""

    @pytest.fixture
    def host(self) -> Host:
        """A host with three slots of one GPU and 1000 bytes per second each, and one without."""
        factories.make_group(flavors=[("small", 4096, 1), ("gpu", 8192, 2)])
        needs = {"resources:VGPU": "1", "quota:vif_outbound_average": "1"}
        needs["quota:disk_total_bytes_sec"] = "10"
        Flavor.objects.filter(name="gpu").update(extra_specs=needs)
        host = factories.make_host("h1", memory_gib=512, vcpus=64)
        self.report(host, network=3000, disk_io=30, gpu=3)
        commitment = factories.make_commitment(amount_gib=64)
        factories.make_slot(commitment, host, memory_gib=4)
        for _ in range(3):
            factories.make_slot(commitment, host, memory_gib=8, vcpus=2, flavor_name="gpu")
        factories.recount_room(host)
        return host

    def report(self, host: Host, **amounts: int) -> None:
        for resource, amount in amounts.items():
            HostResource.objects.update_or_create(
                host=host,
                resource=resource,
                defaults={"capacity": amount, "effective_capacity": amount, "source": "detected"},
            )

    def reserved(self, host: Host) -> dict[str, int]:
        rows = HostResource.objects.filter(host=host)
        return {row.resource: row.reserved for row in rows}

    @pytest.mark.parametrize(
        ("less", "left", "excess"),
        [
            ({"gpu": 2}, [4, 8, 8], "1 GPU:"),
            ({"gpu": 0}, [4], "3 GPUs:"),
            ({"network": 1999}, [4, 8], "1,001 B/s of network"),
            ({"disk_io": 29}, [4, 8, 8], "1 B/s of disk I/O"),
            ({"gpu": 2, "network": 0}, [4], "3,000 B/s of network and 1 GPU:"),
        ],
    )
    def test_slots_leave_until_nothing_is_lacking(
        self, host: Host, less: dict[str, int], left: list[int], excess: str
    ) -> None:
        assert guard().outcomes == {}
        self.report(host, **less)

        assert guard().outcomes == {HostOutcome.GRACE: 1}
        assert on_host(host) == [4, 8, 8, 8]
        report = guard(NOW + timedelta(minutes=3))

        assert report.outcomes == {HostOutcome.CLEARED: 1}
        assert on_host(host) == left
        assert self.reserved(host)["gpu"] == len(left) - 1
        entry = AuditEntry.objects.filter(action="slot_evicted").latest("pk")
        assert f"over-subscribed by {excess}" in entry.reason
        assert room_of(host).oversubscribed_since is None
        assert_rooms_add_up()

    def test_a_slot_moves_to_a_host_that_has_the_gpu(self, host: Host) -> None:
        for name, gpus in (("without", 0), ("with", 1)):
            other = factories.make_host(name, memory_gib=64, vcpus=16)
            self.report(other, network=3000, disk_io=30, gpu=gpus)
        self.report(host, gpu=2)
        seen(host, NOW - timedelta(minutes=3))

        assert guard().moved == 1

        assert self.reserved(Host.objects.get(name="with")) == {
            "network": 1000, "disk_io": 10, "gpu": 1,
        }  # fmt: skip
        assert on_host(Host.objects.get(name="with")) == [8]
        assert_rooms_add_up()

    @pytest.mark.parametrize("fact", [{"source": "unknown"}, {"is_stale": True}])
    def test_what_nobody_knows_is_not_lacking(self, host: Host, fact: dict[str, Any]) -> None:
        self.report(host, gpu=1)
        assert guard().outcomes == {HostOutcome.GRACE: 1}
        HostResource.objects.filter(host=host, resource="gpu").update(**fact)

        assert guard(NOW + timedelta(minutes=5)).outcomes == {HostOutcome.RESOLVED: 1}
        assert on_host(host) == [4, 8, 8, 8]
        assert room_of(host).oversubscribed_since is None

    def test_what_vms_take_alone_needs_a_person(self, host: Host) -> None:
        Reservation.objects.all().delete()
        factories.recount_room(host)
        HostResource.objects.filter(host=host, resource="gpu").update(allocated=4)
        seen(host, NOW - timedelta(minutes=3))

        assert guard().outcomes == {HostOutcome.STUCK: 1}

    def test_both_kinds_are_cleared_in_one_go(self, host: Host) -> None:
        self.report(host, gpu=2)
        shrink(host, 16)
        seen(host, NOW - timedelta(minutes=3))

        assert guard().outcomes == {HostOutcome.CLEARED: 1}
        assert on_host(host) == [8, 8]  # of 28 GiB, one with a GPU and the one without
        assert_rooms_add_up()

    def test_the_gauge_tells_what_is_lacking(self, host: Host) -> None:
        self.report(host, gpu=1, network=2500)
        guard()

        (family,) = OVERSUBSCRIPTION.collect()
        assert {(one.labels["resource"], one.value) for one in family.samples} == {
            ("gpu", 2.0), ("network", 500.0),
        }  # fmt: skip
