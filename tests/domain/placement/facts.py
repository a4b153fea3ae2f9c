"""What a snapshot says, as plain values that can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from placement.domain.snapshot import ClassColumns, Snapshot
from placement.domain.summaries import tree_summaries


def facts(snapshot: Snapshot) -> dict[str, Any]:
    """Return everything that a snapshot says, whatever its bit numbers."""
    return {
        "ids": snapshot.ids.tolist(),
        "uuids": [snapshot.uuid_of(row) for row in range(len(snapshot))],
        "versions": list(
            zip(
                snapshot.names,
                snapshot.generations.tolist(),
                snapshot.modified.tolist(),
                strict=True,
            )
        ),
        "parents": snapshot.parents.tolist(),
        "ends": snapshot.ends.tolist(),
        "trees": snapshot.trees.tolist(),
        "root_ids": snapshot.root_ids.tolist(),
        "starts": snapshot.starts.tolist(),
        "traits": [snapshot.traits_of(row) for row in range(len(snapshot))],
        "aggregates": [
            sorted(
                uuid
                for uuid in snapshot.aggregate_bit
                if snapshot.in_any_aggregate(frozenset((uuid,)))[row]
            )
            for row in range(len(snapshot))
        ],
        "sharing": snapshot.sharing.tolist(),
        "anchors": [snapshot.anchors_of(row).tolist() for row in snapshot.sharing.tolist()],
        "classes": {
            name: {
                column: np.asarray(getattr(columns, column)).tolist()
                for column in ClassColumns.__slots__
                if column != "open_known"  # follows from the others
                if column != "has_units"  # may stay set, which only costs time
            }
            for name, columns in snapshot.classes.items()
        },
        "rows": [snapshot.row_of(snapshot.uuid_of(row)) for row in range(len(snapshot))],
        "keys": snapshot.rows_of_ids(snapshot.ids).tolist(),
        "summaries": list(tree_summaries(snapshot, range(snapshot.tree_count)))
        if snapshot.tree_count
        else [],
        "names": (snapshot.known_traits, snapshot.known_classes),
    }
