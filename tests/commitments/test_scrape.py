from __future__ import annotations

import pytest
from django.test import Client

from tests.commitments.change_requests import change, decide_ram
from tests.factories import make_group, make_host

SERIES = (
    "cortex_committed_resource_unfulfilled"
    '{availability_zone="az-a",flavor_group="hana_1",resource_type="memory"} 1.0'
)


@pytest.mark.django_db
def test_waiting_commitments_are_counted_and_fulfilled_ones_are_not() -> None:
    make_group("hana_1", flavors=[("small", 1024, 4)])
    make_host("h1", zone="az-a", memory_gib=4, vcpus=16)
    decide_ram("alpha", change("aaaaaaaa-0000", 4, "pending"))
    assert SERIES not in Client().get("/metrics").content.decode()
    decide_ram("alpha", change("bbbbbbbb-0000", 1, "pending"))
    assert SERIES in Client().get("/metrics").content.decode()
