"""Why a request has the candidates that it has, or none (spec placement, 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placement.domain.candidate_funnel import FunnelStep, SlotFunnel, slot_funnel
from placement.domain.candidate_query import CandidateQuery, SearchOptions
from placement.domain.candidate_remedies import Remedy, find_remedies
from placement.domain.candidates import common_anchors, find_candidates, query_parts
from placement.domain.fair_shares import too_held_trees
from placement.domain.snapshot import Snapshot

MOST_TREES = 20
MOST_COUNTED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOptions:
    """A tree that comes near to having a candidate, or has one.

    Attributes:
        root: Uuid of the root.
        options: For each part of the request, how many providers can serve it there.
        missing: Numbers of the parts that nobody can serve there.
    """

    root: str
    options: tuple[int, ...]
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explanation:
    """What each constraint of a request leaves over.

    Attributes:
        providers: How many there are.
        trees: How many trees there are.
        parts: The parts of the request with their constraints.
        common_trees: Trees with options for every part, and enough of them.
        held_trees: Those of them where holds leave too little: only for whom room is held.
        candidates: How many were found, at most ``MOST_COUNTED``.
        nearest: The trees with the fewest parts missing.
        remedies: Changes that would give a candidate; empty where there is one.
    """

    providers: int
    trees: int
    parts: tuple[SlotFunnel, ...]
    common_trees: int
    held_trees: int
    candidates: int
    nearest: tuple[TreeOptions, ...]
    remedies: tuple[Remedy, ...]

    def as_document(self) -> Mapping[str, object]:
        """Return the explanation as JSON."""
        return {
            "providers": self.providers,
            "trees": self.trees,
            "candidates": self.candidates,
            "candidates_are_counted_up_to": MOST_COUNTED,
            "groups": [_part_document(part) for part in self.parts],
            "trees_with_options_for_every_group": self.common_trees,
            "of_them_held_for_their_owners": self.held_trees,
            "nearest_trees": [
                {
                    "root_provider_uuid": tree.root,
                    "options": list(tree.options),
                    "groups_without_options": list(tree.missing),
                }
                for tree in self.nearest
            ],
            "remedies": [
                {"changes": list(remedy.changes), "candidates": remedy.candidates}
                for remedy in self.remedies
            ],
        }


def explain_candidates(
    snapshot: Snapshot, query: CandidateQuery, options: SearchOptions
) -> Explanation:
    """Return which constraint of a request removes how many providers, and what would help.

    Args:
        query: The request; its limit is ignored.
        options: How the site searches.
    """
    options = replace(options, seed=None, most_candidates=None)
    parts = tuple(
        slot_funnel(
            snapshot,
            part.group,
            part.slot,
            query.root,
            hides_fully_held=options.hides_fully_held,
        )
        for part in query_parts(snapshot, query, options)
    )
    found = find_candidates(snapshot, replace(query, limit=MOST_COUNTED), options)
    common = common_anchors(snapshot, query, [part.options for part in parts])
    too_held = too_held_trees(snapshot, query)
    return Explanation(
        providers=len(snapshot),
        trees=snapshot.tree_count,
        parts=parts,
        common_trees=len(common),
        held_trees=0 if too_held is None else int(too_held[common].sum()),
        candidates=len(found),
        nearest=_nearest(snapshot, parts),
        remedies=() if len(found) else find_remedies(snapshot, query, options),
    )


def _nearest(snapshot: Snapshot, parts: Sequence[SlotFunnel]) -> tuple[TreeOptions, ...]:
    """Return the trees that can serve most parts of a request."""
    counts = np.stack([part.options.counts() for part in parts])
    missing = (counts == 0).sum(axis=0)
    order = np.lexsort((np.arange(len(missing)), missing))
    order = order[missing[order] < len(parts)][:MOST_TREES]
    return tuple(
        TreeOptions(
            root=snapshot.uuid_of(int(snapshot.starts[tree])),
            options=tuple(counts[:, tree].tolist()),
            missing=tuple(np.flatnonzero(counts[:, tree] == 0).tolist()),
        )
        for tree in order.tolist()
    )


def _part_document(part: SlotFunnel) -> Mapping[str, object]:
    return {
        "suffix": part.slot.suffix,
        "resources": dict(part.slot.resources),
        "steps": [_step_document(step) for step in part.steps],
    }


def _step_document(step: FunnelStep) -> Mapping[str, object]:
    return {
        "constraint": step.constraint,
        "asked": step.asked,
        "removed_providers": step.removed_providers,
        "left_providers": step.left_providers,
        "left_trees": step.left_trees,
    }
