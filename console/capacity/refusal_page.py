"""Why VMs found no host lately, in words for the list of decisions (spec scheduling, 12.3)."""

from __future__ import annotations

from collections.abc import Iterable

from capacity.nova.refusals import refusals_by_group
from console.base import PageData
from console.capacity.decision_page import step_title
from core.text import NOTHING, count_text

NO_GROUP = "no group"
OUTCOME_WORDS = {
    "": "not tracked",
    "no_cr": "no active commitment",
    "cr_exhausted": "commitment used up",
    "slot_blocked": "slot ruled out by other filters",
    "slot_exhausted": "no slot could take it",
    "error": "flavor groups not known",
}


def refusal_lines() -> tuple[PageData, ...]:
    """Return the flavor groups with refused VMs, most refusals first."""
    return tuple(
        PageData(
            group=one.group or NO_GROUP,
            refused=count_text(one.refused),
            classes=_counted((OUTCOME_WORDS.get(name, name), count) for name, count in one.classes),
            filters=_counted((step_title(step) or NOTHING, count) for step, count in one.filters),
        )
        for one in refusals_by_group()
    )


def _counted(pairs: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{words} ({count_text(count)})" for words, count in pairs)
