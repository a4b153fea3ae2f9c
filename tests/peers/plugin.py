"""Fixtures of real peers, for every test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.fake_cloud import FakeCloud
from tests.peers.keystone import Keystone, start_keystone


@pytest.fixture(scope="session")
def keystone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keystone]:
    """A real Keystone; made when a test first asks for it, gone with the session."""
    running = start_keystone(tmp_path_factory.mktemp("keystone"))
    yield running
    running.stop()


@pytest.fixture
def fake_cloud() -> Iterator[FakeCloud]:
    """Keystone's and Limes' answers over HTTP, to be filled and broken."""
    running = FakeCloud()
    running.start()
    yield running
    running.stop()
