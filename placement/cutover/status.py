"""Where a cut-over stands, for commands, pages and checks."""

from __future__ import annotations

from typing import Any, Final

from core.prepared import fetch
from placement.cutover.copying import count_running, read_due
from placement.cutover.fences import count_fences
from placement.cutover.mirroring import backlog
from placement.cutover.parts import by_zone
from placement.cutover.state import PARTED, read_state
from placement.metrics import SPANNING

COPIES: Final = """
SELECT (SELECT count(*) FROM placement_provider WHERE origin = 'upstream'),
       (SELECT count(*) FROM placement_consumer),
       (SELECT count(*) FROM placement_provider WHERE parent_id IS NULL AND origin <> 'upstream'),
       (SELECT count(*) FROM placement_provider WHERE parent_id IS NULL)
"""
REFUSALS: Final = """
SELECT method || ' ' || target || ': ' || refusal FROM placement_mirrored_write
 WHERE refusal <> '' ORDER BY id LIMIT 20
"""


def status_facts() -> dict[str, Any]:  # Any: times, numbers and texts
    """Return phase, progress and errors."""
    current, due, waiting = read_state(), read_due(), backlog()
    copies, consumers, ours, trees = fetch(COPIES)[0]
    is_parted = current.phase in PARTED
    return {
        "phase": str(current.phase),
        "told": current.phase.label,
        "began_at": current.began_at,
        "switched_at": current.switched_at,
        "copied_providers": copies,
        "consumers": consumers,
        "trees": trees,
        "trees_of_ours": ours,
        "parts": [
            {"zone": zone, "trees_of_ours": here, "trees": count}
            for zone, here, count in (by_zone() if is_parted else ())
        ],
        "consumers_of_both": fetch(SPANNING)[0][0] if is_parted else 0,
        "writes_of_both_under_way": count_fences(),
        "due": [f"{kind}: {len(uuids)}" for kind, uuids in sorted(due.items())],
        "writes_under_way": count_running(),
        "writes_to_mirror": waiting.count,
        "oldest_write_to_mirror": waiting.oldest,
        "refused_writes": [row[0] for row in fetch(REFUSALS)],
        "moved_without_us": current.moved_provider,
        "last_error": current.last_error,
        "last_error_at": current.last_error_at,
    }
