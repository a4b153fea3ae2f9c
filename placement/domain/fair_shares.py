"""Who is shown where a limit cuts: those with room for anybody and those whose room is held.

Candidates cannot know the project, so they show hosts whose room is held as well: its owners need
them, and strangers are refused there. Each kind has half of the places and goes on where it stopped
in the last answer, so that neither starves (spec placement, 8.4).
"""

from __future__ import annotations

import numpy as np

from placement.domain.candidate_query import CandidateQuery
from placement.domain.snapshot import BoolColumn, Int64Column, Snapshot


def too_held_trees(snapshot: Snapshot, query: CandidateQuery) -> BoolColumn | None:
    """Return bool[T], trees where holds leave too little for a request; None where none is held."""
    asked: dict[str, int] = {}
    for group in query.groups:
        for name, amount in group.resources.items():
            asked[name] = asked.get(name, 0) + amount
    marked: BoolColumn | None = None
    for name, amount in asked.items():
        columns = snapshot.classes.get(name)
        if columns is None or not columns.has_held:
            continue
        if marked is None:
            marked = np.zeros(snapshot.tree_count, dtype=np.bool_)
        too_held = columns.too_held_for(amount)
        if snapshot.is_flat and len(too_held) == len(marked):
            marked |= too_held
        else:
            marked[snapshot.trees[columns.rows[too_held]]] = True
    return marked


def fair_order(is_held: BoolColumn, places: int, turn: int) -> Int64Column:
    """Return int64[N], all positions, those first that an answer with so many places shows.

    The two kinds take turns, and the one of which there are more takes what the other leaves. Each
    starts behind the places that were its own in the turns before: in ``ceil(N / (places // 2))``
    turns one after the other every position is shown. An odd place goes to each kind in turn.

    Args:
        is_held: bool[N], where only the owners of what is held find room.
        places: How many are shown, at least 1.
        turn: Of this answer, from 0.
    """
    half, odd = divmod(places, 2)
    free = _from(np.flatnonzero(~is_held), turn * half + odd * ((turn + 1) // 2))
    held = _from(np.flatnonzero(is_held), turn * half + odd * (turn // 2))
    first, second = (held, free) if odd and turn % 2 else (free, held)
    both = min(len(first), len(second))
    order = np.empty(len(is_held), dtype=np.int64)
    order[: 2 * both : 2] = first[:both]
    order[1 : 2 * both : 2] = second[:both]
    order[2 * both :] = first[both:] if len(first) > both else second[both:]
    return order


def _from(positions: Int64Column, start: int) -> Int64Column:
    return np.roll(positions, -(start % len(positions))) if len(positions) else positions
