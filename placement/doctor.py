"""Checks of the Placement tables, as ``placement_audit`` makes them, with examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from core.doctor.findings import Check, Finding, broken, doubtful, fine
from placement.services.audit import BREAKS_ANSWERS, Kind, find_problems

EXAMPLES: Final = 3
AUDIT: Final = "./run manage placement_audit lists them, --fix repairs"


def placement_checks() -> Mapping[str, Check]:
    """Return them by name."""
    return {"placement": check_tables}


def check_tables() -> Iterator[Finding]:
    """Tell how many findings of each kind there are."""
    found = find_problems()
    for kind in Kind:
        of_kind = [one for one in found if one.kind is kind]
        if not of_kind:
            continue
        examples = "; ".join(
            f"{one.name or one.subject}: {one.detail}" for one in of_kind[:EXAMPLES]
        )
        told = f"{len(of_kind)} of kind {kind}: {examples}"
        yield broken(told, AUDIT) if kind in BREAKS_ANSWERS else doubtful(told, AUDIT)
    if not found:
        yield fine("nothing is wrong in its tables")
