from __future__ import annotations

from datetime import UTC, datetime

import pytest

from cloud.api import reported_since

START = datetime(2026, 11, 22, 12, 0, 0, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("state", "updated_at", "is_ready"),
    [
        pytest.param("up", None, False, id="created, never reported"),
        pytest.param("up", "2026-11-22T12:00:00.000000", False, id="reported by the old process"),
        pytest.param("up", "2026-11-22T12:00:01.000000", True, id="reported since"),
        pytest.param("down", "2026-11-22T12:00:01.000000", True, id="reported, forced down"),
    ],
)
def test_a_compute_is_ready_once_it_reported_after_its_start(
    state: str, updated_at: str | None, *, is_ready: bool
) -> None:
    service = {"host": "node1", "state": state, "updated_at": updated_at}
    assert reported_since([service], START) == ({"node1"} if is_ready else set())
