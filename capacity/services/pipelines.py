"""Pipelines as rows: saving, versions, and the compiled ones of this process (scheduling, 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduling.engine import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivePipeline:
    """A pipeline that may be run.

    Attributes:
        name: Its name.
        version: Version of the definition it was compiled from.
        ignore_preselection: Whether the caller's hosts are replaced by all candidates.
        pipeline: What the engine runs.
    """

    name: str
    version: int
    ignore_preselection: bool
    pipeline: Pipeline


def active_pipelines() -> Mapping[str, ActivePipeline]:
    """Return the pipelines that may be run, by name; kept while their rows stay as they are."""
    return {}
