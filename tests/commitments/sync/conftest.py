from __future__ import annotations

import pytest

from tests.factories import make_group
from tests.peers.fake_cloud import FakeCloud

from .world import GROUP


@pytest.fixture(autouse=True)
def group() -> None:
    make_group(GROUP, flavors=[("small", 1024, 1)])


@pytest.fixture
def cloud(fake_cloud: FakeCloud) -> FakeCloud:
    fake_cloud.add("p1")
    return fake_cloud
