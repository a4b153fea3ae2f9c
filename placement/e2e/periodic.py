"""The checks of a served Placement API as a task, kept for metrics and the console (8.9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import structlog
from django.conf import settings

from core.conf import headroom
from core.prepared import fetch_prepared
from core.server_checks.results import CheckEnd
from placement.e2e.checks import Checked, PlacementResult, run_checks
from placement.e2e.client import PlacementServer
from placement.gateway.asking import token_of
from placement.models.checks import ENDS

log = structlog.get_logger(__name__)

#: Longest time for one of its small requests; all checks of three modes end within the task's time.
REQUEST_SECONDS: Final = 5.0
MOST_DETAIL: Final = 1000
#: A server that believes what callers say of themselves is told so; every other asks the token.
OPEN_ROLES: Final = {"X-Roles": "admin,service"}
KEEP: Final = """
INSERT INTO placement_check_outcome AS kept (test, mode, outcome, detail, checked_at)
VALUES (%s, %s, %s, %s, clock_timestamp())
ON CONFLICT (test, mode) DO UPDATE
   SET outcome = excluded.outcome, detail = excluded.detail, checked_at = excluded.checked_at
RETURNING test
"""


def check_served_api() -> dict[str, int]:
    """Run the checks of the settings, and keep how each ended.

    Returns:
        How many ended how.

    Raises:
        NoAccountError: nothing says by which account.
    """
    gateway = headroom().gateway
    server = PlacementServer(
        base_url=gateway.checks_url,
        token=token_of(gateway)(False),  # noqa: FBT003 - a callable of one argument
        timeout_seconds=REQUEST_SECONDS,
        headers=OPEN_ROLES if settings.HEADROOM.auth == "noauth" else {},
    )
    counts: Counter[str] = Counter()
    for result in _results(server, gateway.checks_modes):
        values = [result.check, result.mode, str(result.outcome), result.detail[:MOST_DETAIL]]
        fetch_prepared(KEEP, values)
        counts[result.outcome] += 1
        if result.outcome is CheckEnd.FAILED:
            log.warning(
                "placement_check_failed", names=[result.check], mode=result.mode, error=values[3]
            )
    return {str(outcome): counts[outcome] for outcome in ENDS}


def _results(server: PlacementServer, modes: list[str]) -> Iterator[PlacementResult]:
    for mode in modes or [""]:
        server.mode = mode
        yield from run_checks(Checked(server=server))
