"""A stolen token is worth nothing a moment after it was taken out of the file."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from config.launcher.processes import wait_until
from tests.e2e.processes import ADMIN, PATIENCE_SECONDS, WebServer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]
PROVIDERS = "/placement/resource_providers"
OLD, NEW = "old-token-0123456789", "new-token-0123456789"


def write(path: Path, *tokens: str, role: str = "admin") -> None:
    entries = [
        {"token_sha256": sha256(token.encode()).hexdigest(), "name": "limes", "roles": [role]}
        for token in tokens
    ]
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(entries))
    fresh.replace(path)


def statuses(server: WebServer, path: str) -> tuple[int, ...]:
    return tuple(server.send("GET", path, token=token).status for token in (OLD, NEW))


def settled(server: WebServer, path: str, expected: tuple[int, int]) -> bool:
    """Return whether all worker processes agree: each looks at the file for itself."""
    return all(statuses(server, path) == expected for _ in range(8))


@pytest.mark.usefixtures("transactional_db")
def test_tokens_of_the_metrics_page_rotate_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    write(path, OLD, role="metrics")
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
        assert settled(server, "/metrics", (200, 401))
        write(path, OLD, NEW, role="metrics")
        assert wait_until(lambda: settled(server, "/metrics", (200, 200)), PATIENCE_SECONDS)
        write(path, NEW, role="metrics")
        assert wait_until(lambda: settled(server, "/metrics", (401, 200)), PATIENCE_SECONDS)
        write(path)
        assert wait_until(lambda: settled(server, "/metrics", (401, 401)), PATIENCE_SECONDS)
        assert server.send("GET", "/metrics", token=None).status == 401
    finally:
        server.end()


@pytest.mark.usefixtures("transactional_db")
def test_tokens_rotate_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    write(path, OLD)
    server = WebServer(
        directory=tmp_path,
        overrides={"HEADROOM_TOKENS": "[]", "HEADROOM_TOKENS_FILE": str(path)},
    )
    server.start()
    try:
        assert settled(server, PROVIDERS, (200, 401))
        write(path, OLD, NEW)
        assert wait_until(lambda: settled(server, PROVIDERS, (200, 200)), PATIENCE_SECONDS)
        write(path, NEW)
        assert wait_until(lambda: settled(server, PROVIDERS, (401, 200)), PATIENCE_SECONDS)
        path.write_text("broken")
        assert settled(server, PROVIDERS, (401, 200))
        assert server.send("GET", PROVIDERS, token=ADMIN).status == 401
    finally:
        server.end()
