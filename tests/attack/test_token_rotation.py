"""A stolen token is worth nothing a moment after it was taken out of the file."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from config.launcher.processes import wait_until
from tests.e2e.processes import ADMIN, PATIENCE_SECONDS, WebServer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]
PROVIDERS, METRICS = "/placement/resource_providers", "/metrics"
OLD, NEW = "old-token-0123456789", "new-token-0123456789"


def write(path: Path, *tokens: str) -> None:
    entries = [
        {
            "token_sha256": sha256(token.encode()).hexdigest(),
            "name": "limes",
            "roles": ["admin", "metrics"],
        }
        for token in tokens
    ]
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(entries))
    fresh.replace(path)


def settled(server: WebServer, expected: tuple[int, int]) -> bool:
    """Return whether all worker processes agree: each looks at the file for itself."""
    return all(
        tuple(server.send("GET", path, token=token).status for token in (OLD, NEW)) == expected
        for path in (PROVIDERS, METRICS)
        for _ in range(8)
    )


@pytest.mark.usefixtures("transactional_db")
def test_tokens_rotate_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    write(path, OLD)
    server = WebServer(
        directory=tmp_path,
        overrides={
            "HEADROOM_TOKENS": "[]",
            "HEADROOM_METRICS_TOKEN": "",
            "HEADROOM_TOKENS_FILE": str(path),
        },
    )
    server.start()
    try:
        assert settled(server, (200, 401))
        write(path, OLD, NEW)
        assert wait_until(lambda: settled(server, (200, 200)), PATIENCE_SECONDS)
        write(path, NEW)
        assert wait_until(lambda: settled(server, (401, 200)), PATIENCE_SECONDS)
        path.write_text("broken")
        assert settled(server, (401, 200))
        assert server.send("GET", PROVIDERS, token=ADMIN).status == 401
        write(path)
        assert wait_until(lambda: settled(server, (401, 401)), PATIENCE_SECONDS)
        assert server.send("GET", METRICS, token=None).status == 401
    finally:
        server.end()
