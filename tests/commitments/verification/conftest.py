from __future__ import annotations

from typing import Any

import pytest

from hosts.models import Host
from tests.commitments.slot_worlds import (
    VM_GIB,
)
from tests.factories import make_group, make_host

from .world import use_slots


@pytest.fixture(autouse=True)
def _settle_at_once(settings: Any) -> None:
    use_slots(settings, migration_settle_seconds=0)


@pytest.fixture
def host_1() -> Host:
    make_group("hana_1", flavors=[("small", 4096, 1), ("half", VM_GIB * 1024, 20)])
    return make_host("host-1", memory_gib=960, vcpus=80)


@pytest.fixture
def host_new(host_1: Host) -> Host:
    return make_host("host-new", memory_gib=960, vcpus=80)
