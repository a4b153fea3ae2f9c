"""A client of Keystone and Limes for tests of what happens while they are read."""

from __future__ import annotations

from typing import Any

from commitments.clients.http_cloud import HTTPCloud
from commitments.conf import SyncSettings
from tests.peers.fake_cloud import FakeCloud


class Interrupting:
    """Keystone and Limes, with something that happens after they were asked."""

    def __init__(self, cloud: FakeCloud, happens: Any) -> None:
        self._client = HTTPCloud(cloud.settings(), SyncSettings(retries=0))
        self._happens = happens

    def list_projects(self) -> Any:
        return self._client.list_projects()

    def list_commitments(self, projects: Any) -> Any:
        answers = list(self._client.list_commitments(projects))
        self._happens()
        return iter(answers)
