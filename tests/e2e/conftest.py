from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import WebServer


@pytest.fixture
def web(transactional_db: None, tmp_path: Path) -> Iterator[WebServer]:
    """The web server on the test database; what is left of it is killed at the end."""
    del transactional_db
    server = WebServer(directory=tmp_path)
    server.start()
    yield server
    server.end()
