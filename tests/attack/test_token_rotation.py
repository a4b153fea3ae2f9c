"""A stolen token is worth nothing a moment after it was taken out of the file."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from config.launcher.processes import wait_until
from tests.e2e.processes import ADMIN, PATIENCE_SECONDS, WebServer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]
OLD, NEW = "old-token-0123456789", "new-token-0123456789"


def write(path: Path, *tokens: str) -> None:
    entries = [
        {"token_sha256": sha256(token.encode()).hexdigest(), "name": "limes", "roles": ["admin"]}
        for token in tokens
    ]
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(entries))
    fresh.replace(path)


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

        def statuses() -> tuple[int, ...]:
            return tuple(
                server.send("GET", "/placement/resource_providers", token=token).status
                for token in (OLD, NEW)
            )

        # Each worker process looks for itself: several answers in a row come from all of them.
        def settled(expected: tuple[int, int]) -> bool:
            return all(statuses() == expected for _ in range(8))

        assert settled((200, 401))
        write(path, OLD, NEW)
        assert wait_until(lambda: settled((200, 200)), PATIENCE_SECONDS)
        write(path, NEW)
        assert wait_until(lambda: settled((401, 200)), PATIENCE_SECONDS)
        path.write_text("broken")
        assert settled((401, 200))
        assert server.send("GET", "/placement/resource_providers", token=ADMIN).status == 401
    finally:
        server.end()
